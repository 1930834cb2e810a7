#include "app/mpirun.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "app/launcher.h"
#include "base/error.h"
#include "io/ffmpeg.h"

namespace flotilla::app {
namespace {

namespace fs = std::filesystem;

int num_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

void set_default(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), /*overwrite=*/0);
}

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
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

std::string find_mpirun(const std::string& wish) {
  const std::string path = host().search_path;
  if (!wish.empty()) {
    const bool is_path = wish.find('/') != std::string::npos;
    const auto found = is_path ? fs::path(wish) : io::find_program(wish, path).value_or("");
    if (is_program(found)) return found.string();
    fail(ErrorKind::machine,
         fmt::format("--mpirun \"{}\": no such program{}", wish, is_path ? "" : " in PATH"));
  }
  if (is_program(FLOTILLA_MPIEXEC)) return FLOTILLA_MPIEXEC;
  if (const auto found = io::find_program("mpirun", path)) return found->string();
  fail(ErrorKind::machine,
       "--ranks needs the mpirun program of Open MPI, which was not found in PATH; install it "
       "(apt-get install openmpi-bin), or name it with --mpirun PATH");
}

std::vector<std::string> mpirun_command(const std::string& mpirun, int ranks,
                                        const Arguments& arguments) {
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  std::vector<std::string> command = {mpirun, "-n", std::to_string(ranks), self};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

void prepare_environment(int ranks) {
  const int cores = num_cores();
  if (::geteuid() == 0) {
    set_default("OMPI_ALLOW_RUN_AS_ROOT", "1");
    set_default("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  // A batch system's allocation may have other machines, and fewer slots here than ranks asked for.
  set_default("OMPI_MCA_plm", "isolated");
  set_default("OMPI_MCA_ras", "^slurm,tm,lsf,gridengine,alps");
  set_default("OMPI_MCA_rmaps_base_oversubscribe", "1");
  if (ranks > cores) set_default("OMPI_MCA_mpi_yield_when_idle", "1");
  // mpirun binds from the first core on, and so the ranks of two jobs to the same cores.
  set_default("OMPI_MCA_hwloc_base_binding_policy", "none");
  set_default("OMP_NUM_THREADS", std::to_string(std::max(1, cores / ranks)));
}

void remove_leftovers(pid_t mpirun, int64_t job) {
  std::error_code ignored;
  const std::string session = fmt::format("pid.{}", mpirun);
  for_each_entry(fs::temp_directory_path(ignored), "ompi.",
                 [&](const fs::path& sessions) { fs::remove_all(sessions / session, ignored); });
  if (job == 0) return;
  const std::string ours = fmt::format(".{}.{:x}.", ::getuid(), static_cast<uint32_t>(job));
  for_each_entry("/dev/shm", "vader_segment.", [&](const fs::path& segment) {
    if (segment.native().find(ours) != std::string::npos) fs::remove(segment, ignored);
  });
}

}  // namespace flotilla::app
