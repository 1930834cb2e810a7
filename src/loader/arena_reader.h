// Fills parts of an arena from its file: blocks of rows, read and converted by several threads,
// since one alone does not keep up with a file cache, let alone the link to a GPU. Rows for a GPU
// pass through page-locked buffers, and their copies run beside the reading.
#pragma once

#include <span>

#include "loader/weight_arena.h"

namespace flotilla::loader {

// The processor's threads, 16 at most: other ranks read at the same time.
int default_read_threads();

// Reads the rows of `pieces` in this order. The calling thread alone touches the arena's device.
// Errors: those of FileStorage::read_rows(), of the first block that has one; what was read by then
// stays.
void read_pieces(const WeightArena& arena, std::span<const ArenaPiece* const> pieces,
                 int num_threads = default_read_threads());

}  // namespace flotilla::loader
