// Communicator over MPI's host transports. Calls are non-blocking ones that are polled, so that a
// wait gives the core away, sees peers that are gone and has a deadline. Tensors of a GPU go
// through the host. Private to comm/: rank_context.h hands these out as Communicator.
#pragma once

#include "comm/board.h"
#include "comm/communicator.h"
#include "comm/mpi_session.h"

namespace flotilla::comm {

class MpiCommunicator final : public Communicator {
 public:
  // Collective over `comm`. `timeout_s` holds for every call but barrier(), and counts from the
  // last time that a peer got on.
  MpiCommunicator(MpiComm comm, std::shared_ptr<JobBoard> job, double timeout_s);

  int rank() const override { return rank_; }
  int world_size() const override { return size_; }
  int world_rank(int rank) const override;
  const PeerWatch& peers() const override { return board_.peers(); }

  void barrier(std::string_view what, double timeout_s) override;
  void meet(std::string_view what, double at_most_s) override;
  void broadcast(at::Tensor& tensor, int root) override;
  std::string broadcast(std::string_view text, int root) override;
  at::Tensor all_gather(const at::Tensor& tensor) override;
  std::vector<std::string> all_gather(std::string_view text) override;
  void all_gather_in_place(at::Tensor& tensor, std::span<const ByteRange> ranges) override;
  void all_reduce_sum(at::Tensor& tensor) override;
  int64_t all_max(int64_t value) override;
  void send(const at::Tensor& tensor, int to, int tag) override;
  void receive(at::Tensor& tensor, int from, int tag) override;
  void send(std::string_view text, int to, int tag) override;
  std::string receive_text(int from, int tag) override;
  std::unique_ptr<Communicator> split(int group) override;
  void close() override;

  // split(), for those that build on it.
  std::unique_ptr<MpiCommunicator> split_host(int group);
  const MpiComm& mpi() const { return comm_; }
  Board& board() { return board_; }

 private:
  // Waits for a collective; `buffers` are what MPI still works on if it fails.
  void finish(MPI_Request request, std::string_view what, const std::vector<at::Tensor>& buffers);
  void finish_message(MPI_Request request, std::string_view what, int peer,
                      const at::Tensor& buffer);
  void wait(MPI_Request request, const WaitLimit& limit, const std::vector<int>& missing,
            uint64_t epoch, const std::vector<at::Tensor>& buffers);
  void broadcast_bytes(const at::Tensor& bytes, int root);
  at::Tensor all_gather_bytes(const at::Tensor& bytes);
  at::Tensor reduce_piece(const at::Tensor& piece);

  MpiComm comm_;
  int rank_;
  int size_;
  double timeout_s_;
  Board board_;
  // Buffers of calls that failed: MPI may write to them for as long as the process lives.
  std::vector<at::Tensor> abandoned_;
};

}  // namespace flotilla::comm
