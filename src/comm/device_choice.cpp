#include "comm/device_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::comm {
namespace {

using gpu::Gpu;

// Fields of a line are apart by this; none of them can hold it.
constexpr char kField = '\t';

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::string part;
  for (std::istringstream in(text); std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

std::string counted(size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

bool is_index(const std::string& word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string blame_filters(std::span<const RankFacts> ranks, size_t rank) {
  return fmt::format("CUDA_VISIBLE_DEVICES {}", describe_cuda_filter(ranks[rank].cuda_filter));
}

void require_gpus(std::span<const RankFacts> ranks) {
  const auto sees_none = [](const RankFacts& rank) { return rank.gpus.empty(); };
  const auto first = std::find_if(ranks.begin(), ranks.end(), sees_none);
  if (first == ranks.end()) return;
  const auto rank = static_cast<size_t>(first - ranks.begin());
  const std::string filter =
      first->cuda_filter ? fmt::format("; {}", blame_filters(ranks, rank)) : "";
  if (std::all_of(ranks.begin(), ranks.end(), sees_none)) {
    fail(ErrorKind::machine,
         fmt::format("device: cuda, but there is no CUDA device here (or this is a build without "
                     "CUDA){}; use device: cpu, or auto",
                     filter));
  }
  fail(ErrorKind::machine,
       fmt::format("device: cuda, but CUDA shows no GPU to rank {}{}; start no more ranks than "
                   "there are GPUs (--gpus-per-node), or use device: cpu",
                   rank, filter));
}

size_t count_distinct(std::span<const RankFacts> ranks) {
  std::vector<std::string> uuids;
  for (const auto& rank : ranks) {
    for (const auto& gpu : rank.gpus) uuids.push_back(gpu.uuid);
  }
  std::sort(uuids.begin(), uuids.end());
  return static_cast<size_t>(std::unique(uuids.begin(), uuids.end()) - uuids.begin());
}

[[noreturn]] void fail_shared(std::span<const RankFacts> ranks, std::span<const int> choice,
                              size_t first, size_t second) {
  const size_t gpus = count_distinct(ranks);
  const std::string cause =
      gpus < ranks.size()
          ? fmt::format("{} and {} in all; use at most {}", counted(ranks.size(), "rank"),
                        counted(gpus, "GPU"), counted(gpus, "rank"))
          : fmt::format(
                "{} are visible in all, but not to these ranks ({}); show all GPUs to all "
                "ranks (--gpus-per-node, --gpu-bind=none)",
                counted(gpus, "GPU"), blame_filters(ranks, second));
  fail(ErrorKind::machine,
       fmt::format("ranks {} and {} would share one GPU: {}, or set "
                   "allow_shared_device: true (for tests)\n{}",
                   first, second, cause, fmt::join(device_table(ranks, choice), "\n")));
}

}  // namespace

std::string RankFacts::pack() const {
  std::string text = fmt::format("{}{}{}{}{}{}{}", host, kField, pid, kField, cores, kField,
                                 cuda_filter ? "=" + *cuda_filter : "");
  for (const Gpu& gpu : gpus) {
    text += fmt::format("\n{}{}{}{}{}{}{}", gpu.uuid, kField, gpu.bus_id, kField, gpu.name, kField,
                        gpu.memory_bytes);
  }
  return text;
}

RankFacts RankFacts::unpack(const std::string& text) {
  const auto lines = split(text, '\n');
  FLOTILLA_ASSERT(!lines.empty());
  const auto head = split(lines.front(), kField);
  FLOTILLA_ASSERT(head.size() >= 3);
  RankFacts facts;
  facts.host = head[0];
  facts.pid = std::stoll(head[1]);
  facts.cores = head[2];
  if (head.size() > 3) facts.cuda_filter = head[3].substr(1);
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto fields = split(lines[i], kField);
    FLOTILLA_ASSERT(fields.size() == 4);
    facts.gpus.push_back({fields[0], fields[1], fields[2], std::stoll(fields[3])});
  }
  return facts;
}

std::string describe_cuda_filter(const std::optional<std::string>& filter) {
  if (!filter) return "is not set";
  size_t indices = 0;
  size_t gpus = 0;
  size_t instances = 0;
  for (std::string word : split(*filter, ',')) {
    std::erase(word, ' ');
    // CUDA reads up to the first word that it does not know.
    if (is_index(word)) {
      ++indices;
    } else if (word.starts_with("GPU-")) {
      ++gpus;
    } else if (word.starts_with("MIG-")) {
      ++instances;
    } else {
      break;
    }
  }
  const std::string given = fmt::format("is \"{}\" and ", excerpt(*filter, 200));
  if (filter->empty()) return "is empty, which hides all GPUs";
  if (indices + gpus + instances == 0) return given + "hides all GPUs";
  if (indices > 0) return given + fmt::format("names {} by index", counted(indices, "GPU"));
  if (gpus > 0) return given + fmt::format("names {} by UUID", counted(gpus, "GPU"));
  return given + fmt::format("names {} by UUID", counted(instances, "MIG instance"));
}

bool all_see_gpus(std::span<const RankFacts> ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const RankFacts& rank) { return !rank.gpus.empty(); });
}

