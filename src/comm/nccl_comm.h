// Owner of one NCCL communicator and the one way to call it: what a call enqueues runs on Torch's
// current stream, and every wait for it has a deadline and watches the peers. NCCL is made
// non-blocking, so that no call of its own can hang; on a fault it is aborted. Private to comm/.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi_communicator.h"
#include "gpu/cuda_event.h"

namespace flotilla::comm {

// How a call is named and how long it is waited for (from the last time that a peer got on).
struct NcclCall {
  MpiCommunicator& host;  // of the ranks that take part: tells who is missing
  std::string what;       // "all-gather"
  double timeout_s = 0;
  std::optional<int> peer;  // of a message: only this rank (of `host`) takes part
};

class NcclComm {
 public:
  // Collective over `host`, one rank a GPU; `device` has an index. Errors:
  // ErrorKind::communication, also when the ranks do not come in time.
  NcclComm(MpiCommunicator& host, at::Device device, double timeout_s);
  // Local: aborts what was not closed.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  at::Device device() const { return device_; }

  // Enqueues what `enqueue` gives to NCCL, as one group, on the current stream of device(); returns
  // when it is launched, not when it is done. Waits for the launch before. Errors
  // (ErrorKind::communication): a peer is gone, late, or NCCL fails; the communicator is aborted
  // and cannot be used again.
  void launch(NcclCall call, const std::function<void(ncclComm_t, cudaStream_t)>& enqueue);
  // Waits until the last launch is done. Errors as above; ErrorKind::internal: of earlier work on
  // the stream.
  void finish();

  // Numbers the messages to and from a rank, in the order of the calls.
  int64_t next_sent(int rank) { return ++sent_.at(static_cast<size_t>(rank)); }
  int64_t next_received(int rank) { return ++received_.at(static_cast<size_t>(rank)); }

  // Collective over `host`, the regular end.
  void close(MpiCommunicator& host, double timeout_s);

 private:
  struct Pending {
    NcclCall call;
    uint64_t epoch = 0;  // on the board of call.host; unused for messages
  };

  void enter(NcclCall call);
  // Waits for `ready` in the name of the pending call; any error aborts.
  void wait(const std::function<bool()>& ready);
  bool is_launched() const;
  void abort() noexcept;

  at::Device device_;
  ncclComm_t comm_ = nullptr;
  gpu::CudaEvent done_;
  std::optional<Pending> pending_;
  std::vector<int64_t> sent_, received_;  // messages, for each rank
};

// Errors (ErrorKind::communication): neither success nor in progress.
void check_nccl(ncclResult_t result, std::string_view call, ncclComm_t comm = nullptr);

}  // namespace flotilla::comm
