#include "comm/rank_context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "base/job_report.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/leftovers.h"
#include "comm/mpi_communicator.h"
#include "comm/mpi_session.h"
#include "comm/nccl_factory.h"
#include "comm/shared_memory.h"
#include "comm/start_watch.h"
#include "comm/watchdog.h"
#include "gpu/device.h"

namespace flotilla::comm {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// "0-3,8"
std::string core_list() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return "unknown";
  const auto is_set = [&](int core) { return core < CPU_SETSIZE && CPU_ISSET(core, &cores); };
  std::string text;
  for (int begin = 0; begin < CPU_SETSIZE; ++begin) {
    if (!is_set(begin)) continue;
    int end = begin;
    while (is_set(end + 1)) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", begin);
    if (end > begin) text += fmt::format("-{}", end);
    begin = end;
  }
  return text;
}

using HostName = std::array<char, 256>;

// Before shared memory can be used: all with plain MPI.
void require_one_machine(const MpiSession& session) {
  const int world = session.world_size();
  MpiComm shared = MpiComm::split_shared(MPI_COMM_WORLD);
  const int own_sharing = shared.size();
  shared.free();
  HostName own{};
  const std::string name = host_name();
  std::copy_n(name.begin(), std::min(name.size(), own.size() - 1), own.begin());
  std::vector<HostName> names(static_cast<size_t>(world));
  std::vector<int> sharing(static_cast<size_t>(world));
  check_mpi(MPI_Allgather(own.data(), sizeof(own), MPI_CHAR, names.data(), sizeof(own), MPI_CHAR,
                          MPI_COMM_WORLD),
            "MPI_Allgather");
  check_mpi(MPI_Allgather(&own_sharing, 1, MPI_INT, sharing.data(), 1, MPI_INT, MPI_COMM_WORLD),
            "MPI_Allgather");
  std::vector<std::string> hosts;
  for (const auto& host : names) hosts.emplace_back(host.data());
  check_one_machine(hosts, sharing, session.rank() == 0);
}

std::vector<RankFacts> gather_facts(Communicator& world, const Environment& environment) {
  std::vector<RankFacts> facts;
  for (const auto& text : world.all_gather(local_facts(environment).pack()))
    facts.push_back(RankFacts::unpack(text));
  return facts;
}

// What ended runs have left: ours is removed, what belongs to libraries is told.
void sweep_up(const Environment& environment) {
  if (remove_stale_shared_memory() > 0)
    log::info("comm", "removed shared memory that an ended run had left");
  const char* temporary = environment ? environment("TMPDIR") : nullptr;
  const std::string text =
      leftovers_text(find_leftovers(temporary == nullptr ? "/tmp" : temporary, kSharedFolder));
  if (!text.empty()) log::info("comm", "{}", text);
}

using PeerLinks = std::vector<gpu::PeerLink>;

// From this rank to the GPU of each one.
PeerLinks own_links(const std::vector<RankFacts>& facts, const std::vector<int>& choice,
                    size_t self) {
  PeerLinks links;
  for (const gpu::Gpu& peer : chosen_gpus(facts, choice)) {
    const auto index = index_of(facts[self], peer.uuid);
    links.push_back(index ? gpu::peer_link(choice[self], *index) : gpu::PeerLink::hidden);
  }
  return links;
}

std::vector<PeerLinks> gather_links(Communicator& world, const PeerLinks& own) {
  std::string text;  // a letter for each
  for (const gpu::PeerLink link : own) text += static_cast<char>('a' + static_cast<int>(link));
  std::vector<PeerLinks> links;
  for (const auto& row : world.all_gather(text)) {
    links.emplace_back();
    for (const char letter : row) links.back().push_back(static_cast<gpu::PeerLink>(letter - 'a'));
  }
  return links;
}

}  // namespace

RankFacts local_facts(const Environment& environment) {
  RankFacts facts;
  facts.host = host_name();
  facts.pid = getpid();
  facts.cores = core_list();
  const char* filter = environment ? environment("CUDA_VISIBLE_DEVICES") : nullptr;
  if (filter != nullptr) {
    facts.cuda_filter = filter;
    std::replace_if(
        facts.cuda_filter->begin(), facts.cuda_filter->end(),
        [](char c) { return c == '\n' || c == '\t'; }, ' ');
  }
  facts.gpus = gpu::visible_gpus();
  return facts;
}

void check_one_machine(const std::vector<std::string>& hosts, const std::vector<int>& sharing,
                       bool speaks) {
  const auto world = static_cast<int>(hosts.size());
  if (std::all_of(sharing.begin(), sharing.end(), [&](int n) { return n == world; })) return;
  std::vector<std::string> distinct = hosts;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  throw AgreedError(
      ErrorKind::machine,
      fmt::format("the {} ranks are not on one machine: {}; start all ranks on one (srun -N1, or "
                  "mpirun without a host list)",
                  world,
                  distinct.size() > 1
                      ? fmt::format("hosts {}", fmt::join(distinct, ", "))
                      : fmt::format("on host {} they cannot share memory", distinct.front())),
      speaks);
}

// In the order of their making; destroyed in the reverse order.
struct RankContext::Parts {
  // When a GPU is attached, `on_gpu` serves in the place of `host` and uses it.
  struct Channel {
    std::shared_ptr<MpiCommunicator> host;
    std::unique_ptr<Communicator> on_gpu;

    Communicator& get() const { return on_gpu ? *on_gpu : *host; }
  };

