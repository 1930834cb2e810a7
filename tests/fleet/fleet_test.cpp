// Fleets of two and of four ranks with a scripted runner (fleet_worker.cpp): what each way to go
// wrong comes to at the controller, and that nothing of a fleet is left.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <future>
#include <optional>
#include <utility>

#include "fleet_fixture.h"

namespace flotilla::fleet {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class FleetTest : public FleetFixture, public testing::WithParamInterface<int> {
 protected:
  int ranks() const { return GetParam(); }
  ControllerOptions options(const std::string& setup_fault = "") const {
    std::vector<std::string> arguments;
    if (!setup_fault.empty()) arguments.push_back(setup_fault);
    ControllerOptions options = marked(FLOTILLA_FLEET_WORKER, arguments);
    options.ranks = ranks();
    options.start_timeout_s = 120;
    options.grace_s = 2;
    return options;
  }
  std::vector<int> all_ranks() const {
    std::vector<int> all;
    for (int rank = 0; rank < ranks(); ++rank) all.push_back(rank);
    return all;
  }

  static void expect_works(Controller& fleet) {
    Stream stream = fleet.stream(json{{"do", "echo"}, {"word", "still here"}});
    const auto item = stream.next();
    ASSERT_TRUE(item);
    EXPECT_EQ(item->body.at("word"), "still here");
    EXPECT_FALSE(stream.next());
    EXPECT_TRUE(fleet.is_alive());
  }
  // Later calls tell the same cause, and the processes go without being asked.
  void expect_poisoned(Controller& fleet, const std::string& words) const {
    EXPECT_FALSE(fleet.is_alive());
    for (int i = 0; i < 2; ++i) {
      try {
        fleet.stream(json{{"do", "echo"}});
        FAIL() << "a poisoned fleet took a job";
      } catch (const PoisonedError& error) {
        EXPECT_THAT(error.what(), HasSubstr(words));
      }
    }
    EXPECT_TRUE(eventually([&] { return processes().empty(); }));
  }
  template <typename Expected>
  static std::optional<Expected> failure_of(Stream stream) {
    try {
      stream.drain();
      ADD_FAILURE() << "the job went well";
    } catch (const Expected& error) {
      return error;
    } catch (const Error& error) {
      ADD_FAILURE() << "another error: " << error.what();
    }
    return std::nullopt;
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, FleetTest, testing::Values(2, 4),
                         testing::PrintToStringParamName());

TEST_P(FleetTest, TensorsComeBackAsTheyWere) {
  Controller fleet(options());
  Message job(json{{"do", "echo"}, {"text", "Grüße \n\t\"x\""}});
  job.tensors["bf16"] = at::randn({3, 5}).to(at::kBFloat16).t();  // not contiguous
  job.tensors["empty"] = at::empty({0, 7}, at::kLong);
  job.tensors["scalar"] = at::scalar_tensor(0.1, at::kDouble);
  job.tensors["flags"] = at::tensor({1, 0, 1}, at::kByte).to(at::kBool);
  job.tensors["large"] = at::arange(3'000'000, at::kInt);
  Stream stream = fleet.stream(job);
  const auto item = stream.next();
  ASSERT_TRUE(item);
  EXPECT_EQ(item->body.at("text"), job.body.at("text"));
  EXPECT_EQ(item->tensors.size(), job.tensors.size());
  for (const auto& [name, tensor] : job.tensors) {
    const at::Tensor& got = item->tensors.at(name);
    EXPECT_EQ(got.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(got.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(got.equal(tensor)) << name;
  }
  EXPECT_FALSE(stream.next());
  EXPECT_FALSE(stream.next()) << "the end stays the end";
}

TEST_P(FleetTest, RanksAreSetUpOnceAndWorkTogether) {
  Controller fleet(options());
  for (int job = 1; job <= 3; ++job) {
    Stream sum = fleet.stream(json{{"do", "sum"}});
    const auto item = sum.next();
    ASSERT_TRUE(item);
    EXPECT_EQ(item->tensors.at("sum")[0].item<double>(), ranks() * (ranks() - 1) / 2);
    sum.drain();
    Stream echo = fleet.stream(json{{"do", "echo"}});
    EXPECT_EQ(echo.next()->body.at("jobs"), 2 * job);
    echo.drain();
  }
  EXPECT_EQ(processes().size(), static_cast<size_t>(ranks()) + 1);
  EXPECT_EQ(names_of_shared_memory().size(), static_cast<size_t>(ranks()) + 1);
  EXPECT_THAT(left_shared_memory(), Not(IsEmpty())) << "in use, so the look at its end sees it";
}

TEST_P(FleetTest, ItemsComeWhileTheJobRuns) {
  Controller fleet(options());
  const auto start = Clock::now();
  Stream stream = fleet.stream(json{{"do", "items"}, {"count", 3}, {"pause_ms", 1000}});
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(900)) << "stream() returns at once";
  ASSERT_EQ(stream.next()->body.at("item"), 0);
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(2500));
  EXPECT_EQ(stream.next()->body.at("item"), 1);
  EXPECT_EQ(stream.next()->body.at("item"), 2);
  EXPECT_FALSE(stream.next());
}

TEST_P(FleetTest, OneJobAtATime) {
  Controller fleet(options());
  Stream first = fleet.stream(json{{"do", "items"}, {"count", 2}, {"pause_ms", 200}});
  EXPECT_THROW(fleet.stream(json{{"do", "echo"}}), ControllerBusyError) << "in flight";
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_THROW(fleet.stream(json{{"do", "echo"}}), ControllerBusyError) << "done, but not read";
  first.drain();
  expect_works(fleet);
}

TEST_P(FleetTest, AStreamBelongsToItsThread) {
  Controller fleet(options());
  Stream stream = fleet.stream(json{{"do", "echo"}});
  std::async(std::launch::async, [&] {
    EXPECT_THROW(stream.next(), Error);
    EXPECT_THROW(stream.drain(), Error);
  }).get();
  stream.drain();
}

TEST_P(FleetTest, AnAbandonedStreamLeavesTheFleetBusyUntilItsJobHasEnded) {
  Controller fleet(options());
  const auto start = Clock::now();
  { const Stream dropped = fleet.stream(json{{"do", "items"}, {"count", 2}, {"pause_ms", 1000}}); }
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(1500)) << "no wait";
  EXPECT_THROW(fleet.stream(json{{"do", "echo"}}), ControllerBusyError);
  EXPECT_TRUE(eventually([&] {
    try {
      fleet.stream(json{{"do", "echo"}}).drain();
      return true;
    } catch (const ControllerBusyError&) {
      return false;
    }
  }));
  expect_works(fleet);
}

TEST_P(FleetTest, AnErrorOfAllRanksIsSymmetricAndTheFleetLives) {
  Controller fleet(options());
  for (const auto& [how, kind, words] :
       {std::tuple{"runner", ErrorKind::input, "too large"},
        std::tuple{"invalid", ErrorKind::config, "no such sampler"}}) {
    const auto error =
        failure_of<SymmetricRunnerError>(fleet.stream(json{{"do", "fail"}, {"how", how}}));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), kind);
    EXPECT_EQ(error->ranks(), all_ranks());
    EXPECT_THAT(error->what(), HasSubstr(words));
    expect_works(fleet);
  }
  const auto agreed = failure_of<SymmetricRunnerError>(fleet.stream(json{{"do", "agreed"}}));
  ASSERT_TRUE(agreed);
  EXPECT_EQ(agreed->kind(), ErrorKind::memory);
  EXPECT_THAT(agreed->what(), HasSubstr("rank 1: no room"));
  expect_works(fleet);
}

