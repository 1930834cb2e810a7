// Shared memory that processes of ours have left behind when they ended. What living ones hold is
// of tests that run at the same time.
#pragma once

#include <signal.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

namespace flotilla::test {

// Names in /dev/shm of the form flotilla.<user>.<process>.<counter> whose process has ended.
inline std::set<std::string> left_shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("flotilla.")) continue;
    const size_t user_end = name.find('.', std::string("flotilla.").size());
    const pid_t process = user_end == std::string::npos ? 0 : std::atoi(&name[user_end + 1]);
    const bool lives = process > 0 && (kill(process, 0) == 0 || errno != ESRCH);
    if (!lives) names.insert(name);
  }
  return names;
}

}  // namespace flotilla::test
