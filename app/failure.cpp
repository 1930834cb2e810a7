#include "app/failure.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <new>

#include "comm/agreement.h"

namespace flotilla::app {

Failure current_failure() {
  try {
    throw;
  } catch (const comm::AgreedError& error) {
    return {error.kind(), error.what(), error.speaks()};
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  } catch (const c10::OutOfMemoryError& error) {
    return {ErrorKind::memory,
            fmt::format("out of device memory: {}", error.what_without_backtrace())};
  } catch (const std::bad_alloc&) {
    return {ErrorKind::memory, "out of host memory"};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    // The CPU allocator has no exception type of its own.
    const bool memory = text.find("DefaultCPUAllocator") != std::string::npos;
    return {memory ? ErrorKind::memory : ErrorKind::internal, text};
  } catch (const std::exception& error) {
    // More results than the buffer of set_up_process() holds are written, and fail, in between.
    return {std::ferror(stdout) != 0 ? ErrorKind::output : ErrorKind::internal, error.what()};
  }
}

}  // namespace flotilla::app
