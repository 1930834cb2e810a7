#include "pipeline/sweep.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/agreement.h"
#include "config/writer.h"
#include "pipeline/residents.h"
#include "pipeline/resume.h"
#include "pipeline/sweep_journal.h"

namespace flotilla::pipeline {
namespace {

class SweepRun {
 public:
  SweepRun(const config::Sweep& sweep, const SweepSettings& settings, const Host& host,
           const Ranks& ranks)
      : limits_(sweep.points.front().loaded.job.limits),
        settings_(settings),
        host_(host),
        ranks_(ranks),
        threads_(at::get_num_threads()) {
    ranks_.agreed([&] {
      if (ranks_.is_driver())
        journal_ = std::make_unique<SweepJournal>(sweep, settings, ranks_.world_size());
    });
  }

  SweepResult run() {
    while (!is_over()) {
      check_stop();
      make_point();
    }
    SweepResult result;
    if (journal_) result = {journal_->outcomes(), journal_->count(PointState::failed)};
    if (ranks_.context != nullptr) result.num_failed = ranks_.world()->all_max(result.num_failed);
    return result;
  }

 private:
  // Takes the next point on all ranks; true when there is none.
  bool is_over() {
    point_ = journal_ ? journal_->next() : std::nullopt;
    if (ranks_.context == nullptr) return !point_;
    const std::string text =
        ranks_.world()->broadcast(point_ ? config::to_yaml(point_->loaded.job) : "", 0);
    if (text.empty()) return true;
    if (!journal_) {
      point_.emplace();
      point_->loaded = config::load_job_text(text, "the driver's job", "/");
    }
    return false;
  }

  // Between two points there is nothing to save.
  void check_stop() {
    if (const auto reason = StopWatch(limits_, settings_.stop).agreed_reason(ranks_))
      end_stopped(*reason);
  }

  void make_point() {
    ranks_.agreed([&] {
      if (journal_) journal_->note_start(*point_);
    });
    std::optional<Error> error;
    std::optional<PreparedJob> prepared;
    try {
      prepared = run_point();
    } catch (const comm::AgreedError& agreed) {
      error = agreed;
    } catch (...) {
      // The other ranks wait somewhere, so this ends all of them.
      if (ranks_.context != nullptr) throw;
      error = comm::current_error();
    }
    if (!error) {
      ranks_.agreed([&] {
        if (journal_) journal_->note_done(*point_, *prepared);
      });
    } else {
      take_error(*error);
    }
  }

  PreparedJob run_point() {
    at::set_num_threads(threads_);  // of the process, whatever the point before has chosen
    if (ranks_.context != nullptr) ranks_.context->note_phase("prepare");
    const config::LoadedJob& loaded = point_->loaded;
    RunControl control{settings_.stop, {}};
    control.resume = ranks_.agreed([&]() -> std::optional<FoundCheckpoint> {
      std::error_code ignored;
      const bool may_be_there =
          ranks_.is_driver() && std::filesystem::exists(loaded.job.checkpoint.path, ignored);
      return may_be_there ? find_checkpoint(loaded.job) : std::nullopt;
    });
    const auto outputs = ranks_.is_driver() ? Outputs::checked : Outputs::ignored;
    PreparedJob prepared =
        ranks_.agreed([&] { return prepare_job(loaded, host_, outputs, ranks_, {}, residents_); });
    run_job(prepared, host_, ranks_, std::move(control));
    return prepared;
  }

  // Records it, and throws on when it is not the point's alone.
  void take_error(const Error& error) {
    const ErrorKind kind = error.kind();
    // Asked to stop, a point may fail of that: a signal to the whole group ends ffmpeg as well.
    const auto reason = StopWatch(limits_, settings_.stop).agreed_reason(ranks_);
    const bool is_stop = kind == ErrorKind::stopped || reason;
    // A full disk is no fault of the point, and would be that of all that follow.
    const bool stays_to_do =
        is_stop || kind == ErrorKind::output || kind == ErrorKind::communication;
    ranks_.agreed([&] {
      if (!journal_) return;
      if (stays_to_do) return journal_->note_stopped(*point_, error);
      journal_->note_failed(*point_, error);
    });
    if (is_stop) end_stopped(reason.value_or("a limit on time"));
    if (stays_to_do || kind == ErrorKind::internal) end_with(kind, error.what());
  }

  [[noreturn]] void end_stopped(const std::string& reason) {
    end_with(ErrorKind::stopped,
             journal_ ? fmt::format(
                            "stopped by {}: {} of {} points are done; the same command goes on",
                            reason, journal_->count(PointState::done), journal_->outcomes().size())
                      : "stopped by " + reason);
  }

  [[noreturn]] void end_with(ErrorKind kind, const std::string& text) const {
    if (ranks_.context == nullptr) fail(kind, text);
    throw comm::AgreedError(kind, text, ranks_.is_driver());
  }

  const config::Limits limits_;
  const SweepSettings& settings_;
  const Host& host_;
  const Ranks& ranks_;
  const int threads_;
  std::unique_ptr<SweepJournal> journal_;  // on the driver only
  std::shared_ptr<Residents> residents_ = std::make_shared<Residents>();
  std::optional<config::SweepPoint> point_;  // under way; of other ranks its job alone
};

}  // namespace

SweepResult run_sweep(const config::Sweep& sweep, const SweepSettings& settings, const Host& host,
                      const Ranks& ranks) {
  return SweepRun(sweep, settings, host, ranks).run();
}

}  // namespace flotilla::pipeline
