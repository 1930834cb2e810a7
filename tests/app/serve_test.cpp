// flotilla serve, submit, status and cancel end to end on two ranks: warm jobs equal cold ones,
// busy is an answer, and neither callers that go nor hostile ones nor dead ranks harm the next job.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "io/subprocess.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Arguments = std::vector<std::string>;

constexpr double kLimit = 120;

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

template <typename Condition>
bool eventually(Condition condition, double limit_s = kLimit) {
  const auto start = std::chrono::steady_clock::now();
  while (!condition()) {
    if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(limit_s))
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

// A caller that speaks to the socket itself.
class Caller {
 public:
  explicit Caller(const fs::path& path) : fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    const timeval limit{static_cast<time_t>(kLimit), 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    is_there_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Caller() { ::close(fd_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  bool is_there() const { return is_there_; }
  void say(const std::string& line) const { say_part(line + '\n'); }
  void say_part(const std::string& text) const {
    (void)!::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  void say_no_more() const { ::shutdown(fd_, SHUT_WR); }
  // The next event; null: the server has hung up.
  json hear() {
    while (true) {
      if (const size_t end = bytes_.find('\n'); end != std::string::npos) {
        const std::string line = bytes_.substr(0, end);
        bytes_.erase(0, end + 1);
        return json::parse(line);
      }
      char part[4096];
      const ssize_t count = ::recv(fd_, part, sizeof(part), 0);
      if (count <= 0) return nullptr;
      bytes_.append(part, static_cast<size_t>(count));
    }
  }
  json hear(const std::string& kind) {
    while (true) {
      json event = hear();
      if (event.is_null() || event["event"] == kind) return event;
      if (event["event"] == "error" || event["event"] == "done") return event;
    }
  }
  json ask(const json& request) {
    say(request.dump());
    return hear();
  }

 private:
  int fd_;
  bool is_there_ = false;
  std::string bytes_;
};

class ServeTest : public ::testing::Test {
 protected:
  struct End {
    int code = -1;
    std::string out;
    std::string err;
  };

  void SetUp() override {
    for (const char* name :
         {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "FLOTILLA_TEST_FAULT"})
      unsetenv(name);
    setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1);
    setenv("SERVE_TEST_MARK", dir_.path().c_str(), 1);
    setenv("TMPDIR", dir_.path().c_str(), 1);
  }
  void TearDown() override {
    if (server_) server_->kill();
    EXPECT_TRUE(eventually([&] { return ranks().empty(); }, 20)) << "ranks are left";
    unsetenv("TMPDIR");
  }

  static End run(Arguments arguments) {
    arguments.insert(arguments.begin(), FLOTILLA_PROGRAM);
    const auto result = io::run_process(arguments, {}, kLimit);
    return {code_of(result.status), std::string(result.output.begin(), result.output.end()),
            result.errors};
  }

  // Until the ranks are ready. `ranks`: as many, by this option.
  void serve(const Arguments& more = {}, const Arguments& ranks = {"--ranks", "2"}) {
    Arguments argv = {FLOTILLA_PROGRAM, "serve"};
    argv.insert(argv.end(), ranks.begin(), ranks.end());
    argv.insert(argv.end(), more.begin(), more.end());
    server_ = std::make_unique<io::Process>(argv, /*read_output=*/false);
    ASSERT_TRUE(eventually([&] { return server_->wait(0) || state() == "ready"; }));
    ASSERT_EQ(state(), "ready") << server_->errors();
  }
  int end_server(int signal) {
    ::kill(server_->id(), signal);
    return wait_for_server();
  }
  int wait_for_server() {
    const auto status = server_->wait(kLimit);
    EXPECT_TRUE(status) << "it hangs";
    server_.reset();
    return code_of(status.value_or(0));
  }

  fs::path socket() const { return dir_ / "flotilla/serve.sock"; }
  json status() const {
    Caller caller(socket());
    return caller.is_there() ? caller.ask({{"op", "status"}}) : json();
  }
  std::string state() const {
    const json answer = status();
    return answer.is_object() ? answer.value("state", "") : "";
  }

  // `frames`: 9 takes a moment, kLong long enough to be met on its way.
  static constexpr int kLong = 257;
  std::string job(const std::string& output, int frames = 9) const {
    return fmt::format(
        "models:\n  checkpoint: {0}/ltx23-dev.safetensors\n"
        "  spatial_upsampler: {0}/ltx23-spatial-upscaler-x2.safetensors\n"
        "  text_encoder: {0}/gemma\nprompt: a boat\nseed: 3\ndevice: cpu\nprecision: fp32\n"
        "video: {{width: 256, height: 256, num_frames: {1}, frame_rate: 24}}\n"
        "output: {{path: {2}, overwrite: true}}\n",
        test::tiny_dir().string(), frames, (dir_ / output).string());
  }
  std::string job_file(const std::string& output, int frames = 9) const {
    const fs::path file = dir_ / (output + ".yaml");
    test::write_file(file, job(output, frames));
    return file.string();
  }
  json submit(const std::string& output, int frames = 9) const {
    return {{"op", "submit"}, {"job_yaml", job(output, frames)}};
  }
  std::string file(const std::string& name) const { return test::read_file(dir_ / name); }

  static std::string text_of(const fs::path& file) {
    std::ifstream in(file);
    return {(std::istreambuf_iterator<char>(in)), {}};
  }
  // Ranks of this test's servers.
  std::vector<pid_t> ranks() const {
    std::vector<pid_t> found;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc", gone)) {
      const std::string command = text_of(entry.path() / "cmdline");
      if (command.starts_with(FLOTILLA_PROGRAM) &&
          command.ends_with(std::string("worker") + '\0') &&
          text_of(entry.path() / "environ").find(dir_.path().string()) != std::string::npos)
        found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
  }
  // Of a process; "" without it.
  static std::string variable_of(pid_t process, const std::string& name) {
    const std::string all = '\0' + text_of(fmt::format("/proc/{}/environ", process));
    const size_t found = all.find('\0' + name + '=');
    return found == std::string::npos ? "" : all.substr(found + name.size() + 2).c_str();
  }
  // How Open MPI names the shared memory of this test's ranks.
  std::string name_of_shared_memory() const {
    const auto job = std::stoul(variable_of(ranks().at(0), "OMPI_MCA_ess_base_jobid"));
    return fmt::format(".{}.{:x}.", ::getuid(), job);
  }
  static bool has_file(const fs::path& folder, const std::string& part) {
    const auto files = fs::directory_iterator(folder);
    return std::any_of(begin(files), end(files), [&](const auto& entry) {
      return entry.path().filename().string().find(part) != std::string::npos;
    });
  }

  test::TempDir dir_;
  std::unique_ptr<io::Process> server_;
};

TEST_F(ServeTest, JobsOfAWarmServerEqualColdRuns) {
  const End cold = run({"run", job_file("cold.y4m"), "--ranks", "2"});
  ASSERT_EQ(cold.code, 0) << cold.err;
  serve();
  struct stat facts {};
  ASSERT_EQ(::stat(socket().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat(socket().parent_path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700U);

  const End first = run({"submit", job_file("first.y4m")});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("first.y4m"), HasSubstr("seed")));
  const End second =
      run({"submit", job_file("x.y4m"), "--set", "output.path=" + (dir_ / "second.y4m").string(),
           "--events", "-", "--preview-every", "3"});
  ASSERT_EQ(second.code, 0) << second.err;
  const size_t begin = second.out.find(R"({"event":"done")");
  ASSERT_NE(begin, std::string::npos) << second.out;
  EXPECT_THAT(second.out, AllOf(HasSubstr(R"({"event":"accepted")"), HasSubstr("eta_s"),
                                // The beginning of every PNG.
                                HasSubstr(R"("data":"iVBORw0KGgo)")));
  const json done = json::parse(second.out.substr(begin));
  EXPECT_EQ(done.at("warm"), true);
  EXPECT_EQ(done.at("job"), 2);
  EXPECT_GT(done.at("overhead_s").get<double>(), 0);
  EXPECT_EQ(file("first.y4m"), file("cold.y4m"));
  EXPECT_EQ(file("second.y4m"), file("cold.y4m"));

  // A job that is refused costs itself only, and its exit code is that of a run.
  const End wrong =
      run({"submit", job_file("a.y4m"), "--set", "models.checkpoint=none.safetensors"});
  EXPECT_EQ(wrong.code, 3) << wrong.err;
  EXPECT_THAT(wrong.err, HasSubstr("none.safetensors"));
  const End told = run({"status"});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out, AllOf(HasSubstr("transformer"), HasSubstr("jobs_done     2"),
                              HasSubstr("jobs_failed   1"), HasSubstr("MiB")));
  EXPECT_EQ(end_server(SIGTERM), 0);
  EXPECT_FALSE(fs::exists(socket()));
  EXPECT_EQ(run({"status"}).code, 6);
}

TEST_F(ServeTest, BusyIsAnAnswerAndACallerMayGo) {
  serve();
  {
    Caller caller(socket());
    caller.say(submit("long.y4m", kLong).dump());
    EXPECT_EQ(caller.hear("step").value("event", ""), "step");
    const End busy = run({"submit", job_file("other.y4m")});
    EXPECT_EQ(busy.code, 9) << busy.err;
    EXPECT_THAT(busy.err, HasSubstr("busy with job 1"));
    EXPECT_EQ(status().at("job").at("job"), 1);
  }
  EXPECT_EQ(state(), "running");
  const End cancelled = run({"cancel"});
  EXPECT_EQ(cancelled.code, 0) << cancelled.err;
  ASSERT_TRUE(eventually([&] { return state() == "ready"; }));
  EXPECT_EQ(status().at("jobs_stopped"), 1);
  EXPECT_FALSE(fs::exists(dir_ / "long.y4m"));
  EXPECT_EQ(run({"cancel"}).code, 2);
  EXPECT_EQ(run({"submit", job_file("next.y4m")}).code, 0);

  // Ctrl-C of a client that asked for it.
  io::Process client(
      {FLOTILLA_PROGRAM, "submit", job_file("long.y4m", kLong), "--cancel-on-interrupt"},
      /*read_output=*/false);
  ASSERT_TRUE(eventually([&] {
    const json now = status();
    return now.at("job").is_object() && now.at("job").contains("step");
  }));
  ::kill(client.id(), SIGINT);
  EXPECT_EQ(code_of(client.wait(kLimit).value_or(0)), 75) << client.errors();
  EXPECT_THAT(client.errors(), HasSubstr("stopped by a request to cancel"));
  EXPECT_EQ(run({"submit", job_file("last.y4m"), "--detach"}).code, 0);
  EXPECT_TRUE(eventually([&] { return status().at("jobs_done") == 2; }));
  EXPECT_EQ(file("last.y4m"), file("next.y4m"));
}

TEST_F(ServeTest, HostileCallersGetAnErrorLineAndTheServerLives) {
  serve();
  Caller caller(socket());
  for (const char* line :
       {"", "hello", "[1, 2]", "{\"op\": 1}", "{\"op\": \"format\"}", "{\"op\": \"submit\"}",
        "{\"op\": \"status\", \"x\": 1}", "{\"op\": \"cancel\", \"job\": -1}",
        "{\"op\": \"submit\", \"job_yaml\": 3}",
        "{\"op\": \"submit\", \"job_yaml\": \"a: b\", \"preview_every\": 0}",
        "{\"op\": \"submit\", \"job_yaml\": \"a: b\", \"preview_every\": \"2\"}",
        "{\"op\": \"submit\", \"job_yaml\": \"a: b\", \"preview_every\": 1.5}",
        "{\"op\": \"status\", \"op\": \"shutdown\"}", "\xff\xfe\x00",
        "{\"op\": \"submit\", \"job_yaml\": \"a: b\", \"base_folder\": \"here\"}"}) {
    caller.say(line);
    const json answer = caller.hear();
    ASSERT_TRUE(answer.is_object()) << line;
    EXPECT_EQ(answer.value("event", ""), "error") << line;
    EXPECT_EQ(answer.value("exit_code", 0), 2) << line;
  }
  caller.say(json{{"op", "submit"}, {"job_yaml", "nonsense: [1"}}.dump());
  EXPECT_EQ(caller.hear("done").value("kind", ""), "config");
  for (const std::string& folder : {dir_.path().string() + '\0', (dir_ / "none").string()}) {
    json request = submit("a.y4m");
    request["base_folder"] = folder;
    caller.say(request.dump());
    EXPECT_THAT(caller.hear("done").value("message", ""), HasSubstr("is no folder"));
  }
  caller.say(std::string(1 << 20, '['));
  EXPECT_EQ(caller.hear().value("event", ""), "error");
  std::thread flood([&] {
    Caller other(socket());
    for (int i = 0; i < 40; ++i) other.say(std::string(100'000, 'x'));
  });
  flood.join();
  std::vector<std::unique_ptr<Caller>> crowd;
  for (int i = 0; i < 100; ++i) crowd.push_back(std::make_unique<Caller>(socket()));
  json refused;
  ASSERT_TRUE(eventually([&] {
    refused = crowd.back()->ask({{"op", "status"}});
    return refused.is_object();
  }));
  EXPECT_THAT(refused.value("message", ""), HasSubstr("too many callers"));
  crowd.clear();
  EXPECT_TRUE(eventually([&] { return state() == "ready"; }));
  // A caller that ends within a line, and one that goes before it hears.
  const std::string status = R"({"op": "status"})";
  for (const auto& [said, heard] : {std::pair(status, "status"), {status.substr(0, 9), "error"}}) {
    const Caller gone(socket());
    gone.say_part(said);
    Caller half(socket());
    half.say_part(said);
    half.say_no_more();
    EXPECT_EQ(half.hear().value("event", ""), heard);
    EXPECT_TRUE(half.hear().is_null());
  }
  EXPECT_EQ(run({"submit", job_file("a.y4m")}).code, 0);
}

TEST_F(ServeTest, SocketsOfDeadServersAreReplacedAndThoseOfLivingOnesAreNot) {
  serve();
  const pid_t first = server_->id();
  const End second = run({"serve", "--ranks", "2"});
  EXPECT_EQ(second.code, 9);
  EXPECT_THAT(second.err, HasSubstr(fmt::format("(process {})", first)));
  const std::string memory = name_of_shared_memory();
  EXPECT_TRUE(has_file("/dev/shm", memory));
  EXPECT_EQ(end_server(SIGKILL), 128 + SIGKILL);
  EXPECT_TRUE(fs::exists(socket()));
  EXPECT_EQ(run({"submit", job_file("a.y4m")}).code, 6);
  ASSERT_TRUE(eventually([&] { return ranks().empty(); }, 20)) << "ranks outlive their server";
  EXPECT_TRUE(eventually([&] { return !has_file("/dev/shm", memory); }, 20)) << memory;
  serve();

  // SIGTERM stops the job in flight.
  Caller caller(socket());
  caller.say(submit("long.y4m", kLong).dump());
  EXPECT_EQ(caller.hear("step").value("event", ""), "step");
  EXPECT_EQ(end_server(SIGTERM), 75);
  const json stopped = caller.hear("done");
  EXPECT_EQ(stopped.value("kind", ""), "stopped");
  EXPECT_THAT(stopped.value("message", ""), HasSubstr("stopped by SIGTERM"));
  EXPECT_TRUE(caller.hear().is_null());
  EXPECT_FALSE(fs::exists(socket()));

  test::write_file(dir_ / "file", "mine");
  EXPECT_EQ(run({"serve", "--socket", (dir_ / "file").string()}).code, 8);
  EXPECT_EQ(file("file"), "mine");
  fs::permissions(socket().parent_path(), fs::perms::group_all, fs::perm_options::add);
  EXPECT_EQ(run({"serve"}).code, 8);
}

TEST_F(ServeTest, RanksThatDieAreStartedAnew) {
  serve();
  Caller caller(socket());
  caller.say(submit("long.y4m", kLong).dump());
  EXPECT_EQ(caller.hear("step").value("event", ""), "step");
  ASSERT_EQ(ranks().size(), 2U);
  ::kill(ranks().back(), SIGKILL);
  EXPECT_EQ(caller.hear("done").value("exit_code", 0), 6);
  ASSERT_TRUE(eventually([&] { return state() == "ready"; }));
  EXPECT_EQ(status().at("starts"), 2);
  EXPECT_EQ(run({"submit", job_file("a.y4m")}).code, 0);

  // Between two jobs: the next one does not suffer.
  ::kill(ranks().front(), SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(run({"submit", job_file("b.y4m")}).code, 0);
  EXPECT_EQ(status().at("starts"), 3);
  EXPECT_EQ(file("a.y4m"), file("b.y4m"));
  Caller(socket()).ask({{"op", "shutdown"}});
  EXPECT_EQ(wait_for_server(), 0);
}

// The job cannot come to a safe point, as one of its ranks stands still.
TEST_F(ServeTest, ASecondSignalEndsAllAtOnce) {
  serve({"--warm-up", job_file("w.y4m")});
  EXPECT_TRUE(has_file(dir_.path(), "warm-up"));
  Caller caller(socket());
  caller.say(submit("long.y4m", kLong).dump());
  EXPECT_EQ(caller.hear("step").value("event", ""), "step");
  const std::string memory = name_of_shared_memory();
  ::kill(ranks().back(), SIGSTOP);
  ::kill(server_->id(), SIGTERM);
  EXPECT_TRUE(eventually([&] { return state() == "ending"; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // not the same signal twice
  EXPECT_EQ(end_server(SIGINT), 128 + SIGINT);
  EXPECT_TRUE(caller.hear("done").is_null());
  EXPECT_TRUE(eventually([&] { return ranks().empty(); }, 20)) << "ranks outlive their server";
  for (const auto& [folder, part] :
       {std::pair(dir_.path(), "warm-up"), {dir_.path(), "long"}, {socket().parent_path(), "sock"}})
    EXPECT_FALSE(has_file(folder, part)) << part;
  EXPECT_TRUE(eventually([&] { return !has_file("/dev/shm", memory); }, 20)) << memory;
}

TEST_F(ServeTest, AJobBeyondItsLimitCostsItselfOnly) {
  serve({"--job-limit", "4"}, {"--devices", "GPU-1a2b,7"});
  ASSERT_EQ(ranks().size(), 2U) << "one for each of --devices";
  for (const pid_t rank : ranks())
    EXPECT_EQ(variable_of(rank, "CUDA_VISIBLE_DEVICES"), "GPU-1a2b,7");
  Caller caller(socket());
  caller.say(submit("long.y4m", kLong).dump());
  EXPECT_EQ(caller.hear("step").value("event", ""), "step");
  ::kill(ranks().back(), SIGSTOP);
  const json error = caller.hear("done");
  EXPECT_EQ(error.value("exit_code", 0), 6);
  EXPECT_THAT(error.value("message", ""), HasSubstr("not ended within its 4 s"));
  ASSERT_TRUE(eventually([&] { return state() == "ready"; }));
  EXPECT_EQ(status().at("starts"), 2);
  EXPECT_EQ(run({"submit", job_file("a.y4m")}).code, 0);
}

TEST_F(ServeTest, AListOfJobsNeedsNoSocket) {
  const std::string list = job("one.y4m") + "---\n" + "# nothing\n---\n" + job("two.y4m") +
                           "---\n" + submit("three.y4m").dump() + "\n{\"op\":\"status\"}\n" +
                           "{\"op\":\"nonsense\"}\n" + job("caf\xe9.y4m");
  test::write_file(dir_ / "list", list);
  const End end = run({"serve", "--ranks", "2", "--warm-up", job_file("w.y4m"), "--sizes",
                       "128x128x9", "--jobs", (dir_ / "list").string()});
  EXPECT_EQ(end.code, 9) << end.err;
  std::vector<json> done;
  std::istringstream lines(end.out);
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line);
    if (event["event"] == "done") done.push_back(event);
  }
  ASSERT_EQ(done.size(), 3U) << end.out;
  EXPECT_EQ(done.front().at("warm"), true);
  EXPECT_THAT(end.out, AllOf(HasSubstr("nonsense"), HasSubstr("not UTF-8"),
                             HasSubstr(R"({"event":"status")")));
  EXPECT_EQ(file("one.y4m"), file("two.y4m"));
  EXPECT_EQ(file("one.y4m"), file("three.y4m"));
  EXPECT_FALSE(fs::exists(dir_ / "w.y4m"));
  EXPECT_FALSE(has_file(dir_.path(), "warm-up"));
  EXPECT_FALSE(fs::exists(socket()));
}

TEST_F(ServeTest, OptionsThatDoNotFitAreRefused) {
  for (const Arguments& wrong :
       {Arguments{"serve", "job.yaml"}, Arguments{"serve", "--sizes", "1x2x3"},
        Arguments{"serve", "--ranks", "0"}, Arguments{"serve", "--grace", "-1"},
        Arguments{"serve", "--jobs", "-", "--socket", "x"}, Arguments{"serve", "--devices", ""},
        Arguments{"serve", "--devices", "2,,3"}, Arguments{"serve", "--devices", "0,0"},
        Arguments{"serve", "--job-limit", "0"}, Arguments{"serve", "--job-limit", "nan"},
        Arguments{"serve", "--warm-up", job_file("a.y4m"), "--sizes", "12x13"},
        Arguments{"submit", job_file("a.y4m"), "--wait", "--detach"},
        Arguments{"submit", job_file("a.y4m"), "--preview-every", "2"},
        Arguments{"submit", job_file("a.y4m"), "--events", "-", "--preview-every", "0"},
        Arguments{"cancel", "1"}})
    EXPECT_EQ(run(wrong).code, 2) << wrong.back();
}

}  // namespace
}  // namespace flotilla
