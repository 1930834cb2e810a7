#include "comm/nccl_factory.h"

#include "base/error.h"
#ifdef FLOTILLA_CUDA
#include <fmt/format.h>

#include "comm/nccl_communicator.h"
#endif

namespace flotilla::comm {

using Hosts = std::vector<std::shared_ptr<MpiCommunicator>>;

#ifdef FLOTILLA_CUDA
bool has_nccl() { return true; }

std::string nccl_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(const Hosts& hosts,
                                                                   at::Device device,
                                                                   double timeout_s) {
  const auto nccl = std::make_shared<NcclComm>(*hosts.front(), device, timeout_s);
  std::vector<std::unique_ptr<Communicator>> made;
  for (const auto& host : hosts)
    made.push_back(std::make_unique<NcclCommunicator>(host, nccl, timeout_s));
  return made;
}
#else
bool has_nccl() { return false; }

std::string nccl_version() { return ""; }

std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(const Hosts&, at::Device,
                                                                   double) {
  fail(ErrorKind::internal, "this build has no NCCL");
}
#endif

}  // namespace flotilla::comm
