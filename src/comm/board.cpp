#include "comm/board.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"

namespace flotilla::comm {
namespace {

using Name = std::array<char, 128>;  // "" where making or mapping failed

// All ranks learn whether all of them succeeded; none is left in a collective.
void require_all(const MpiComm& comm, const std::optional<Error>& error) {
  int failed = error ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, comm.get()), "MPI_Allreduce");
  if (failed == 0) return;
  throw error
      ? *error
      : Error(ErrorKind::machine, "another rank could not map the shared memory of this job");
}

template <typename Body>
void on_all(const MpiComm& comm, Body&& body) {
  std::optional<Error> error;
  try {
    body();
  } catch (const Error& caught) {
    error = caught;
  }
  require_all(comm, error);
}

SharedMemory share(const MpiComm& comm, int64_t bytes) {
  SharedMemory memory;
  Name name{};
  on_all(comm, [&] {
    if (comm.rank() != 0) return;
    memory = SharedMemory::create(bytes);
    memory.reserve(0, bytes);
    FLOTILLA_ASSERT(memory.name().size() < name.size());
    std::memcpy(name.data(), memory.name().data(), memory.name().size());
  });
  check_mpi(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, comm.get()),
            "MPI_Bcast");
  on_all(comm, [&] {
    if (comm.rank() != 0) memory = SharedMemory::open(name.data(), bytes);
  });
  memory.unlink();
  return memory;
}

template <typename Value>
std::vector<Value> gather(const MpiComm& comm, const Value& own) {
  std::vector<Value> all(static_cast<size_t>(comm.size()));
  check_mpi(
      MPI_Allgather(&own, sizeof(Value), MPI_BYTE, all.data(), sizeof(Value), MPI_BYTE, comm.get()),
      "MPI_Allgather");
  return all;
}

}  // namespace

std::shared_ptr<JobBoard> make_job_board(const MpiComm& world) {
  SharedMemory memory = share(world, JobBoard::bytes_for(world.size()));
  return std::make_shared<JobBoard>(std::move(memory), gather(world, this_process(world.rank())),
                                    world.rank());
}

Board::Board(const MpiComm& comm, std::shared_ptr<JobBoard> job)
    : memory_(share(comm, comm.size() * static_cast<int64_t>(sizeof(Cell)))),
      job_(std::move(job)),
      world_ranks_(gather(comm, job_->self())),
      peers_(job_, world_ranks_),
      rank_(comm.rank()) {}

// New shared memory is zero, which is the atomics' first value.
Board::Cell& Board::cell(int rank) const { return reinterpret_cast<Cell*>(memory_.data())[rank]; }

uint64_t Board::arrive(Count count) {
  job_->note_progress();
  cell(rank_).arrivals[count].store(++arrivals_[count], std::memory_order_release);
  return arrivals_[count];
}

std::vector<int> Board::behind(uint64_t epoch, Count count) const {
  std::vector<int> ranks;
  for (size_t r = 0; r < world_ranks_.size(); ++r) {
    if (cell(static_cast<int>(r)).arrivals[count].load(std::memory_order_acquire) < epoch)
      ranks.push_back(world_ranks_[r]);
  }
  return ranks;
}

bool Board::all_arrived(uint64_t epoch, Count count) const {
  for (size_t r = 0; r < world_ranks_.size(); ++r) {
    if (cell(static_cast<int>(r)).arrivals[count].load(std::memory_order_acquire) < epoch)
      return false;
  }
  return true;
}

}  // namespace flotilla::comm
