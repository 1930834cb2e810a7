// Any exception as the kind and the text that the program reports.
#pragma once

#include <string>

#include "base/error.h"

namespace flotilla::app {

struct Failure {
  ErrorKind kind;
  std::string text;
  bool speaks = true;  // false: another rank reports it
};

// Of the exception of the catch block around the call. One that is of no known type leaves again.
Failure current_failure();

}  // namespace flotilla::app