TEST_P(FleetTest, AnErrorOfSomeRanksIsAsymmetricAndTheFleetLives) {
  testing::internal::CaptureStderr();
  Controller fleet(options());
  const auto one = failure_of<AsymmetricRunnerError>(
      fleet.stream(json{{"do", "fail"}, {"how", "runner"}, {"ranks", {1}}}));
  ASSERT_TRUE(one);
  EXPECT_THAT(one->ranks(), ElementsAre(1));
  EXPECT_EQ(one->kind(), ErrorKind::input);
  EXPECT_THAT(one->what(), HasSubstr("rank 1: the job is too large"));
  expect_works(fleet);
  const auto invalid = failure_of<AsymmetricRunnerError>(
      fleet.stream(json{{"do", "fail"}, {"how", "invalid"}, {"ranks", {0}}}));
  ASSERT_TRUE(invalid);
  EXPECT_THAT(invalid->ranks(), ElementsAre(0));
  EXPECT_EQ(invalid->kind(), ErrorKind::config);
  expect_works(fleet);
  const auto own_words = failure_of<AsymmetricRunnerError>(
      fleet.stream(json{{"do", "fail"}, {"how", "runner_own_words"}}));
  ASSERT_TRUE(own_words);
  EXPECT_EQ(own_words->reports().size(), static_cast<size_t>(ranks()));
  EXPECT_EQ(own_words->ranks(), all_ranks());
  const auto emits = failure_of<AsymmetricRunnerError>(fleet.stream(json{{"do", "emit_anywhere"}}));
  ASSERT_TRUE(emits);
  EXPECT_THAT(emits->what(), HasSubstr("only rank 0"));
  expect_works(fleet);
  fleet.shutdown();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("ERROR "), HasSubstr("the ranks do not agree")));
}

