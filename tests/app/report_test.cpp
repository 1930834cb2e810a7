// flotilla report: pages that hold what they should, are well-formed, and carry no text of a
// stranger as HTML; looked at in a browser where one is installed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "io/ffmpeg.h"
#include "io/subprocess.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kEvil = "<script>alert(1)</script> \"boat\" & 'sea' </td>";
constexpr const char* kEvilEscaped =
    "&lt;script&gt;alert(1)&lt;/script&gt; &quot;boat&quot; &amp; &#39;sea&#39; &lt;/td&gt;";

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome run_program(const std::vector<std::string>& arguments) {
  const auto result = io::run_process(arguments, {}, /*limit_s=*/120);
  EXPECT_TRUE(WIFEXITED(result.status)) << io::describe_status(result.status);
  return {WEXITSTATUS(result.status), std::string(result.output.begin(), result.output.end()),
          result.errors};
}

Outcome report(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {FLOTILLA_PROGRAM, "report"});
  return run_program(arguments);
}

// What is wrong with the nesting of the page's elements, "" when nothing is. The page is written as
// XML would be, but for the content of style and script.
std::string nesting_fault(const std::string& page) {
  std::vector<std::string> open;
  size_t at = page.find("<html");
  while ((at = page.find('<', at)) != std::string::npos) {
    // Quotes in attributes are escaped, so ">" ends the tag.
    const size_t end = page.find('>', at);
    if (end == std::string::npos) return "a tag without end";
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(tag.starts_with("/") ? 1 : 0,
                                        tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    at = end + 1;
    if (tag.starts_with("/")) {
      if (open.empty() || open.back() != name) return "</" + name + "> closes nothing";
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      open.push_back(name);
      if (name == "style" || name == "script") at = page.find("</" + name, at);
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

std::optional<std::string> find_browser() {
  const char* path = std::getenv("PATH");
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    if (const auto found = io::find_program(name, path != nullptr ? path : ""))
      return found->string();
  }
  return std::nullopt;
}

class ReportTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::string page(const std::string& name) const { return test::read_file(path(name)); }

  // Metrics of a run of two ranks.
  void write_run(const std::string& prompt) {
    const json job = {
        {"schema_version", 1},
        {"prompt", prompt},
        {"models",
         {{"checkpoint", "/m/a"}, {"spatial_upsampler", "/m/b"}, {"text_encoder", "/m/c"}}},
        {"output", {{"path", "/elsewhere/a.mp4"}, {"contact_sheet", "/elsewhere/a.png"}}}};
    const json metrics = {
        {"job", {{"yaml", job.dump()}, {"seed", 7}, {"hash", "0123456789abcdef"}}},
        {"versions", {{"flotilla", "0.1.0"}, {"commit", kEvil}}},
        {"plan", {{"world_size", 2}, {"precision", "bf16"}}},
        {"phases",
         {{"text_s", 1.5}, {"stage_1_s", 4.0}, {"stage_2_s", 4.0}, {"encode_images_s", nullptr}}},
        {"steps", {{"stage_1", {1.0, 3.0}}}},
        {"timeline",
         {{{"rank", 0}, {"phase", "text"}, {"start_s", 0.0}, {"end_s", 1.5}},
          {{"rank", 1}, {"phase", "text"}, {"start_s", 0.1}, {"end_s", 1.5}},
          {{"rank", 1}, {"phase", kEvil}, {"start_s", 1.5}, {"end_s", 9.5}}}},
        {"phases_memory",
         {{"text", {{"host_bytes", {1 << 30, nullptr}}, {"device_bytes", {nullptr, nullptr}}}}}},
        {"exchange", {{"bytes", 1 << 20}, {"seconds", 2.0}}},
        {"peak_host_bytes", 1 << 30}};
    test::write_file(dir_ / "a.json", metrics.dump());
    test::write_file(dir_ / "a.mp4", "the clip");
    test::write_file(dir_ / "a.png", "the sheet");
  }

  static json point(int number, const std::string& state, const json& values, double seconds) {
    json line = {{"point", number},       {"hash", "0123456789abcdef"},
                 {"state", state},        {"name", fmt::format("p{}", number)},
                 {"values", values},      {"seed", 3},
                 {"time_s", 10 + number}, {"output", fmt::format("p{}.mp4", number)}};
    if (state != "started") {
      line["exit_code"] = state == "done" ? 0 : 7;
      line["seconds"] = seconds;
    }
    if (state == "failed") line["error"] = kEvil;
    if (state == "done") line["checksum"] = "feed";
    return line;
  }

  void write_sweep() {
    std::string text;
    const auto add = [&](const json& line) { text += line.dump() + "\n"; };
    add(point(0, "done", {{"prompt", kEvil}, {"seed", "1"}}, 9));
    add(point(1, "failed", {{"prompt", kEvil}, {"seed", "2"}}, 10));
    add(point(2, "started", {{"prompt", "a cat"}, {"seed", "1"}}, 0));
    add(point(2, "done", {{"prompt", "a cat"}, {"seed", "1"}}, 1.5));
    add(point(3, "started", {{"prompt", "a cat"}, {"seed", "2"}}, 0));
    test::write_file(dir_ / "sweep.jsonl", text);
    test::write_file(dir_ / "p0.mp4", "clip 0");
    test::write_file(dir_ / "p2.mp4", "clip 2");
  }

  test::TempDir dir_;
};

TEST_F(ReportTest, RunShowsClipTimesMemoryAndSettings) {
  write_run("a boat");
  const Outcome outcome = report({path("a.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(path("a.html")));
  const std::string html = page("a.html");
  EXPECT_EQ(nesting_fault(html), "");
  EXPECT_THAT(
      html,
      AllOf(HasSubstr("<h1>a boat</h1>"), HasSubstr("src=\"data:video/mp4;base64,dGhlIGNsaXA=\""),
            HasSubstr("src=\"data:image/png;base64,dGhlIHNoZWV0\""),
            HasSubstr("rank 1: text, 0.100 s to 1.500 s"), HasSubstr("25.0 % of both stages"),
            HasSubstr("1.0 GiB"), HasSubstr("bf16"), HasSubstr("step 2: 3.000 s")));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("http://")), Not(HasSubstr("https://"))));
  // Found by the folder too; a page that is there stays.
  EXPECT_EQ(report({dir_.path().string()}).code, 8);
  EXPECT_EQ(report({dir_.path().string(), "--overwrite"}).code, 0);
}

TEST_F(ReportTest, FilesBeyondTheLimitAreLinked) {
  write_run("a boat");
  fs::create_directory(dir_ / "pages");
  ASSERT_EQ(report({path("a.json"), "--embed-mb", "0", "--output", path("pages/x.html")}).code, 0);
  EXPECT_THAT(page("pages/x.html"), AllOf(HasSubstr("src=\"../a.mp4\""), Not(HasSubstr("base64"))));
}

TEST_F(ReportTest, TextsOfStrangersAreNoHtml) {
  write_run(kEvil);
  ASSERT_EQ(report({path("a.json")}).code, 0);
  write_sweep();
  ASSERT_EQ(report({path("sweep.jsonl")}).code, 0);
  for (const char* name : {"a.html", "report.html"}) {
    const std::string html = page(name);
    EXPECT_EQ(nesting_fault(html), "") << name;
    EXPECT_EQ(html.find("<script>alert"), std::string::npos) << name;
    EXPECT_THAT(html, HasSubstr(kEvilEscaped)) << name;
  }
}

TEST_F(ReportTest, SweepIsAGridAlongItsAxes) {
  write_sweep();
  const Outcome outcome = report({dir_.path().string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string html = page("report.html");
  EXPECT_EQ(nesting_fault(html), "");
  EXPECT_THAT(html, AllOf(HasSubstr("4 points, 2 done, 1 failed, 1 started"),
                          HasSubstr("<th>prompt \\ seed</th><th>1</th><th>2</th>"),
                          HasSubstr("<th>a cat</th>"), HasSubstr("base64,Y2xpcCAw"),
                          HasSubstr("base64,Y2xpcCAy"),
                          HasSubstr("<span class=\"failed\">failed</span>, exit code 7")));
}

TEST_F(ReportTest, WhatIsNoRunAndNoSweepIsAnError) {
  EXPECT_EQ(report({}).code, 2);
  EXPECT_EQ(report({path("none")}).code, 3);
  EXPECT_EQ(report({dir_.path().string()}).code, 3);
  test::write_file(dir_ / "x.json", "{\"phases\": ");
  EXPECT_EQ(report({path("x.json")}).code, 3);
  // Figures of the wrong kind cost their place on the page, not the page.
  test::write_file(
      dir_ / "y.json",
      R"({"phases": 3, "job": [], "timeline": [{"rank": -1}, {"rank": "x", "phase": 1}, 4], "steps": {"stage_1": "x"},
                       "phases_memory": 1, "exchange": {"bytes": "many"}})");
  ASSERT_EQ(report({path("y.json")}).code, 0);
  EXPECT_EQ(nesting_fault(page("y.html")), "");
  EXPECT_EQ(report({path("y.json"), "--overwrite", "--embed-mb", "-1"}).code, 2);
}

TEST_F(ReportTest, BrowserShowsAndSortsThePage) {
  const auto browser = find_browser();
  if (!browser) GTEST_SKIP() << "no chromium or google-chrome in PATH";
  write_sweep();
  ASSERT_EQ(report({dir_.path().string()}).code, 0);
  const auto dom = [&](const std::string& fragment) {
    const auto result = io::run_process(
        {*browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--user-data-dir=" + path("profile"), "--virtual-time-budget=2000", "--dump-dom",
         "file://" + path("report.html") + fragment},
        {}, /*limit_s=*/100);
    return std::string(result.output.begin(), result.output.end());
  };
  const std::string plain = dom("");
  if (plain.empty()) GTEST_SKIP() << "the browser does not start here";
  EXPECT_THAT(plain, HasSubstr("data-ready=\"yes\""));
  // By seconds: 0 (no end), 1.5, 9, 10, as numbers. Point 3 comes first, point 1 last.
  const std::string sorted = dom("#sort=5");
  const std::string body = sorted.substr(sorted.find("<tbody>", sorted.find("id=\"points\"")));
  std::vector<size_t> places;
  for (const int number : {3, 2, 0, 1})
    places.push_back(body.find(fmt::format("<tr><td>{}</td>", number)));
  EXPECT_TRUE(std::is_sorted(places.begin(), places.end())) << body;
  EXPECT_EQ(std::count(places.begin(), places.end(), std::string::npos), 0);
}

}  // namespace
}  // namespace flotilla
