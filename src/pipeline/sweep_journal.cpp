#include "pipeline/sweep_journal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "base/temp_file.h"
#include "config/job_files.h"
#include "config/validate.h"
#include "config/writer.h"
#include "io/clock.h"
#include "io/file_bytes.h"
#include "io/hdf5_file.h"
#include "io/latents_file.h"
#include "pipeline/record.h"
#include "pipeline/resume.h"

namespace flotilla::pipeline {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostShown = 20;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error && !fs::is_directory(folder)) {
    fail(ErrorKind::output, fmt::format("cannot make the sweep's folder \"{}\": {}",
                                        folder.string(), error.message()));
  }
}

void remove_checkpoint(const config::SweepPoint& point) {
  std::error_code ignored;
  const fs::path& file = point.loaded.job.checkpoint.path;
  fs::remove(file, ignored);
  fs::remove(io::previous_file(file), ignored);
}

std::string latents_checksum(const fs::path& file) {
  const auto stored =
      io::read_latents(file, {io::latents::kStage2Video, io::latents::kStage2Audio});
  uint64_t hash = kHashStart;
  for (const auto& [name, tensor] : stored.tensors) {
    const at::Tensor values = tensor.contiguous();
    hash = add_to_hash(hash, name);
    hash = add_to_hash(hash, {static_cast<const char*>(values.data_ptr()), values.nbytes()});
  }
  return hash_text(hash);
}

// The job in force, for `flotilla run`: without what belongs to the sweep.
std::string own_job_text(const config::SweepPoint& point, const PreparedJob& prepared) {
  config::Job job = stored_job(prepared.job, prepared.plan);
  job.checkpoint = {};
  job.limits = {};
  job.output.overwrite = false;
  return fmt::format(
      "# Point {} of a sweep. Makes the same clip again: flotilla run {}.yaml --output again{}\n{}",
      point.index, point.name, job.output.path.extension().string(), config::to_yaml(job));
}

// "clip" of ".clip.1234-0.tmp.mp4", which a process that was killed has left; else "".
std::string temporary_of(const std::string& name) {
  const size_t end = name.find(".tmp");
  if (!name.starts_with('.') || end == std::string::npos) return "";
  const size_t number = name.rfind('.', end - 1);
  return number == 0 || number == std::string::npos ? "" : name.substr(1, number - 1);
}

