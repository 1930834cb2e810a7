// flotilla serve: resident ranks that take jobs over a Unix socket, or from a list.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "app/process.h"
#include "app/server.h"
#include "base/error.h"
#include "base/log.h"
#include "base/temp_registry.h"
#include "base/text.h"
#include "config/load.h"
#include "config/writer.h"

namespace flotilla::app {
namespace {

namespace fs = std::filesystem;

constexpr double kMostSeconds = 1e6;

constexpr Usage kUsage = {
    "serve", "flotilla serve [options]\n       flotilla serve --jobs LIST|- [options]",
    "Starts ranks and keeps them, with what they have loaded, for jobs that flotilla submit sends "
    "over a Unix\nsocket (docs/commands/serve.md), or for a list of jobs. Ends with a signal: the "
    "job in flight stops at its\nnext safe point, or with a second one at once.",
    "", /*many_ranks=*/false};

// The clip of a warm-up job, which nobody wants, and its sound beside it.
class ScratchClip {
 public:
  ScratchClip() {
    constexpr std::string_view kExtension = ".y4m";
    std::string name = (fs::temp_directory_path() / "flotilla-warm-up.XXXXXX").string();
    name += kExtension;
    const fleet::Socket made(::mkstemps(name.data(), kExtension.size()));
    if (made.get() < 0)
      fail(ErrorKind::output, fmt::format("no file \"{}\": {}", name, std::strerror(errno)));
    files_ = {name, fs::path(name).replace_extension(".wav")};
    for (size_t i = 0; i < files_.size(); ++i) entries_[i] = register_temporary(files_[i]);
  }
  ~ScratchClip() {
    for (size_t i = 0; i < files_.size(); ++i) {
      ::unlink(files_[i].c_str());
      forget_temporary(entries_[i]);
    }
  }
  ScratchClip(const ScratchClip&) = delete;
  ScratchClip& operator=(const ScratchClip&) = delete;
  const fs::path& path() const { return files_.front(); }

