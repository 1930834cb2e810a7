// The GPUs that CUDA shows to this process, and how two of them reach each other's memory. In a
// build without CUDA: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flotilla::gpu {

struct Gpu {
  std::string uuid;    // "GPU-5a1c...": the same in every process, whatever is hidden there
  std::string bus_id;  // "0000:1b:00.0"; MIG instances of one GPU share it
  std::string name;
  int64_t memory_bytes = 0;

  bool operator==(const Gpu&) const = default;
};

// In the order of CUDA's device numbers; empty where there is no driver, or all are hidden.
std::vector<Gpu> visible_gpus();

// How kernels on one GPU reach the memory of another one.
enum class PeerLink {
  same_device,  // two ranks share it
  nvlink,
  pcie,
  none,    // not at all: copies go through the host
  hidden,  // CUDA does not show the other one here, so it cannot be asked
};
// "NVLink"
std::string to_string(PeerLink link);

// Between two of visible_gpus(). The runtime does not tell the kind of a link; native atomics on
// the peer's memory are what NVLink has and PCIe lacks.
PeerLink peer_link(int own_index, int peer_index);

}  // namespace flotilla::gpu
