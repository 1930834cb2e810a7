// What `precision` means for a job: the types that weights lie in and are computed in, and what the
// device must be able to do. The types in the files are held against it by loader/storage_policy.h.
#pragma once

#include "config/job.h"
#include "gpu/device.h"
#include "loader/checkpoint.h"
#include "loader/storage_policy.h"

namespace flotilla::pipeline {

// Of the transformer; the other models are of its `dtype` throughout. Not for `auto`.
loader::StoragePolicy storage_policy(config::Precision precision);

// What `auto` becomes once the file is known: `resolved`, or fp8_cast for a file whose weights are
// 8-bit numbers already.
config::Precision choose_precision(config::Precision resolved, const loader::Checkpoint& file);

// Errors (ErrorKind::machine): fp8_scaled_mm on a CPU, or on a GPU without 8-bit tensor cores.
void check_precision(config::Precision precision, const gpu::DeviceFacts& device);

}  // namespace flotilla::pipeline
