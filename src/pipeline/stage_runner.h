// How a stage is spread over the ranks: the velocity model of the plan's parallel method, and the
// passes of a guided step over groups of ranks. Built when the stage starts, closed when it ends.
#pragma once

#include <memory>
#include <optional>

#include "diffusion/guided_denoiser.h"
#include "parallel/sequence_parallel.h"
#include "pipeline/pass_runner.h"
#include "pipeline/phases.h"
#include "pipeline/plan.h"
#include "pipeline/ranks.h"
#include "transformer/velocity_model.h"

namespace flotilla::pipeline {

// The passes of a step, dealt over groups of ranks; afterwards every rank has all results.
class GroupedPassRunner final : public diffusion::PassRunner {
 public:
  // Pass i belongs to group i mod `groups`; group g has the ranks from g * (world / groups) on.
  // `own` runs the passes of this rank's group.
  GroupedPassRunner(diffusion::PassRunner& own, comm::Communicator& world, int64_t groups)
      : own_(own), world_(world), groups_(groups) {}

  // Collective over all ranks.
  std::vector<diffusion::AvTokens> run(const diffusion::PassRequest& request,
                                       const diffusion::AvLatents& latents, double sigma) override;

 private:
  diffusion::PassRunner& own_;
  comm::Communicator& world_;
  int64_t groups_;
};

class StageRunner {
 public:
  // Collective where there are several ranks. `model` must outlive this object. `start`: the
  // stage's tokens, for their positions.
  StageRunner(const config::Job& job, const Plan& plan, const StagePlan& stage, const Ranks& ranks,
              const transformer::Transformer& model, const PromptContexts& contexts,
              const diffusion::AvLatents& start);

  diffusion::PassRunner& passes() {
    return grouped_ ? static_cast<diffusion::PassRunner&>(*grouped_) : *own_;
  }
  // Collective, the regular end; adds what was exchanged to `phases`.
  void close(Phases& phases);

 private:
  void make_model(const config::Job& job, const Plan& plan, const StagePlan& stage,
                  const Ranks& ranks, const transformer::Transformer& model,
                  const diffusion::AvLatents& start);

  std::unique_ptr<comm::Communicator> group_;  // of this rank; null: all ranks are one group
  std::optional<parallel::SequenceExchange> exchange_;  // SP only
  std::unique_ptr<transformer::BlockGraphs> graphs_;    // null: every kernel is launched by itself
  std::unique_ptr<transformer::VelocityModel> model_;
  std::unique_ptr<TransformerPassRunner> own_;
  std::unique_ptr<GroupedPassRunner> grouped_;
};

}  // namespace flotilla::pipeline
