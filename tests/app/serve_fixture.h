// Servers for tests: one on two ranks, callers of its socket, and what is left of its ranks.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
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
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "io/subprocess.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {

namespace fs = std::filesystem;
using nlohmann::json;
using Arguments = std::vector<std::string>;

inline constexpr double kLimit = 120;

inline int code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

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

}  // namespace flotilla
