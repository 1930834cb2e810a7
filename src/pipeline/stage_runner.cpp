#include "pipeline/stage_runner.h"

#include <ATen/ATen.h>

#include "parallel/tiled_velocity_model.h"

namespace flotilla::pipeline {
namespace {

comm::ExchangeTransport transport_of(config::Transport choice) {
  switch (choice) {
    case config::Transport::peer:
      return comm::ExchangeTransport::peer;
    case config::Transport::nccl:
      return comm::ExchangeTransport::nccl;
    case config::Transport::automatic:
      break;
  }
  return comm::ExchangeTransport::automatic;
}

}  // namespace

std::vector<diffusion::AvTokens> GroupedPassRunner::run(const diffusion::PassRequest& request,
                                                        const diffusion::AvLatents& latents,
                                                        double sigma) {
  const int64_t group_size = world_.world_size() / groups_;
  const int64_t own_group = world_.rank() / group_size;
  diffusion::PassRequest mine = request;
  mine.passes.clear();
  for (size_t i = 0; i < request.passes.size(); ++i) {
    if (static_cast<int64_t>(i) % groups_ == own_group) mine.passes.push_back(request.passes[i]);
  }
  const auto made =
      mine.passes.empty() ? std::vector<diffusion::AvTokens>() : own_.run(mine, latents, sigma);
  std::vector<diffusion::AvTokens> results;
  for (size_t i = 0; i < request.passes.size(); ++i) {
    const int64_t group = static_cast<int64_t>(i) % groups_;
    diffusion::AvTokens pass;
    if (group == own_group) {
      const auto& from = made[i / static_cast<size_t>(groups_)];
      pass = {from.video.contiguous(), from.audio.contiguous()};
    } else {
      pass = {at::empty_like(latents.video.latent), at::empty_like(latents.audio.latent)};
    }
    const int root = static_cast<int>(group * group_size);
    world_.broadcast(pass.video, root);
    world_.broadcast(pass.audio, root);
    results.push_back(std::move(pass));
  }
  return results;
}

StageRunner::StageRunner(const config::Job& job, const Plan& plan, const StagePlan& stage,
                         const Ranks& ranks, const transformer::Transformer& model,
                         const PromptContexts& contexts, const diffusion::AvLatents& start) {
  if (stage.groups > 1) {
    const int group_size = ranks.world_size() / static_cast<int>(stage.groups);
    group_ = ranks.context->transformer().split(ranks.rank() / group_size);
  }
  make_model(job, plan, stage, ranks, model, start);
  own_ = std::make_unique<TransformerPassRunner>(*model_, contexts, stage.guidance.order);
  if (stage.groups > 1) {
    grouped_ =
        std::make_unique<GroupedPassRunner>(*own_, ranks.context->transformer(), stage.groups);
  }
}

void StageRunner::make_model(const config::Job& job, const Plan& plan, const StagePlan& stage,
                             const Ranks& ranks, const transformer::Transformer& model,
                             const diffusion::AvLatents& start) {
  const transformer::TokenPositions positions{start.video.positions, start.audio.positions};
  if (job.graphs == config::Graphs::automatic && plan.device.is_cuda() &&
      plan.weight_home == transformer::WeightHome::device)
    graphs_ = std::make_unique<transformer::BlockGraphs>();
  if (stage.method == StageParallel::tiles) {
    parallel::TileOwner owner;
    if (ranks.world_size() > 1) {
      comm::Communicator& world = ranks.context->transformer();
      owner = {ranks.rank(), ranks.world_size(),
               [&world](at::Tensor& sum) { world.all_reduce_sum(sum); }};
    }
    const auto mode = job.stage_2.tiles.normalize_positions ? parallel::TilePositions::normalized
                                                            : parallel::TilePositions::absolute;
    model_ = std::make_unique<parallel::TiledVelocityModel>(model, *stage.tiles, positions,
                                                            plan.dtype, owner, mode, graphs_.get());
    return;
  }
  const int64_t group_size = ranks.world_size() / stage.groups;
  if (stage.method == StageParallel::none || group_size == 1) {
    model_ = std::make_unique<transformer::LocalVelocityModel>(model, positions, plan.dtype,
                                                               graphs_.get());
    return;
  }
  comm::Communicator& members = group_ ? *group_ : ranks.context->transformer();
  parallel::SequenceSizes sizes;
  sizes.max_tokens = job.sp.max_tokens;
  sizes.max_batch = static_cast<int64_t>(stage.guidance.passes.size());
  sizes.audio_tokens = plan.audio.num_tokens();
  sizes.text_tokens = shared_text_tokens(job);
  sizes.dtype = plan.dtype;
  sizes.device = plan.device;
  sizes.transport = transport_of(job.sp.transport);
  sizes.timeout_s = *job.sp.exchange_timeout_seconds;
  exchange_ = parallel::make_sequence_exchange(members, model.config(), sizes);
  model_ = std::make_unique<parallel::SequenceParallelVelocityModel>(
      model, positions, plan.dtype, members, *exchange_, graphs_.get());
}

void StageRunner::close(Phases& phases) {
  grouped_.reset();
  own_.reset();
  model_.reset();
  graphs_.reset();
  if (exchange_) {
    const comm::ExchangeStats stats = exchange_->stats();
    phases.add_exchange(stats.bytes, stats.seconds);
    exchange_->close();
  }
  exchange_.reset();
  if (group_) group_->close();
  group_.reset();
}

}  // namespace flotilla::pipeline
