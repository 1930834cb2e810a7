// What the fuzzers of job and sweep files share: good jobs, and the words of YAML and of ours.
#pragma once

#include <string>
#include <string_view>

#include "fuzz/fuzz_target.h"

namespace flotilla::fuzz {

// A job with most kinds of values.
extern const std::string kGuidedJob;

Bytes bytes_of(std::string_view text);
// One of configs/ without its comments, on which most mutations would be wasted.
Bytes config_file(const std::string& name);

}  // namespace flotilla::fuzz
