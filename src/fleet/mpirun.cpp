#include "fleet/mpirun.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "io/ffmpeg.h"

namespace flotilla::fleet {
namespace {

namespace fs = std::filesystem;

int num_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

bool names_gpu(std::string_view entry) {
  if (entry.starts_with("GPU-") || entry.starts_with("MIG-"))
    return entry.find_first_of(" \t") == std::string_view::npos;
  return !entry.empty() && entry.find_first_not_of("0123456789") == std::string_view::npos;
}

// Folders come and go while this reads them: what cannot be read is passed over.
template <typename Visit>
void for_each_entry(const fs::path& folder, std::string_view prefix, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().native().starts_with(prefix)) visit(entry->path());
  }
}

}  // namespace

Variables own_variables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

std::vector<std::string> to_entries(const Variables& variables) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::string find_mpirun(const std::string& wish, const std::string& search_path) {
  if (!wish.empty()) {
    const bool is_path = wish.find('/') != std::string::npos;
    const auto found = is_path ? fs::path(wish) : io::find_program(wish, search_path).value_or("");
    if (is_program(found)) return found.string();
    fail(ErrorKind::machine,
         fmt::format("mpirun \"{}\": no such program{}", wish, is_path ? "" : " in PATH"));
  }
  if (is_program(FLOTILLA_MPIEXEC)) return FLOTILLA_MPIEXEC;
  if (const auto found = io::find_program("mpirun", search_path)) return found->string();
  fail(ErrorKind::machine,
       "ranks are started through the mpirun program of Open MPI, which was not found in PATH; "
       "install it (apt-get install openmpi-bin), or name it (flotilla run: --mpirun PATH)");
}

std::vector<std::string> mpirun_command(const std::string& mpirun, int ranks,
                                        const std::string& program,
                                        const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {mpirun, "-n", std::to_string(ranks), program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::string own_program() { return fs::read_symlink("/proc/self/exe").string(); }

std::vector<std::string> parse_devices(const std::string& list) {
  std::vector<std::string> devices;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    devices.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  for (auto entry = devices.begin(); entry != devices.end(); ++entry) {
    if (!names_gpu(*entry))
      fail(ErrorKind::usage,
           fmt::format("devices \"{}\": \"{}\" is no GPU; numbers or UUIDs, as in "
                       "2,3 or GPU-5a1c...,GPU-77d0...",
                       excerpt(list), excerpt(*entry)));
    if (std::find(devices.begin(), entry, *entry) != entry)
      fail(ErrorKind::usage,
           fmt::format("devices \"{}\" has {} twice", excerpt(list), excerpt(*entry)));
  }
  return devices;
}

void add_launch_defaults(Variables& variables, int ranks) {
  const int cores = num_cores();
  if (::geteuid() == 0) {
    variables.emplace("OMPI_ALLOW_RUN_AS_ROOT", "1");
    variables.emplace("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  // A batch system's allocation may have other machines, and fewer slots here than ranks asked for.
  variables.emplace("OMPI_MCA_plm", "isolated");
  variables.emplace("OMPI_MCA_ras", "^slurm,tm,lsf,gridengine,alps");
  variables.emplace("OMPI_MCA_rmaps_base_oversubscribe", "1");
  if (ranks > cores) variables.emplace("OMPI_MCA_mpi_yield_when_idle", "1");
  // mpirun binds from the first core on, and so the ranks of two jobs to the same cores.
  variables.emplace("OMPI_MCA_hwloc_base_binding_policy", "none");
  variables.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, cores / ranks)));
}

void remove_leftovers(pid_t mpirun, int64_t job) {
  std::error_code ignored;
  const std::string session = fmt::format("pid.{}", mpirun);
  for_each_entry(fs::temp_directory_path(ignored), "ompi.",
                 [&](const fs::path& sessions) { fs::remove_all(sessions / session, ignored); });
  remove_openmpi_memory(job);
}

void remove_openmpi_memory(int64_t job) {
  if (job == 0) return;
  std::error_code ignored;
  const std::string ours = fmt::format(".{}.{:x}.", ::getuid(), static_cast<uint32_t>(job));
  for_each_entry("/dev/shm", "vader_segment.", [&](const fs::path& segment) {
    if (segment.native().find(ours) != std::string::npos) fs::remove(segment, ignored);
  });
}

}  // namespace flotilla::fleet
