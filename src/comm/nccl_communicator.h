// Communicator of ranks that have a GPU each: tensors of the GPU go through NCCL, texts, numbers
// and tensors of the host through MPI. Private to comm/: RankContext::attach_device() makes these.
//
// A call on tensors of the GPU is ordered on Torch's current stream and returns when the GPU has
// done it: so its deadline, and the watch over the peers, cover all of it. all_reduce_sum gives the
// bytes that the MPI one gives: NCCL moves the data, the sums are made here in the order of the
// ranks, since NCCL's own order depends on the topology and its half precisions round at each hop.
#pragma once

#include <memory>
#include <span>

#include "comm/communicator.h"
#include "comm/mpi_communicator.h"
#include "comm/nccl_comm.h"

namespace flotilla::comm {

class NcclCommunicator final : public Communicator {
 public:
  // `host` and `nccl` are of the same ranks; several communicators of one thread may share `nccl`,
  // as all their calls come in one order. `timeout_s` holds for every call but barrier().
  NcclCommunicator(std::shared_ptr<MpiCommunicator> host, std::shared_ptr<NcclComm> nccl,
                   double timeout_s);

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }
  int world_rank(int rank) const override { return host_->world_rank(rank); }
  const PeerWatch& peers() const override { return host_->peers(); }

  void barrier(std::string_view what, double timeout_s) override;
  void meet(std::string_view what, double at_most_s) override;
  void broadcast(at::Tensor& tensor, int root) override;
  std::string broadcast(std::string_view text, int root) override;
  at::Tensor all_gather(const at::Tensor& tensor) override;
  std::vector<std::string> all_gather(std::string_view text) override;
  void all_gather_in_place(at::Tensor& tensor, std::span<const ByteRange> ranges) override;
  // Needs room for two more of the tensor.
  void all_reduce_sum(at::Tensor& tensor) override;
  int64_t all_max(int64_t value) override;
  // The receiver must take the GPU tensors of a sender in the order of their sending, whatever
  // their tags: NCCL knows none. Errors (ErrorKind::internal): it does not.
  void send(const at::Tensor& tensor, int to, int tag) override;
  void receive(at::Tensor& tensor, int from, int tag) override;
  void send(std::string_view text, int to, int tag) override;
  std::string receive_text(int from, int tag) override;
  std::unique_ptr<Communicator> split(int group) override;
  void close() override;

  // For the head exchange: a contiguous tensor of the GPU for, or from, another rank.
  struct Transfer {
    at::Tensor tensor;
    int peer = 0;
  };
  // Enqueues all of them at once, waits for the ones before; finish() waits for these.
  void start(std::span<const Transfer> sends, std::span<const Transfer> receives,
             std::string_view what, double timeout_s);
  void finish() { nccl_->finish(); }

 private:
  bool is_mine(const at::Tensor& tensor) const;
  at::Tensor all_gather_on_gpu(const at::Tensor& own);

  std::shared_ptr<MpiCommunicator> host_;
  std::shared_ptr<NcclComm> nccl_;
  double timeout_s_;
};

}  // namespace flotilla::comm
