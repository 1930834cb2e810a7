// What one fuzzer consists of. A file of this folder has the four functions below for one reader;
// fuzz_main.cpp makes inputs with mutator.h and calls them. Programs of files from strangers must
// answer every input with a result or an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace flotilla::fuzz {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

// Small files that the reader accepts: what mutations begin with.
std::vector<Bytes> good_inputs();
// Words of the format, for mutations to put in.
std::vector<std::string> words();
// Puts right what would end the reader at its first look (lengths, checksums), in most inputs.
void repair(Bytes& input, Random& random);

// True in `share` of 100 calls.
inline bool chance(Random& random, unsigned share) { return random() % 100 < share; }

// Why the last input was refused, for people.
inline std::string last_refusal;

// What the entry below returns: 0 when `read` takes the input, -1 when it refuses it with an Error.
// Broken invariants and other exceptions pass: those are what a fuzzer looks for.
template <typename Read>
int outcome_of(Read&& read) {
  try {
    std::forward<Read>(read)();
    return 0;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
    last_refusal = error.what();
    return -1;
  }
}

}  // namespace flotilla::fuzz

// libFuzzer's entry, with its meaning of 0 and -1 (not worth going on from).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
