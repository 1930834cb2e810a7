#include "vae/statistics.h"

#include "vae/config.h"

namespace flotilla::vae {
namespace {

at::Tensor per_channel(const at::Tensor& values, const at::Tensor& latent) {
  return values.to(latent.options()).view({1, -1, 1, 1, 1});
}

}  // namespace

at::Tensor LatentStatistics::normalize(const at::Tensor& latent) const {
  return (latent - per_channel(mean, latent)).div_(per_channel(std, latent));
}

at::Tensor LatentStatistics::un_normalize(const at::Tensor& latent) const {
  return (latent * per_channel(std, latent)).add_(per_channel(mean, latent));
}

LatentStatistics bind_statistics(int64_t channels, loader::WeightBinder& binder) {
  loader::WeightBinder scope = binder.scope("per_channel_statistics.");
  LatentStatistics statistics;
  statistics.mean = scope.take("mean-of-means", {channels});
  statistics.std = scope.take("std-of-means", {channels});
  for (const char* unused : {"mean-of-stds", "mean-of-stds_over_std-of-means", "channel"}) {
    scope.ignore(unused);
  }
  return statistics;
}

LatentStatistics load_statistics(const std::shared_ptr<const loader::Checkpoint>& checkpoint,
                                 at::ScalarType dtype, at::Device device,
                                 const loader::LoadArena& load) {
  const VaeLocation location = locate_vae(*checkpoint);
  const int64_t channels = DecoderConfig::from_json(location.config).latent_channels;
  loader::WeightArena arena(checkpoint, {location.prefix + "per_channel_statistics."}, dtype,
                            device);
  loader::WeightBinder binder(arena);
  loader::WeightBinder scope = binder.scope(location.prefix);
  const LatentStatistics statistics = bind_statistics(channels, scope);
  binder.finish();
  load(arena);
  return statistics;  // views keep the arena's storage alive
}

}  // namespace flotilla::vae
