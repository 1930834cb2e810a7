#include "comm/job_board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/job_report.h"

namespace flotilla::comm {
namespace {

// A writer that died in the middle never ends its version: read what is there then.
constexpr int kReadTries = 1000;

}  // namespace

int64_t JobBoard::bytes_for(int world_size) {
  return static_cast<int64_t>(sizeof(Head)) + world_size * static_cast<int64_t>(sizeof(Cell));
}

JobBoard::JobBoard(SharedMemory memory, std::vector<Process> ranks, int self)
    : memory_(std::move(memory)), ranks_(std::move(ranks)), self_(self) {
  FLOTILLA_ASSERT(memory_.bytes() >= bytes_for(world_size()) && self_ < world_size());
}

// New shared memory is zero, which is the atomics' first value.
JobBoard::Head& JobBoard::head() const { return *reinterpret_cast<Head*>(memory_.data()); }

JobBoard::Cell& JobBoard::cell(int rank) const {
  return reinterpret_cast<Cell*>(memory_.data() + sizeof(Head))[rank];
}

void JobBoard::note_phase(std::string_view phase) noexcept {
  std::array<uint64_t, kPhaseWords> words{};
  std::memcpy(words.data(), phase.data(), std::min(phase.size(), sizeof(words)));
  Cell& own = cell(self_);
  const uint32_t version = own.version.load(std::memory_order_relaxed);
  own.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < kPhaseWords; ++i) own.phase[i].store(words[i], std::memory_order_relaxed);
  own.version.store(version + 2, std::memory_order_release);
  note_progress();
}

void JobBoard::note_progress() noexcept {
  cell(self_).progress.fetch_add(1, std::memory_order_relaxed);
}

void JobBoard::note_waiting(bool waiting) noexcept {
  cell(self_).waiting.store(waiting ? 1 : 0, std::memory_order_relaxed);
}

void JobBoard::beat() noexcept { cell(self_).beats.fetch_add(1, std::memory_order_relaxed); }

void JobBoard::leave() noexcept { cell(self_).left.store(1, std::memory_order_release); }

std::string JobBoard::phase(int rank) const {
  const Cell& from = cell(rank);
  std::array<uint64_t, kPhaseWords> words{};
  for (int i = 0; i < kReadTries; ++i) {
    const uint32_t before = from.version.load(std::memory_order_acquire);
    for (size_t w = 0; w < kPhaseWords; ++w)
      words[w] = from.phase[w].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && from.version.load(std::memory_order_relaxed) == before) break;
  }
  const auto* text = reinterpret_cast<const char*>(words.data());
  return {text, strnlen(text, sizeof(words))};
}

uint64_t JobBoard::progress(int rank) const noexcept {
  return cell(rank).progress.load(std::memory_order_relaxed);
}

bool JobBoard::is_waiting(int rank) const noexcept {
  return cell(rank).waiting.load(std::memory_order_relaxed) != 0;
}

uint64_t JobBoard::beats(int rank) const noexcept {
  return cell(rank).beats.load(std::memory_order_relaxed);
}

bool JobBoard::has_left(int rank) const noexcept {
  return cell(rank).left.load(std::memory_order_acquire) != 0;
}

bool JobBoard::claim_report(int exit_code) noexcept {
  int32_t nobody = 0;
  const bool first =
      head().verdict.compare_exchange_strong(nobody, exit_code, std::memory_order_acq_rel);
  if (first) send_report({JobReport::What::verdict, exit_code});
  return first;
}

int JobBoard::verdict() const noexcept { return head().verdict.load(std::memory_order_acquire); }

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string last_phases_text(const JobBoard& board, const std::vector<int>& ranks) {
  std::vector<std::string> phases;
  bool any = false;
  for (const int rank : ranks) {
    const std::string phase = board.phase(rank);
    any = any || !phase.empty();
    phases.push_back(phase.empty() ? "none" : fmt::format("\"{}\"", phase));
  }
  if (!any) return "";
  return fmt::format("; {} {}",
                     phases.size() == 1 ? "its last phase was" : "their last phases were",
                     fmt::join(phases, ", "));
}

std::string gone_text(const JobBoard& board, const std::vector<int>& ranks) {
  std::vector<pid_t> pids;
  for (const int rank : ranks) pids.push_back(board.process(rank).pid);
  return fmt::format("{} ended (process{} {}){}", ranks_text(ranks), pids.size() == 1 ? "" : "es",
                     fmt::join(pids, ", "), last_phases_text(board, ranks));
}

}  // namespace flotilla::comm
