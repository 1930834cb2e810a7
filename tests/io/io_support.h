// Shared by the tests of io: the picture folder, the ffmpeg program, and an Error caught as a
// value.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"
#include "io/ffmpeg.h"
#include "support/golden.h"

namespace flotilla::io::testing {

inline std::filesystem::path data_dir() { return test::source_dir() / "tests/io/data"; }

// The ffmpeg of this machine, if it can write mp4.
inline std::optional<Ffmpeg> usable_ffmpeg() {
  const char* path = std::getenv("PATH");
  const auto found = find_ffmpeg({}, path != nullptr ? path : "");
  return found && found->can_write_mp4() ? found : std::nullopt;
}

// The Error that `body` throws; the test fails when there is none.
template <typename Body>
Error error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error was thrown";
  return Error(ErrorKind::internal, "no Error was thrown");
}

inline ::testing::AssertionResult holds(const Error& error, ErrorKind kind,
                                        const std::string& part) {
  const std::string text = error.what();
  if (error.kind() == kind && text.find(part) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << to_string(error.kind()) << ": \"" << text << "\" where " << to_string(kind)
         << " with \"" << part << "\" was expected";
}

}  // namespace flotilla::io::testing

#define SKIP_WITHOUT_FFMPEG(name)                             \
  const auto name = ::flotilla::io::testing::usable_ffmpeg(); \
  if (!name) GTEST_SKIP() << "needs the ffmpeg program with libx264 and aac on the PATH"
