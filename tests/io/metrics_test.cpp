#include "io/metrics.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "io/metrics_csv.h"
#include "io_support.h"
#include "support/temp_dir.h"

namespace flotilla::io {
namespace {

// Every field name with its place, values left out.
std::vector<std::string> field_names(const Metrics::Json& json, const std::string& prefix = "") {
  std::vector<std::string> names;
  for (const auto& [key, value] : json.items()) {
    names.push_back(prefix + key);
    if (!value.is_object()) continue;
    for (const std::string& name : field_names(value, prefix + key + ".")) names.push_back(name);
  }
  return names;
}

Metrics sample(double scale) {
  Metrics metrics;
  metrics.add_phase("load", {1 * scale, 2 * scale, 3 * scale});
  metrics.add_phase("stage_1", {1 * scale, 1 * scale, 1 * scale});
  metrics.add_step("stage_1", {0.1, 0.2, 0.3 * scale});
  metrics.add_step("stage_1", {0.1, 0.2, 0.4 * scale});
  metrics.set_bytes_read(123);
  metrics.set_padding_fraction(0.25);
  metrics.set_peak_bytes(1000, std::nullopt);
  metrics.set_exchange(77, 0.5);
  metrics.set_total_s(4);
  return metrics;
}

TEST(MetricsTest, FixedNamesHoldTheFigures) {
  const test::TempDir folder;
  sample(1).write(folder / "m.json", false);
  const auto json = nlohmann::json::parse(test::read_file(folder / "m.json"));
  EXPECT_EQ(json.at("bytes_read_total"), 123);
  EXPECT_EQ(json.at("padding_fraction"), 0.25);
  EXPECT_EQ(json.at("peak_host_bytes"), 1000);
  EXPECT_TRUE(json.at("peak_device_bytes").is_null());
  EXPECT_EQ(json.at("exchange").at("bytes"), 77);
  EXPECT_EQ(json.at("exchange").at("seconds"), 0.5);
  EXPECT_EQ(json.at("phases").at("load_s"), 3.0);
  EXPECT_EQ(json.at("over_ranks").at("phases").at("load_s").at("median"), 2.0);
  EXPECT_EQ(json.at("steps").at("stage_1").size(), 2);
  EXPECT_EQ(json.at("steps").at("stage_1")[1], 0.4);
}

TEST(MetricsTest, FieldsAreTheSameInTheSameOrderEveryTime) {
  EXPECT_EQ(field_names(sample(1).json()), field_names(sample(3).json()));
  const auto bare = field_names(Metrics().json());
  const auto full = field_names(sample(1).json());
  for (const std::string& name : bare)
    EXPECT_NE(std::find(full.begin(), full.end(), name), full.end()) << name;
}

TEST(MetricsTest, PhaseThatComesTwiceIsSummed) {
  Metrics metrics;
  metrics.add_phase("decode", {1, 2, 3});
  metrics.add_phase("decode", {1, 2, 3});
  EXPECT_EQ(metrics.json()["phases"]["decode_s"], 6.0);
  EXPECT_EQ(metrics.json()["over_ranks"]["phases"]["decode_s"]["min"], 2.0);
}

TEST(MetricsTest, DeclaredPhasesKeepTheirPlaceAndAreNullUntilTheyRun) {
  Metrics metrics;
  metrics.declare_phases({"text", "sound", "decode"});
  metrics.add_phase("decode", {1, 2, 3});
  metrics.add_phase("text", {1, 1, 1});
  EXPECT_EQ(metrics.json()["phases"].dump(), R"({"text_s":1.0,"sound_s":null,"decode_s":3.0})");
  EXPECT_TRUE(metrics.json()["over_ranks"]["phases"]["sound_s"].is_null());
  EXPECT_EQ(metrics.json()["over_ranks"]["phases"]["decode_s"]["median"], 2.0);
}

TEST(MetricsTest, TruncationIsNullUntilAPromptWasRead) {
  Metrics metrics;
  EXPECT_TRUE(metrics.json()["prompt_truncated"].is_null());
  metrics.set_prompt_truncated(false);
  EXPECT_EQ(metrics.json()["prompt_truncated"], false);
}

TEST(MetricsTest, SpreadTakesTheMedianOfEvenAndOddCounts) {
  EXPECT_EQ(spread_over_ranks({3, 1, 2}).median, 2);
  EXPECT_EQ(spread_over_ranks({4, 1, 2, 3}).median, 2.5);
  EXPECT_EQ(spread_over_ranks({5}).min, 5);
}

TEST(MetricsTest, EnvironmentHoldsKnownVariablesAndNoSecrets) {
  const auto variable = [](const char* name) -> const char* {
    const std::string text = name;
    if (text == "SLURM_JOB_ID") return "42";
    return text == "USER" || text == "HOME" || text == "API_TOKEN" ? "secret" : nullptr;
  };
  const Metrics::Json json = capture_environment(variable);
  EXPECT_EQ(json["variables"]["SLURM_JOB_ID"], "42");
  EXPECT_TRUE(json["variables"]["NCCL_ALGO"].is_null());
  EXPECT_FALSE(json["kernel"].get<std::string>().empty());
  EXPECT_EQ(json.dump().find("secret"), std::string::npos);
  EXPECT_EQ(field_names(json),
            field_names(capture_environment([](const char*) { return nullptr; })));
}

TEST(MetricsTest, RestartCountIsANumberOrNothing) {
  const auto count_of = [](const char* text) {
    return restart_count([text](const char*) { return text; });
  };
  EXPECT_EQ(count_of("2"), 2);
  EXPECT_EQ(count_of(nullptr), std::nullopt);
  EXPECT_EQ(count_of(""), std::nullopt);
  EXPECT_EQ(count_of("2x"), std::nullopt);
  EXPECT_EQ(count_of("-1"), std::nullopt);
  EXPECT_TRUE(capture_slurm([](const char*) { return nullptr; }).is_null());
  const auto slurm = capture_slurm(
      [](const char* name) { return std::string_view(name) == "SLURM_JOB_ID" ? "7" : nullptr; });
  EXPECT_EQ(
      slurm.dump(),
      R"({"job_id":"7","array_job_id":null,"array_task_id":null,"step_id":null,"restart_count":null})");
}

TEST(MetricsTest, TableHasTheSameColumnsWhateverIsKnown) {
  const std::string bare = metrics_csv(Metrics().json());
  const std::string full = metrics_csv(sample(1).json());
  const auto header = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  EXPECT_EQ(header(bare), header(full));
  EXPECT_EQ(std::count(full.begin(), full.end(), '\n'), 2);
  const auto cells = [&](const std::string& text) {
    const std::string row = text.substr(text.find('\n') + 1);
    return std::count(row.begin(), row.end(), ',') + 1;
  };
  EXPECT_EQ(cells(full), static_cast<int64_t>(metrics_columns().size()));
  EXPECT_EQ(cells(bare), cells(full));
}

TEST(MetricsTest, TableTakesMediansAndQuotesWhatNeedsIt) {
  EXPECT_EQ(csv_cell("plain"), "plain");
  EXPECT_EQ(csv_cell("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
  const test::TempDir folder;
  Metrics metrics = sample(1);
  metrics.set_block("environment", {{"host", "a,b"}});
  metrics.write(folder / "m.csv", false);
  const std::string text = test::read_file(folder / "m.csv");
  EXPECT_NE(text.find(",\"a,b\","), std::string::npos);
  EXPECT_NE(text.find(",0.35,"), std::string::npos);  // of the steps 0.3 and 0.4
}

TEST(MetricsTest, BytesThatAreNoTextDoNotCostTheFile) {
  const test::TempDir folder;
  Metrics metrics;
  metrics.set_extra("path", "bad \xff byte");
  metrics.write(folder / "m.json", false);
  EXPECT_TRUE(nlohmann::json::accept(test::read_file(folder / "m.json")));
}

TEST(MetricsTest, PeakMemoryGrowsWithUse) {
  const int64_t before = peak_host_bytes();
  EXPECT_GT(before, 0);
  std::vector<char> block(256 << 20, 'x');
  EXPECT_EQ(block[block.size() / 2], 'x');
  EXPECT_GT(peak_host_bytes(), before + (100 << 20));
}

}  // namespace
}  // namespace flotilla::io