TEST_P(FleetTest, AnythingElsePoisonsTheFleet) {
  struct Case {
    json job;
    const char* words;
    ErrorKind kind;
    std::vector<int> ranks;
  };
  const json one = json::array({1});
  for (const auto& [job, words, kind, at_fault] :
       {Case{{{"do", "fail"}, {"how", "logic"}, {"ranks", one}}, "a bug", ErrorKind::internal, {1}},
        Case{{{"do", "fail"}, {"how", "error"}, {"ranks", one}},
             "not agreed",
             ErrorKind::input,
             {1}},
        Case{{{"do", "leave_others"}}, "too late", ErrorKind::input, {1}},
        Case{{{"do", "fail"}, {"how", "kill"}, {"ranks", one}},
             "rank 1 ended",
             ErrorKind::communication,
             {1}},
        Case{{{"do", "fail"}, {"how", "_exit"}, {"ranks", one}},
             "rank 1 ended",
             ErrorKind::communication,
             {1}}}) {
    Controller fleet(options());
    const auto error = failure_of<PoisonedError>(fleet.stream(job));
    ASSERT_TRUE(error) << job;
    EXPECT_THAT(error->what(), HasSubstr(words));
    EXPECT_EQ(error->kind(), kind) << error->what();
    EXPECT_EQ(error->ranks(), at_fault) << error->what();
    expect_poisoned(fleet, words);
  }
}

TEST_P(FleetTest, AJobBeyondItsTimePoisonsTheFleet) {
  ControllerOptions limited = options();
  limited.job_timeout_s = 4;
  Controller fleet(limited);
  expect_works(fleet);
  const auto error = failure_of<PoisonedError>(
      fleet.stream(json{{"do", "fail"}, {"how", "hang"}, {"ranks", {1}}}));
  ASSERT_TRUE(error);
  expect_poisoned(fleet, "not ended within its 4 s");
}

TEST_P(FleetTest, AStoppedRankPoisonsTheFleet) {
  Controller fleet(options());
  const auto error = failure_of<PoisonedError>(
      fleet.stream(json{{"do", "fail"}, {"how", "stop"}, {"ranks", {1}}}));
  ASSERT_TRUE(error);
  EXPECT_THAT(error->ranks(), ElementsAre(1));
  expect_poisoned(fleet, "rank 1 has given no sign of life");
}

TEST_P(FleetTest, ARankThatDiesBetweenTwoJobsPoisonsTheFleet) {
  Controller fleet(options());
  const auto all = processes();
  ::kill(*std::max_element(all.begin(), all.end()), SIGKILL);  // the youngest: a rank
  EXPECT_TRUE(eventually([&] { return !fleet.is_alive(); }));
  expect_poisoned(fleet, "ended");
}

TEST_P(FleetTest, ShutdownEndsAnIdleFleet) {
  ControllerOptions patient = options();
  patient.grace_s = 60;
  Controller fleet(patient);
  const auto start = Clock::now();
  fleet.shutdown();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(50)) << "not by force";
  EXPECT_THAT(processes(), IsEmpty());
  fleet.shutdown();
  EXPECT_FALSE(fleet.is_alive());
  EXPECT_THROW(fleet.stream(json{{"do", "echo"}}), ClosedError);
}

TEST_P(FleetTest, ShutdownFromAnotherThreadEndsAJobThatHangs) {
  Controller fleet(options());
  Stream stream = fleet.stream(json{{"do", "fail"}, {"how", "hang"}, {"ranks", {1}}});
  const auto start = Clock::now();
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      fleet.shutdown();
    });
  }
  EXPECT_THROW(stream.next(), ClosedError);
  for (auto& other : others) other.join();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  EXPECT_THAT(processes(), IsEmpty());
}

TEST_P(FleetTest, ShutdownEndsAJobThatNobodyReads) {
  ControllerOptions small = options();
  small.queue_bytes = 1 << 20;
  Controller fleet(small);
  Stream stream = fleet.stream(json{{"do", "items"}, {"count", 1000}, {"bytes", 1 << 20}});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  fleet.shutdown();
  int items = 0;
  try {
    while (stream.next()) ++items;
    FAIL() << "the job cannot have ended";
  } catch (const ClosedError&) {
    EXPECT_GT(items, 0);
    EXPECT_LT(items, 20) << "the driver waits while nobody reads";
  }
}

