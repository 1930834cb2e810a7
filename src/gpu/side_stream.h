// Work beside the current stream: a small branch that would leave most of a GPU idle runs while the
// large one does. On a CPU, and where it is not wanted, in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace flotilla::gpu {

class SideStream {
 public:
  // Nothing beside: run() does its work in place.
  SideStream();
  // A stream of `device`.
  explicit SideStream(at::Device device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // Work whose kernels come after those that the current stream has now. Until join(), tensors of
  // the current stream that it reads must be kept, and none that it makes may be read. Can be
  // captured in a graph.
  void run(const std::function<void()>& work) const;
  // What the current stream gets from here on comes after the work of run().
  void join() const;

 private:
  struct State;
  std::unique_ptr<State> state_;  // null: in place
};

}  // namespace flotilla::gpu
