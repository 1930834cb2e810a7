#include "base/temp_registry.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstring>

namespace flotilla {
namespace {

// A job has at most six files open at once.
constexpr int kMaxTemporaries = 32;

// An entry changes hands by compare-and-swap only, so the handler never reads a name that another
// thread is writing. One that the handler took is not used again.
enum class State { free, filling, live, taken };
static_assert(std::atomic<State>::is_always_lock_free);

struct Entry {
  std::atomic<State> state{State::free};
  std::array<char, PATH_MAX> path{};

  bool change(State from, State to) noexcept { return state.compare_exchange_strong(from, to); }
};

constinit std::array<Entry, kMaxTemporaries> entries{};

}  // namespace

int register_temporary(const std::filesystem::path& path) noexcept {
  const std::string& name = path.native();
  if (name.size() >= PATH_MAX) return -1;
  for (int i = 0; i < kMaxTemporaries; ++i) {
    Entry& entry = entries[static_cast<size_t>(i)];
    if (!entry.change(State::free, State::filling)) continue;
    std::memcpy(entry.path.data(), name.c_str(), name.size() + 1);
    entry.state = State::live;
    return i;
  }
  return -1;
}

void forget_temporary(int entry) noexcept {
  if (entry >= 0) entries[static_cast<size_t>(entry)].change(State::live, State::free);
}

void remove_temporaries() noexcept {
  for (Entry& entry : entries) {
    if (entry.change(State::live, State::taken)) ::unlink(entry.path.data());
  }
}

}  // namespace flotilla
