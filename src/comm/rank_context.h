// What a command opens to take part in a job of several ranks: MPI, this rank's place, and the
// communicators. Works without a launcher as one rank. One machine only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "comm/communicator.h"
#include "comm/device_choice.h"
#include "comm/launch.h"

namespace flotilla::comm {

struct RankOptions {
  Environment environment;
  // For collective calls, which also wait for a peer's slow disk: counted from the last time that a
  // peer got on. A peer that is gone is seen at once.
  double timeout_s = 1800;
  // A rank whose process gives no sign of life for this long (it is stopped) ends the job.
  double silence_limit_s = 20;
  // For a rank to start MPI, from the last time that another one did.
  double start_limit_s = 300;
};

// Of this process.
RankFacts local_facts(const Environment& environment);

class RankContext {
 public:
  // Collective. Errors: ErrorKind::usage (see check_launch), ErrorKind::machine (ranks on different
  // hosts, no shared memory), all as AgreedError; ErrorKind::communication.
  explicit RankContext(const RankOptions& options);
  // Local: frees what is this rank's own. Without close(), MPI is not finalised.
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const;
  int world_size() const;
  bool is_driver() const { return rank() == 0; }
  const std::vector<RankFacts>& facts() const;  // in the order of the ranks

  // Separate ones, so that a phase that is ahead cannot take another phase's messages.
  Communicator& world();
  Communicator& text();
  Communicator& transformer();
  Communicator& decoder();

  // Collective, once a job has decided for GPUs: rank r computes on number choice[r], from
  // choose_gpus(), which becomes CUDA's current device. From here on the communicators above carry
  // that GPU's tensors through NCCL; through the host where NCCL does not serve (ranks that share a
  // GPU). Again with the same choice: nothing to do. Errors (ErrorKind::communication): NCCL.
  void attach_gpus(const std::vector<int>& choice);
  // How each rank reaches the memory of each other one's GPU; empty before attach_gpus().
  const std::vector<std::vector<gpu::PeerLink>>& links() const;

  // Collective, the regular end: groups made by split() are closed before, MPI_Finalize is last.
  void close();
  // What this rank does now, "stage_1, step 2 of 8": the others name it should this rank die or
  // hang. Local and cheap.
  void note_phase(std::string_view phase) noexcept;
  // This rank got on in a long phase: the others' patience with it begins anew. As above.
  void note_progress() noexcept;
  // This rank waits for others now. May be asked by any thread.
  bool is_waiting() const noexcept;

  // True for the first rank that asks; a fault that several ranks see is reported once.
  bool claim_report(int exit_code) noexcept;
  // Ends all ranks, with the code of the rank that reports.
  [[noreturn]] void abort() noexcept;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Opens the ranks, runs `body` on each and closes them; gives what `body` gave. An AgreedError
// closes the ranks and passes on. Any other exception leaves the peers waiting somewhere: it is
// reported here, once for all ranks, and ends all of them with its exit code. (Of one rank, it
// passes on.)
int run_on_ranks(const RankOptions& options, const std::function<int(RankContext&)>& body);

// Errors (AgreedError, ErrorKind::machine): not all ranks can share memory. `sharing[r]`: how many
// ranks can share rank r's memory.
void check_one_machine(const std::vector<std::string>& hosts, const std::vector<int>& sharing,
                       bool speaks);

}  // namespace flotilla::comm
