// Plumbing of hdf5_file.cpp: owners of the library's ids, silence, and one Error from its error
// stack.
#pragma once

#include <hdf5.h>

#include <filesystem>
#include <string>
#include <utility>

#include "base/error.h"

namespace flotilla::io {

// Owns an id of any kind together with the function that closes it. False when the library gave no
// id.
class H5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  H5Handle() = default;
  H5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~H5Handle() {
    if (id_ >= 0) close_(id_);
  }
  H5Handle(H5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  H5Handle& operator=(H5Handle&&) = delete;
  H5Handle(const H5Handle&) = delete;
  H5Handle& operator=(const H5Handle&) = delete;

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

// While it lives, the library prints nothing about its errors.
class H5Silence {
 public:
  H5Silence() {
    // Every file is closed by its owner; the library's own clean-up at exit would only complain
    // about what a damaged file has left open inside of it. Counts when it comes before any other
    // call.
    H5dont_atexit();
    H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~H5Silence() { H5Eset_auto2(H5E_DEFAULT, print_, data_); }
  H5Silence(const H5Silence&) = delete;
  H5Silence& operator=(const H5Silence&) = delete;

 private:
  H5E_auto2_t print_ = nullptr;
  void* data_ = nullptr;
};

// Throws an Error of one line with `action` and the innermost reason of the library's error stack;
// a lock that cannot be had is explained.
[[noreturn]] void fail_hdf5(ErrorKind kind, const std::filesystem::path& path,
                            const std::string& action);

}  // namespace flotilla::io
