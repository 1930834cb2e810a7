#include "comm/nccl_comm.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/agreement.h"

namespace flotilla::comm {
namespace {

using namespace std::chrono_literals;

// An abort that takes longer is left alone: the process is about to end.
constexpr auto kAbortPatience = 5s;

ncclUniqueId share_id(MpiCommunicator& host) {
  ncclUniqueId id{};
  agreed(host, [&] {
    if (host.is_driver()) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  });
  const std::string bytes = host.broadcast({id.internal, sizeof(id.internal)}, 0);
  FLOTILLA_ASSERT(bytes.size() == sizeof(id.internal));
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

}  // namespace

void check_nccl(ncclResult_t result, std::string_view call, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* detail = ncclGetLastError(comm);
  fail(ErrorKind::communication,
       fmt::format("{} failed: {}{}", call, ncclGetErrorString(result),
                   detail != nullptr && *detail != '\0' ? fmt::format(" ({})", detail) : ""));
}

NcclComm::NcclComm(MpiCommunicator& host, at::Device device, double timeout_s)
    : device_(device),
      done_(device),
      sent_(static_cast<size_t>(host.world_size())),
      received_(static_cast<size_t>(host.world_size())) {
  FLOTILLA_ASSERT(device.is_cuda() && device.has_index());
  const c10::cuda::CUDAGuard guard(device);
  ncclUniqueId id = share_id(host);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  enter({host, "opening NCCL", timeout_s, std::nullopt});
  const ncclResult_t result =
      ncclCommInitRankConfig(&comm_, host.world_size(), id, host.rank(), &config);
  // Without a communicator there is nothing to poll or to abort.
  if (comm_ == nullptr) check_nccl(result, "ncclCommInitRankConfig");
  wait([&] {
    check_nccl(result, "ncclCommInitRankConfig", comm_);
    return is_launched();
  });
  pending_.reset();
}

NcclComm::~NcclComm() { abort(); }

void NcclComm::enter(NcclCall call) {
  const uint64_t epoch = call.peer ? 0 : call.host.board().arrive();
  pending_.emplace(Pending{std::move(call), epoch});
}

void NcclComm::wait(const std::function<bool()>& ready) {
  const auto& [call, epoch] = *pending_;
  try {
    wait_until(call.host.peers(), {call.what, call.timeout_s, Deadline::from_progress}, ready, [&] {
      return call.peer ? std::vector<int>{call.host.world_rank(*call.peer)}
                       : call.host.board().behind(epoch);
    });
  } catch (...) {
    abort();
    throw;
  }
}

// True when the background thread of the non-blocking communicator has nothing left to do.
bool NcclComm::is_launched() const {
  ncclResult_t state = ncclSuccess;
  check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
  check_nccl(state, "NCCL", comm_);
  return state == ncclSuccess;
}

void NcclComm::launch(NcclCall call, const std::function<void(ncclComm_t, cudaStream_t)>& enqueue) {
  finish();
  if (comm_ == nullptr) fail(ErrorKind::communication, "NCCL is out of use after a fault");
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  enter(std::move(call));
  bool is_given = false;
  wait([&] {
    if (!std::exchange(is_given, true)) {
      check_nccl(ncclGroupStart(), "ncclGroupStart", comm_);
      enqueue(comm_, stream);
      check_nccl(ncclGroupEnd(), "ncclGroupEnd", comm_);
    }
    return is_launched();
  });
  done_.record(stream);
}

void NcclComm::finish() {
  if (!pending_) return;
  wait([&] { return is_launched() && done_.is_done(); });
  pending_.reset();
}

void NcclComm::close(MpiCommunicator& host, double timeout_s) {
  finish();
  if (comm_ == nullptr) return;
  const c10::cuda::CUDAGuard guard(device_);
  enter({host, "closing NCCL", timeout_s, std::nullopt});
  bool is_given = false;
  wait([&] {
    if (!std::exchange(is_given, true))
      check_nccl(ncclCommFinalize(comm_), "ncclCommFinalize", comm_);
    return is_launched();
  });
  pending_.reset();
  check_nccl(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
}

// In a thread of its own, for ncclCommAbort may wait for ranks that are gone too.
void NcclComm::abort() noexcept {
  ncclComm_t comm = std::exchange(comm_, nullptr);
  pending_.reset();
  if (comm == nullptr) return;
  try {
    const auto is_over = std::make_shared<std::atomic<bool>>(false);
    std::thread([comm, is_over] {
      static_cast<void>(ncclCommAbort(comm));
      is_over->store(true);
    }).detach();
    const auto end = std::chrono::steady_clock::now() + kAbortPatience;
    while (!is_over->load() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
  } catch (const std::exception& error) {
    log::warn("comm", "NCCL could not be aborted: {}", error.what());
  }
}

}  // namespace flotilla::comm
