// flotilla serve, submit, status and cancel end to end on two ranks: warm jobs equal cold ones,
// busy is an answer, and neither callers that go nor hostile ones nor dead ranks harm the next job.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <sstream>
#include <utility>

#include "serve_fixture.h"

namespace flotilla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
