#include "pipeline/rank_devices.h"

#include "gpu/device.h"

namespace flotilla::pipeline {

std::vector<comm::RankFacts> facts_of(const Ranks& ranks, const comm::Environment& environment) {
  if (ranks.context != nullptr) return ranks.context->facts();
  return {comm::local_facts(environment)};
}

RankDevices place_ranks(const config::Job& job, const std::vector<comm::RankFacts>& facts,
                        int rank) {
  if (job.device != config::Device::cuda) return {at::kCPU, {}, gpu::total_memory_bytes(at::kCPU)};
  RankDevices devices;
  devices.gpus = comm::choose_gpus(facts, job.allow_shared_device);
  const int own = devices.gpus.at(static_cast<size_t>(rank));
  devices.own = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(own));
  devices.memory_bytes = comm::memory_bytes_per_rank(comm::chosen_gpus(facts, devices.gpus));
  return devices;
}

}  // namespace flotilla::pipeline
