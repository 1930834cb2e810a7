// The ranks that work on a job together, as the stages see them.
#pragma once

#include "comm/rank_context.h"
#include "parallel/shared_weights.h"

namespace flotilla::pipeline {

struct Ranks {
  comm::RankContext* context = nullptr;  // null: this process is alone, without MPI

  int rank() const { return context != nullptr ? context->rank() : 0; }
  int world_size() const { return context != nullptr ? context->world_size() : 1; }
  bool is_driver() const { return rank() == 0; }

  // Of all ranks; null for one that is alone.
  comm::Communicator* world() const { return context != nullptr ? &context->world() : nullptr; }

  // For weights that every rank needs: each reads a share. Collective; see load_shared().
  loader::LoadArena load_arena() const {
    if (context == nullptr) return loader::load_alone;
    return [world = world()](loader::WeightArena& arena) { parallel::load_shared(arena, *world); };
  }

  // For files that all ranks open: the driver reads their headers. Collective; see
  // headers_from_driver().
  loader::ReadHeaders read_headers() const {
    if (context == nullptr) return loader::read_headers;
    return parallel::headers_from_driver(context->world());
  }

  // Whether `own` is true on any rank. Collective; begins with an agreement.
  bool any(bool own) const {
    if (context == nullptr) return own;
    comm::agree(context->world(), std::nullopt);
    return context->world().all_max(own ? 1 : 0) != 0;
  }

  // Before tensors of GPUs pass between the ranks; `gpus` as in RankDevices. Collective.
  void attach_gpus(const std::vector<int>& gpus) const {
    if (context != nullptr && !gpus.empty()) context->attach_gpus(gpus);
  }

  // An agreement point: all ranks go on, or all fail alike. Collective.
  template <typename Body>
  auto agreed(Body&& body) const {
    return context != nullptr ? comm::agreed(context->world(), std::forward<Body>(body)) : body();
  }
};

}  // namespace flotilla::pipeline
