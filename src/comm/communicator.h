// Collective calls of a group of ranks outside the captured part of a step. Code above comm/ sees
// this interface and never MPI or NCCL. All calls are collective over the group and come in the
// same order on all its ranks, send and receive excepted. Every call watches the peers: when one's
// process is gone, or it does not come in time, the call fails with ErrorKind::communication and
// names it; such a communicator must not be used again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/wait.h"

namespace flotilla::comm {

// Part of a tensor's memory, in bytes from its start.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Messages name ranks of the world, also from a group of some of them.
  virtual int world_rank(int rank) const = 0;
  virtual const PeerWatch& peers() const = 0;
  bool is_driver() const { return rank() == 0; }

  // `what` appears in the error that names the missing ranks after `timeout_s`.
  virtual void barrier(std::string_view what, double timeout_s) = 0;

  // A barrier of its own count: a rank that comes here with an error, while others are in a call
  // that it will never enter, is not taken for one that has entered it. For agreement.h. Waits
  // no longer than other calls, and no longer than `at_most_s`. Errors as of barrier().
  virtual void meet(std::string_view what, double at_most_s) = 0;

  // The root's values reach the tensor of every rank, in place. Contiguous; same shape and dtype on
  // all ranks; any dtype.
  virtual void broadcast(at::Tensor& tensor, int root) = 0;
  // The root's text; what the others pass is ignored.
  virtual std::string broadcast(std::string_view text, int root) = 0;

  // [...] of each rank -> [N, ...], in the order of the ranks. Same shape and dtype on all.
  virtual at::Tensor all_gather(const at::Tensor& tensor) = 0;
  // Texts may differ in length.
  virtual std::vector<std::string> all_gather(std::string_view text) = 0;

  // In place, without a second copy of the tensor: rank r's bytes ranges[r] reach the same place on
  // all other ranks; bytes outside of the ranges stay. Contiguous, any dtype; `ranges`, one a rank,
  // are the same on all ranks, do not overlap, may differ in length and be empty.
  virtual void all_gather_in_place(at::Tensor& tensor, std::span<const ByteRange> ranges) = 0;

  // In place; floating or integer. Summed in the order of the ranks (half precisions in fp32,
  // rounded once), each element by one rank: same bytes on all ranks and in every run.
  virtual void all_reduce_sum(at::Tensor& tensor) = 0;
  virtual int64_t all_max(int64_t value) = 0;

  // Between two ranks; returns when `tensor` may be used again. Contiguous, any dtype; the receiver
  // knows shape and dtype. `tag` >= 0 tells messages of one pair apart.
  virtual void send(const at::Tensor& tensor, int to, int tag) = 0;
  virtual void receive(at::Tensor& tensor, int from, int tag) = 0;
  virtual void send(std::string_view text, int to, int tag) = 0;
  virtual std::string receive_text(int from, int tag) = 0;

  // Ranks with the same `group` (>= 0) form a new communicator, in the order of this one's ranks.
  virtual std::unique_ptr<Communicator> split(int group) = 0;

  // Frees the communicator's resources, on all ranks. The destructor alone is local.
  virtual void close() = 0;
};

}  // namespace flotilla::comm
