#include "gpu/side_stream.h"

#include <ATen/ATen.h>

#ifdef FLOTILLA_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace flotilla::gpu {

#ifdef FLOTILLA_CUDA

struct SideStream::State {
  c10::cuda::CUDAStream stream;
};

SideStream::SideStream(at::Device device) {
  if (!device.is_cuda()) return;
  state_ = std::make_unique<State>(State{c10::cuda::getStreamFromPool(false, device.index())});
}

void SideStream::run(const std::function<void()>& work) const {
  if (!state_) return work();
  at::cuda::CUDAEvent fork;
  fork.record(c10::cuda::getCurrentCUDAStream());
  fork.block(state_->stream);
  const c10::cuda::CUDAStreamGuard guard(state_->stream);
  work();
}

void SideStream::join() const {
  if (!state_) return;
  at::cuda::CUDAEvent done;
  done.record(state_->stream);
  done.block(c10::cuda::getCurrentCUDAStream());
}

#else

struct SideStream::State {};
SideStream::SideStream(at::Device) {}
void SideStream::run(const std::function<void()>& work) const { work(); }
void SideStream::join() const {}

#endif

SideStream::SideStream() = default;
SideStream::~SideStream() = default;

}  // namespace flotilla::gpu