void write_text(const fs::path& path, const std::string& text) {
  PendingFile file(path, /*overwrite=*/true);
  io::write_bytes(file.temporary(), path,
                  {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  file.commit();
}

}  // namespace

SweepJournal::SweepJournal(const config::Sweep& sweep, const SweepSettings& settings, int64_t world)
    : sweep_(sweep), world_(world), order_(select_points(sweep, settings.selection)) {
  make_folder(sweep_.folder);
  take_locks();  // before anything is read that another process might be writing
  remove_leftovers();
  std::vector<PointStatus> statuses = survey(sweep_, order_);
  for (size_t i = 0; i < order_.size(); ++i) {
    const size_t position = order_[i];
    const PointStatus& status = statuses_.emplace(position, std::move(statuses[i])).first->second;
    if (!status.note.empty())
      log::warn("sweep", "point {} ({}) is made again: {}", position, sweep_.points[position].name,
                status.note);
    const bool stays = status.state == PointState::done ||
                       (status.state == PointState::failed && !settings.retry_failed);
    if (!stays) todo_.push_back(position);
    // Killed between its record and this.
    if (status.state == PointState::done) remove_checkpoint(sweep_.points[position]);
    PointOutcome outcome{.position = position};
    if (stays) outcome.state = status.state;
    if (stays && status.record) {
      outcome.seconds = status.record->seconds;
      outcome.exit_code = status.record->exit_code;
      outcome.error = status.record->error;
    }
    outcomes_.push_back(outcome);
  }
  std::sort(outcomes_.begin(), outcomes_.end(),
            [](const auto& a, const auto& b) { return a.position < b.position; });
  check_inputs();
  check_places();
  manifest_ =
      std::make_unique<io::SweepManifest>(sweep_.folder / manifest_name(settings.selection));
  log::info("sweep", "{} points: {} to make, {} done before, {} failed before", order_.size(),
            todo_.size(), count(PointState::done), count(PointState::failed));
}

// A missing file is told once, however many points name it.
void SweepJournal::check_inputs() const {
  std::set<std::string> seen;
  std::vector<std::string> lines;
  for (const size_t position : todo_) {
    const auto& loaded = sweep_.points[position].loaded;
    try {
      config::validate_files(loaded.job, loaded.origins);
    } catch (const Error& error) {
      std::istringstream text(error.message());
      for (std::string line; std::getline(text, line);) {
        if (seen.insert(line).second) lines.push_back(line);
      }
    }
  }
  if (!lines.empty()) fail(ErrorKind::input, fmt::format("{}", fmt::join(lines, "\n")));
}

void SweepJournal::check_places() const {
  std::vector<std::string> taken;
  for (const size_t position : todo_) {
    if (may_overwrite(position)) continue;
    auto names = output_names(sweep_.points[position]);
    names.push_back(config::point_file(sweep_, sweep_.points[position]).filename().string());
    for (const auto& name : names) {
      std::error_code ignored;
      if (fs::exists(sweep_.folder / name, ignored)) taken.push_back(name);
    }
  }
  if (taken.empty()) return;
  const size_t more = taken.size() - std::min(taken.size(), kMostShown);
  taken.resize(taken.size() - more);
  fail(ErrorKind::output,
       fmt::format("there are files in \"{}\" under names of points that this sweep has not made: "
                   "{}{}; use another folder or name, or --overwrite",
                   sweep_.folder.string(), fmt::join(taken, ", "),
                   more > 0 ? fmt::format(" and {} more", more) : ""));
}

void SweepJournal::take_locks() {
  locks_ = std::make_unique<io::NameLocks>(sweep_.folder / "sweep.lock");
  for (const size_t position : order_) {
    const auto& point = sweep_.points[position];
    if (locks_->try_lock(point.name)) continue;
    fail(ErrorKind::failed_jobs,
         fmt::format("another process works on point {} ({}) in \"{}\": wait for it, or give each "
                     "process points of its own with --shard; the lock goes with that process",
                     point.index, point.name, sweep_.folder.string()));
  }
}

// Nobody else works on these points, so their unfinished files are of processes that are gone.
void SweepJournal::remove_leftovers() const {
  std::set<std::string> names;
  for (const size_t position : order_) {
    names.insert(sweep_.points[position].name);
    names.insert(sweep_.points[position].hash);
  }
  for (const fs::path& folder : {sweep_.folder, sweep_.folder / "state"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      if (names.contains(temporary_of(entry.path().filename().string())))
        fs::remove(entry.path(), ignored);
    }
  }
}

bool SweepJournal::may_overwrite(size_t position) const {
  return statuses_.at(position).known || sweep_.points[position].loaded.job.output.overwrite;
}

std::optional<config::SweepPoint> SweepJournal::next() {
  if (next_ == todo_.size()) return std::nullopt;
  const size_t position = todo_[next_++];
  config::SweepPoint point = sweep_.points[position];
  point.loaded.job.output.overwrite = may_overwrite(position);
  // A drawn seed is that of the attempt that goes on.
  if (const auto& record = statuses_.at(position).record; !point.loaded.job.seed) {
    const bool goes_on = statuses_.at(position).state == PointState::started && record->seed;
    point.loaded.job.seed = goes_on ? *record->seed : draw_seed();
  }
  log::info("sweep", "{} of {}: point {}, {}", next_, todo_.size(), point.index, point.name);
  return point;
}

io::PointRecord SweepJournal::record_of(const config::SweepPoint& point,
                                        io::PointEvent event) const {
  io::PointRecord record;
  record.point = point.index;
  record.hash = point.hash;
  record.event = event;
  record.name = point.name;
  record.values = point.values;
  record.seed = point.loaded.job.seed;
  record.time_s = io::wall_clock_s();
  if (event != io::PointEvent::started) record.seconds = record.time_s - started_s_;
  record.output = point.loaded.job.output.path.filename().string();
  record.world = world_;
  record.version = program_version();
  record.host = host_name();
  record.process = ::getpid();
  return record;
}

PointOutcome& SweepJournal::outcome_of(const config::SweepPoint& point) {
  return *std::find_if(outcomes_.begin(), outcomes_.end(), [&](const PointOutcome& outcome) {
    return sweep_.points[outcome.position].index == point.index;
  });
}

int64_t SweepJournal::count(PointState state) const {
  return std::count_if(outcomes_.begin(), outcomes_.end(),
                       [&](const PointOutcome& outcome) { return outcome.state == state; });
}

void SweepJournal::note_start(const config::SweepPoint& point) {
  started_s_ = io::wall_clock_s();
  manifest_->append(record_of(point, io::PointEvent::started));
  outcome_of(point).state = PointState::started;
}

void SweepJournal::note_done(const config::SweepPoint& point, const PreparedJob& prepared) {
  write_text(config::point_file(sweep_, point), own_job_text(point, prepared));
  io::PointRecord record = record_of(point, io::PointEvent::done);
  std::vector<std::string> names = output_names(point);
  names.push_back(config::point_file(sweep_, point).filename().string());
  for (const auto& name : names) {
    auto file = io::record_file(sweep_.folder, name);
    if (!file)
      fail(ErrorKind::output,
           fmt::format("\"{}\" cannot be read again", (sweep_.folder / name).string()));
    record.files.push_back(std::move(*file));
  }
  const auto& latents = point.loaded.job.output.latents;
  record.checksum = latents.empty() ? record.files.front().checksum : latents_checksum(latents);
  manifest_->append(record);
  remove_checkpoint(point);
  PointOutcome& outcome = outcome_of(point);
  outcome = {.position = outcome.position,
             .state = PointState::done,
             .made_now = true,
             .seconds = record.seconds};
}

void SweepJournal::note_failed(const config::SweepPoint& point, const Error& error) {
  io::PointRecord record = record_of(point, io::PointEvent::failed);
  record.exit_code = exit_code(error.kind());
  record.error = error.what();
  manifest_->append(record);
  // What it came from may be in there, and a retry is to begin afresh.
  remove_checkpoint(point);
  PointOutcome& outcome = outcome_of(point);
  outcome = {.position = outcome.position,
             .state = PointState::failed,
             .made_now = true,
             .seconds = record.seconds,
             .exit_code = record.exit_code,
             .error = record.error};
  log::error(to_string(error.kind()), "point {} ({}): {}", point.index, point.name, error.what());
}

void SweepJournal::note_stopped(const config::SweepPoint& point, const Error& error) {
  io::PointRecord record = record_of(point, io::PointEvent::stopped);
  record.exit_code = exit_code(error.kind());
  record.error = error.what();
  manifest_->append(record);
}

}  // namespace flotilla::pipeline
