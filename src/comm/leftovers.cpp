#include "comm/leftovers.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

namespace flotilla::comm {
namespace {

namespace fs = std::filesystem;

// Of Open MPI 4 and 5, of its PSM transports, of NCCL.
constexpr std::array<std::string_view, 5> kSharedPrefixes = {"vader_segment.", "sm_segment.",
                                                             "psm_shm.", "psm2_shm.", "nccl-"};
constexpr std::string_view kSessionPrefix = "ompi.";
constexpr int64_t kStaleAfterSeconds = 60;
constexpr size_t kMostNames = 12;

// Files come and go while this reads them: what cannot be read is passed over.
template <typename Visit>
void for_each_entry(const fs::path& folder, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    visit(entry->path());
}

bool is_old_and_own(const fs::path& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 && facts.st_uid == ::geteuid() &&
         std::time(nullptr) - facts.st_mtime >= kStaleAfterSeconds;
}

// The number behind `prefix`; nothing for other names.
std::optional<int64_t> number_behind(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

// "ompi.<host>.<user>/pid.<process>": of an mpirun, or of a rank without one.
void add_sessions(const fs::path& temporary, std::vector<fs::path>& found) {
  for_each_entry(temporary, [&](const fs::path& sessions) {
    if (!sessions.filename().native().starts_with(kSessionPrefix)) return;
    for_each_entry(sessions, [&](const fs::path& session) {
      const auto process = number_behind(session.filename().native(), "pid.");
      std::error_code ignored;
      if (process && !fs::exists(fmt::format("/proc/{}", *process), ignored) &&
          is_old_and_own(session))
        found.push_back(session);
    });
  });
}

// Files that this user's processes have mapped or opened, as the kernel names them.
std::set<std::string> files_in_use(const fs::path& folder) {
  std::set<std::string> names;
  const std::string start = folder.native() + "/";
  for_each_entry("/proc", [&](const fs::path& process) {
    if (!number_behind(process.filename().native(), "")) return;
    std::ifstream maps(process / "maps");
    for (std::string line; std::getline(maps, line);) {
      const size_t at = line.find(start);
      if (at != std::string::npos) names.insert(line.substr(at));
    }
    for_each_entry(process / "fd", [&](const fs::path& descriptor) {
      std::error_code error;
      const fs::path target = fs::read_symlink(descriptor, error);
      if (!error && target.native().starts_with(start)) names.insert(target.native());
    });
  });
  return names;
}

void add_shared(const fs::path& shared, std::vector<fs::path>& found) {
  std::vector<fs::path> candidates;
  for_each_entry(shared, [&](const fs::path& object) {
    const std::string name = object.filename().native();
    const bool known =
        std::any_of(kSharedPrefixes.begin(), kSharedPrefixes.end(),
                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (known && is_old_and_own(object)) candidates.push_back(object);
  });
  if (candidates.empty()) return;  // the usual case, without a look at all processes
  const auto used = files_in_use(shared);
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(found),
               [&](const fs::path& object) { return used.count(object.native()) == 0; });
}

// For a shell.
std::string quoted(const fs::path& path) {
  std::string text = "'";
  for (const char c : path.native()) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::vector<fs::path> find_leftovers(const fs::path& temporary, const fs::path& shared) {
  std::vector<fs::path> found;
  add_sessions(temporary, found);
  add_shared(shared, found);
  std::sort(found.begin(), found.end());
  return found;
}

std::string leftovers_text(const std::vector<fs::path>& leftovers) {
  if (leftovers.empty()) return "";
  const size_t shown = std::min(leftovers.size(), kMostNames);
  std::string command = "rm -r";
  for (size_t i = 0; i < shown; ++i) command += " " + quoted(leftovers[i]);
  return fmt::format(
      "ended jobs left {} file{} or folder{} of Open MPI or NCCL behind; remove {} with: {}",
      leftovers.size(), leftovers.size() == 1 ? "" : "s", leftovers.size() == 1 ? "" : "s",
      shown == leftovers.size() ? "them" : fmt::format("the first {}", shown), command);
}

}  // namespace flotilla::comm
