#include "diffusion/noise.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace flotilla::diffusion {
namespace {

at::Generator make_generator(uint64_t seed, at::Device device) {
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::globalContext().lazyInitDevice(device.type());
  at::Generator generator = at::globalContext()
                                .getAcceleratorHooksInterface(device.type())
                                .getNewGenerator(device.index());
  generator.set_current_seed(seed);
  return generator;
}

}  // namespace

NoiseGenerator::NoiseGenerator(uint64_t seed, at::Device device)
    : device_(device), generator_(make_generator(seed, device)) {}

at::Tensor NoiseGenerator::draw(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, generator_, at::TensorOptions().dtype(dtype).device(device_));
}

at::Tensor NoiseGenerator::state() const { return generator_.get_state(); }

void NoiseGenerator::restore(const at::Tensor& state) {
  try {
    generator_.set_state(state.cpu().contiguous());
  } catch (const c10::Error& error) {
    fail(ErrorKind::input,
         fmt::format("the saved generator state does not fit: {}", error.what_without_backtrace()));
  }
}

LatentState add_noise(LatentState state, NoiseGenerator& generator, double noise_scale) {
  const at::ScalarType dtype = state.latent.scalar_type();
  const at::Tensor noise =
      generator.draw(state.latent.sizes(), dtype).to(state.latent.device()).to(at::kFloat);
  const at::Tensor noisy = at::lerp(state.latent.to(at::kFloat), noise, noise_scale);
  state.latent = at::lerp(state.clean.to(at::kFloat), noisy, state.denoise_mask).to(dtype);
  return state;
}

AvLatents add_noise(AvLatents latents, NoiseGenerator& generator, double noise_scale) {
  latents.video = add_noise(std::move(latents.video), generator, noise_scale);
  latents.audio = add_noise(std::move(latents.audio), generator, noise_scale);
  return latents;
}

}  // namespace flotilla::diffusion