std::vector<int> choose_gpus(std::span<const RankFacts> ranks, bool allow_shared) {
  require_gpus(ranks);
  std::vector<int> choice;
  std::map<std::string, size_t> owner;  // of a UUID
  std::optional<std::pair<size_t, size_t>> clash;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& gpus = ranks[rank].gpus;
    size_t index = rank % gpus.size();
    if (owner.contains(gpus[index].uuid)) {
      const auto free = std::find_if(gpus.begin(), gpus.end(),
                                     [&](const Gpu& gpu) { return !owner.contains(gpu.uuid); });
      if (free != gpus.end()) index = static_cast<size_t>(free - gpus.begin());
    }
    const auto [place, is_new] = owner.emplace(gpus[index].uuid, rank);
    if (!is_new && !clash) clash = {place->second, rank};
    choice.push_back(static_cast<int>(index));
  }
  if (clash && !allow_shared) fail_shared(ranks, choice, clash->first, clash->second);
  return choice;
}

std::vector<Gpu> chosen_gpus(std::span<const RankFacts> ranks, std::span<const int> choice) {
  FLOTILLA_ASSERT(ranks.size() == choice.size());
  std::vector<Gpu> chosen;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    chosen.push_back(ranks[rank].gpus.at(static_cast<size_t>(choice[rank])));
  return chosen;
}

bool nccl_serves(std::span<const Gpu> chosen) {
  std::vector<std::string> buses;
  for (const Gpu& gpu : chosen) buses.push_back(gpu.bus_id);
  std::sort(buses.begin(), buses.end());
  return std::adjacent_find(buses.begin(), buses.end()) == buses.end();
}

int64_t memory_bytes_per_rank(std::span<const Gpu> chosen) {
  FLOTILLA_ASSERT(!chosen.empty());
  const auto share = [&](const Gpu& gpu) {
    const auto sharers = std::count_if(chosen.begin(), chosen.end(),
                                       [&](const Gpu& other) { return other.uuid == gpu.uuid; });
    return gpu.memory_bytes / sharers;
  };
  int64_t smallest = share(chosen.front());
  for (const Gpu& gpu : chosen) smallest = std::min(smallest, share(gpu));
  return smallest;
}

std::optional<int> index_of(const RankFacts& rank, std::string_view uuid) {
  for (size_t i = 0; i < rank.gpus.size(); ++i) {
    if (rank.gpus[i].uuid == uuid) return static_cast<int>(i);
  }
  return std::nullopt;
}

std::vector<std::string> device_table(std::span<const RankFacts> ranks, std::span<const int> choice,
                                      const std::vector<std::vector<gpu::PeerLink>>& links) {
  std::vector<std::string> lines;
  for (size_t rank = 0; rank < choice.size(); ++rank) {
    const auto& facts = ranks[rank];
    const Gpu& gpu = facts.gpus.at(static_cast<size_t>(choice[rank]));
    std::string line =
        fmt::format("rank {}: {}, gpu {} of {}, {}, {}, {}, cores {}", rank, facts.host,
                    choice[rank], facts.gpus.size(), gpu.uuid, gpu.bus_id, gpu.name, facts.cores);
    for (size_t peer = 0; rank < links.size() && peer < links[rank].size(); ++peer) {
      if (peer == rank) continue;
      line += fmt::format("{} {} {}", peer == 0 || (rank == 0 && peer == 1) ? "; to rank" : ",",
                          peer, gpu::to_string(links[rank][peer]));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace flotilla::comm