 private:
  std::array<fs::path, 2> files_;
  std::array<int, 2> entries_{};  // in the registry of what a signal removes
};

void add_serve_options(po::options_description& options) {
  auto add = options.add_options();
  add("ranks", po::value<int>()->value_name("N"),
      "ranks to start through mpirun (default: one, or one for each of --devices)");
  add("devices", po::value<std::string>()->value_name("LIST"),
      "GPUs of the ranks, as in CUDA_VISIBLE_DEVICES: 2,3");
  add("socket", po::value<std::string>()->value_name("PATH"),
      "listen there (default: flotilla/serve.sock in XDG_RUNTIME_DIR, or /tmp/flotilla-UID)");
  add("jobs", po::value<std::string>()->value_name("LIST"),
      "no socket: jobs are in this file, JSON lines or YAML documents; -: standard input");
  add("warm-up", po::value<std::vector<std::string>>()->composing()->value_name("JOB.yaml"),
      "run this job before the first one is taken, and drop its clip; may be repeated");
  add("sizes", po::value<std::string>()->value_name("LIST"),
      "with --warm-up: in each of these sizes, WIDTHxHEIGHTxFRAMES: 768x512x97,512x512x25");
  add("job-limit", po::value<double>()->value_name("SECONDS"),
      "a job that takes longer ends the ranks, which are started anew (default: no limit)");
  add("grace", po::value<double>()->value_name("SECONDS"),
      "how long a job may take to stop after a signal (120)");
  add("mpirun", po::value<std::string>()->value_name("PATH"), "the mpirun to start");
}

// "768x512x97" as changes to a job. Errors: ErrorKind::usage.
std::vector<config::Override> size_overrides(const std::string& text) {
  constexpr std::array<const char*, 3> kKeys = {"video.width", "video.height", "video.num_frames"};
  std::vector<config::Override> overrides;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (const char* key : kKeys) {
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    const bool is_last = overrides.size() + 1 == kKeys.size();
    if (error != std::errc() || (is_last ? stop != end : stop == end || *stop != 'x')) {
      fail(ErrorKind::usage,
           fmt::format("--sizes \"{}\": WIDTHxHEIGHTxFRAMES, e.g. 768x512x97", excerpt(text)));
    }
    overrides.push_back({key, std::to_string(number), "--sizes", false});
    at = is_last ? stop : stop + 1;
  }
  return overrides;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// What a warm-up job must not do: write where its file says, and stop or go on.
std::vector<config::Override> harmless(const fs::path& clip) {
  return {{"output", fmt::format("{{path: \"{}\", overwrite: true}}", clip.string()), "--warm-up",
           false},
          {"checkpoint", "", "--warm-up", false},
          {"limits", "", "--warm-up", false}};
}

std::vector<std::string> warm_up_jobs(const po::variables_map& values, const fs::path& clip) {
  std::vector<std::string> jobs;
  if (values.count("warm-up") == 0) {
    if (values.count("sizes") != 0) fail(ErrorKind::usage, "--sizes goes with --warm-up only");
    return jobs;
  }
  std::vector<std::vector<config::Override>> sizes;
  if (values.count("sizes") != 0) {
    for (const std::string& size : split(values["sizes"].as<std::string>()))
      sizes.push_back(size_overrides(size));
  } else {
    sizes.emplace_back();
  }
  for (const std::string& file : values["warm-up"].as<std::vector<std::string>>()) {
    for (auto overrides : sizes) {
      for (auto& change : harmless(clip)) overrides.push_back(std::move(change));
      jobs.push_back(config::to_yaml(config::load_job(file, overrides).job));
    }
  }
  return jobs;
}

double seconds_of(const po::variables_map& values, const char* option, double otherwise) {
  if (values.count(option) == 0) return otherwise;
  const double seconds = values[option].as<double>();
  if (seconds > 0 && seconds <= kMostSeconds) return seconds;
  fail(ErrorKind::usage, fmt::format("--{} {:g}: seconds, more than 0 and at most {:g}", option,
                                     seconds, kMostSeconds));
}

fleet::ControllerOptions fleet_options(const po::variables_map& values) {
  fleet::ControllerOptions fleet;
  if (values.count("devices") != 0) {
    fleet.devices = values["devices"].as<std::string>();
    fleet.ranks = static_cast<int>(fleet::parse_devices(fleet.devices).size());
  }
  if (values.count("ranks") != 0) fleet.ranks = values["ranks"].as<int>();
  if (values.count("mpirun") != 0) fleet.mpirun = values["mpirun"].as<std::string>();
  fleet.job_timeout_s = seconds_of(values, "job-limit", 0);
  return fleet;
}

// The descriptor of --jobs; -1 without it.
int open_list(const po::variables_map& values) {
  if (values.count("jobs") == 0) return -1;
  if (values.count("socket") != 0)
    fail(ErrorKind::usage, "--jobs works without a socket: leave --socket away");
  const std::string name = values["jobs"].as<std::string>();
  if (name == "-") return STDIN_FILENO;
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(ErrorKind::input, fmt::format("--jobs \"{}\": {}", name, std::strerror(errno)));
  return fd;
}

fs::path list_folder(const po::variables_map& values) {
  const std::string name = values["jobs"].as<std::string>();
  return name == "-" ? fs::current_path() : fs::absolute(name).parent_path();
}

}  // namespace

int serve(const Arguments& arguments) {
  po::options_description options("options");
  add_serve_options(options);
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  if (values->count("positional") != 0)
    fail(ErrorKind::usage, "flotilla serve takes options only; flotilla submit sends a job");
  std::optional<ScratchClip> scratch;
  if (values->count("warm-up") != 0) scratch.emplace();
  ServerOptions server;
  server.keeper.fleet = fleet_options(*values);
  server.keeper.warm_up = warm_up_jobs(*values, scratch ? scratch->path() : fs::path());
  server.grace_s = seconds_of(*values, "grace", server.grace_s);
  server.list_fd = open_list(*values);
  if (server.list_fd >= 0) server.list_folder = list_folder(*values).string();
  hold_first_signal();
  if (server.list_fd < 0) {
    const fs::path path = values->count("socket") != 0
                              ? fs::absolute((*values)["socket"].as<std::string>())
                              : default_socket();
    server.socket = std::make_unique<ServeSocket>(path);
    log::info("serve", "process {} listens at \"{}\"", ::getpid(), path.string());
  }
  return Server(std::move(server)).run();
}

}  // namespace flotilla::app
