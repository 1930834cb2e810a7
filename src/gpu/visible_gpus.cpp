#include "gpu/visible_gpus.h"

#ifdef FLOTILLA_CUDA
#include <fmt/format.h>

#include <array>

#include "gpu/cuda_check.h"
#endif

namespace flotilla::gpu {

std::string to_string(PeerLink link) {
  switch (link) {
    case PeerLink::same_device:
      return "same GPU";
    case PeerLink::nvlink:
      return "NVLink";
    case PeerLink::pcie:
      return "PCIe";
    case PeerLink::none:
      return "none";
    case PeerLink::hidden:
      break;
  }
  return "hidden";
}

#ifdef FLOTILLA_CUDA
namespace {

// GPU-12345678-1234-1234-1234-123456789abc, as nvidia-smi writes it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

std::vector<Gpu> visible_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  std::vector<Gpu> gpus;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    std::array<char, 32> bus_id{};
    check_cuda(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties",
               ErrorKind::machine);
    check_cuda(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), i),
               "cudaDeviceGetPCIBusId", ErrorKind::machine);
    gpus.push_back({uuid_text(properties.uuid), bus_id.data(), properties.name,
                    static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return gpus;
}

PeerLink peer_link(int own_index, int peer_index) {
  if (own_index == peer_index) return PeerLink::same_device;
  const auto attribute = [&](cudaDeviceP2PAttr which) {
    int value = 0;
    check_cuda(cudaDeviceGetP2PAttribute(&value, which, own_index, peer_index),
               "cudaDeviceGetP2PAttribute", ErrorKind::machine);
    return value != 0;
  };
  int reachable = 0;
  check_cuda(cudaDeviceCanAccessPeer(&reachable, own_index, peer_index), "cudaDeviceCanAccessPeer",
             ErrorKind::machine);
  if (reachable == 0 || !attribute(cudaDevP2PAttrAccessSupported)) return PeerLink::none;
  return attribute(cudaDevP2PAttrNativeAtomicSupported) ? PeerLink::nvlink : PeerLink::pcie;
}
#else
std::vector<Gpu> visible_gpus() { return {}; }

PeerLink peer_link(int own_index, int peer_index) {
  return own_index == peer_index ? PeerLink::same_device : PeerLink::none;
}
#endif

}  // namespace flotilla::gpu