  explicit Parts(const RankOptions& options)
      : start(std::make_unique<StartWatch>(find_launch(options.environment),
                                           launch_id(options.environment), options.start_limit_s)) {
  }

  std::unique_ptr<StartWatch> start;  // until all are ready
  MpiSession session;
  double timeout_s = 0;
  std::shared_ptr<JobBoard> job;
  std::unique_ptr<Watchdog> watchdog;  // none of one rank
  Channel world, text, transformer, decoder;
  std::vector<RankFacts> facts;
  std::vector<int> gpus;  // the number of each rank's; empty: none attached
  std::vector<PeerLinks> links;

  std::array<Channel*, 4> channels() { return {&world, &text, &transformer, &decoder}; }

  void open_board(double silence_limit_s) {
    MpiComm comm = MpiComm::duplicate(MPI_COMM_WORLD);
    job = make_job_board(comm);
    comm.free();
    if (session.world_size() > 1) watchdog = std::make_unique<Watchdog>(job, silence_limit_s);
  }
  std::shared_ptr<MpiCommunicator> duplicate() const {
    return std::make_shared<MpiCommunicator>(MpiComm::duplicate(MPI_COMM_WORLD), job, timeout_s);
  }
};

RankContext::RankContext(const RankOptions& options) : parts_(std::make_unique<Parts>(options)) {
  try {
    check_launch(find_launch(options.environment), parts_->session.world_size());
    require_one_machine(parts_->session);
  } catch (const AgreedError&) {
    parts_->session.finalize();
    throw;
  }
  if (is_driver()) sweep_up(options.environment);
  parts_->timeout_s = options.timeout_s;
  parts_->open_board(options.silence_limit_s);
  for (Parts::Channel* channel : parts_->channels()) channel->host = parts_->duplicate();
  parts_->facts = gather_facts(*parts_->world.host, options.environment);
  parts_->start.reset();
}

RankContext::~RankContext() = default;

int RankContext::rank() const { return parts_->session.rank(); }
int RankContext::world_size() const { return parts_->session.world_size(); }
const std::vector<RankFacts>& RankContext::facts() const { return parts_->facts; }
Communicator& RankContext::world() { return parts_->world.get(); }
Communicator& RankContext::text() { return parts_->text.get(); }
Communicator& RankContext::transformer() { return parts_->transformer.get(); }
Communicator& RankContext::decoder() { return parts_->decoder.get(); }

const std::vector<std::vector<gpu::PeerLink>>& RankContext::links() const { return parts_->links; }

void RankContext::attach_gpus(const std::vector<int>& choice) {
  if (parts_->gpus == choice) return;
  FLOTILLA_ASSERT(parts_->gpus.empty());  // communicators of other GPUs are in use
  const auto self = static_cast<size_t>(rank());
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(choice.at(self)));
  PeerLinks own = agreed(world(), [&] {
    gpu::use_device(device);
    return own_links(parts_->facts, choice, self);
  });
  parts_->links = gather_links(world(), own);
  parts_->gpus = choice;
  const bool with_nccl =
      world_size() > 1 && nccl_serves(chosen_gpus(parts_->facts, choice)) && has_nccl();
  if (with_nccl) {
    std::vector<std::shared_ptr<MpiCommunicator>> hosts;
    for (Parts::Channel* channel : parts_->channels()) hosts.push_back(channel->host);
    auto made = make_nccl_communicators(hosts, device, parts_->timeout_s);
    for (size_t i = 0; i < made.size(); ++i) parts_->channels()[i]->on_gpu = std::move(made[i]);
  }
  if (!is_driver() || world_size() == 1) return;
  for (const auto& line : device_table(parts_->facts, choice, parts_->links))
    log::info("gpus", "{}", line);
  log::info("gpus", "tensors between ranks: {}",
            with_nccl ? "NCCL " + nccl_version() : "through the host, as ranks share a GPU");
}

void RankContext::close() {
  // Ranks that are through wait here for those that work on, with the watchdog awake.
  parts_->world.host->barrier("the end of the job", parts_->timeout_s);
  parts_->job->leave();
  parts_->watchdog.reset();
  for (Parts::Channel* channel :
       {&parts_->decoder, &parts_->transformer, &parts_->text, &parts_->world})
    channel->get().close();
  parts_->session.finalize();
}

void RankContext::note_phase(std::string_view phase) noexcept { parts_->job->note_phase(phase); }
void RankContext::note_progress() noexcept { parts_->job->note_progress(); }
bool RankContext::is_waiting() const noexcept { return parts_->job->is_waiting(rank()); }

bool RankContext::claim_report(int exit_code) noexcept {
  return parts_->job->claim_report(exit_code);
}

void RankContext::abort() noexcept { parts_->session.abort(parts_->job->verdict()); }

int run_on_ranks(const RankOptions& options, const std::function<int(RankContext&)>& body) {
  RankContext ranks(options);
  try {
    const int code = body(ranks);
    ranks.close();
    return code;
  } catch (const AgreedError&) {
    ranks.close();
    throw;
  } catch (...) {
    if (ranks.world_size() == 1) {
      ranks.close();
      throw;
    }
    const Error error = current_error();
    if (ranks.claim_report(exit_code(error.kind()))) {
      log::error(to_string(error.kind()), "{}", error.what());
      send_last_words(error.kind(), error.what());
    }
    ranks.abort();
  }
}

}  // namespace flotilla::comm