TEST_P(FleetTest, ShutdownAsksTheJobToStop) {
  ControllerOptions patient = options();
  patient.grace_s = 30;
  Controller fleet(patient);
  Stream stream = fleet.stream(json{{"do", "wait_for_stop"}});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  fleet.shutdown();
  EXPECT_EQ(stream.next()->body.at("stopped"), SIGTERM);
  EXPECT_FALSE(stream.next()) << "the job came to its own end";
}

TEST_P(FleetTest, ACancelledJobStopsAndTheNextOneIsNotMeant) {
  Controller fleet(options());
  fleet.cancel();
  for (const int signal : {SIGINT, SIGHUP}) {
    Stream stream = fleet.stream(json{{"do", "wait_for_stop"}});
    fleet.cancel(signal);
    EXPECT_EQ(stream.next()->body.at("stopped"), signal);
    stream.drain();
    fleet.cancel();
    Stream next = fleet.stream(json{{"do", "echo"}});
    EXPECT_EQ(next.next()->body.at("stop_signal"), 0);
    next.drain();
  }
}

TEST_P(FleetTest, AFleetThatDoesNotComeUpSaysWhichRanks) {
  const auto start_error = [&](const std::string& fault, double limit_s) {
    ControllerOptions short_of_time = options(fault);
    short_of_time.start_timeout_s = limit_s;
    try {
      const Controller fleet(short_of_time);
    } catch (const StartError& error) {
      return std::string(error.what());
    }
    return std::string("it came up");
  };
  auto silent = std::async(std::launch::async, start_error, "silent:1", 10);
  EXPECT_THAT(start_error("hang:1", 10),
              HasSubstr("within 10 s: rank 1 (started, but not set up)"));
  EXPECT_THAT(silent.get(), HasSubstr("within 10 s: rank 1 (not started)"));
  EXPECT_THAT(processes(), IsEmpty());
  EXPECT_THAT(start_error("runner:1", 60), HasSubstr("rank 1: the job is too large"));
  EXPECT_THAT(start_error("kill:1", 60), HasSubstr("rank 1 ended"));
  EXPECT_THAT(processes(), IsEmpty());
}

TEST_P(FleetTest, TwoFleetsOnDisjointDevicesWorkSideBySide) {
  const auto on = [&](const char* devices) {
    ControllerOptions placed = options();
    placed.devices = devices;
    return placed;
  };
  Controller one(on("0,1")), two(on("GPU-12ab,3"));
  const std::string first = (folder_ / "first").string(), second = (folder_ / "second").string();
  // Each job ends only while the other one is there.
  Stream of_one = one.stream(json{{"do", "meet"}, {"mine", first}, {"other", second}});
  EXPECT_THROW(one.stream(json{{"do", "echo"}}), ControllerBusyError);
  Stream of_two = two.stream(json{{"do", "meet"}, {"mine", second}, {"other", first}});
  EXPECT_EQ(of_one.next()->body.at("devices"), "0,1");
  EXPECT_EQ(of_two.next()->body.at("devices"), "GPU-12ab,3");
  of_one.drain();
  of_two.drain();

  failure_of<PoisonedError>(one.stream(json{{"do", "fail"}, {"how", "kill"}, {"ranks", {1}}}));
  expect_works(two);
  one.shutdown();
  expect_works(two);
}

TEST(FleetOptionsTest, ThoseThatMakeNoSenseAreRefused) {
  const auto refused = [](auto change) {
    ControllerOptions options;
    options.worker = {FLOTILLA_FLEET_WORKER};
    change(options);
    try {
      const Controller fleet(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
      return std::string(error.what());
    }
    return std::string("it came up");
  };
  EXPECT_THAT(refused([](auto& o) { o.ranks = 0; }), HasSubstr("fleet of 0 ranks"));
  EXPECT_THAT(refused([](auto& o) { o.start_timeout_s = 0; }), HasSubstr("limits"));
  EXPECT_THAT(refused([](auto& o) { o.job_timeout_s = -1; }), HasSubstr("limits"));
  for (const char* devices : {",", "0,", "0,,1", "0, 1", "cuda:0", "-1", "GPU- 1"})
    EXPECT_THAT(refused([&](auto& o) { o.devices = devices; }), HasSubstr("is no GPU")) << devices;
  EXPECT_THAT(refused([](auto& o) { o.devices = "2,3,2"; }), HasSubstr("has 2 twice"));
  // A rank of an MPI job cannot hold a fleet.
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  EXPECT_THAT(refused([](auto&) {}), HasSubstr("without mpirun"));
  unsetenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_SIZE");
}

}  // namespace
}  // namespace flotilla::fleet
