// What the text tests ask of errors: the kind, and that the message names the culprit.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace flotilla::text {

// The message of the input error that `body` must throw; "" and a failed test without one.
template <typename Body>
std::string input_error(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline bool mentions(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

}  // namespace flotilla::text
