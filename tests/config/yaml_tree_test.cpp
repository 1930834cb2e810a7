#include "config/yaml_tree.h"

#include <gtest/gtest.h>

#include "config/job_text.h"
#include "config/yaml_text.h"

namespace flotilla::config {
namespace {

using test::contains;

struct Parsed {
  Node root;
  std::string message;  // "" when fine
};

Parsed parse(std::string_view text) {
  Problems problems;
  const auto source = std::make_shared<const Source>(
      Source{.name = "f", .base = "/", .has_lines = true, .file = {}});
  Parsed parsed{parse_yaml(text, source, problems), ""};
  try {
    problems.throw_if_any(ErrorKind::config);
  } catch (const Error& error) {
    parsed.message = error.message();
  }
  return parsed;
}

std::string message(std::string_view text) { return parse(text).message; }

TEST(YamlTreeTest, KeepsScalarsAsTextWithTheirPlaces) {
  const Parsed parsed = parse("a: no\nb: [010, '5']\nc:\n  d: 1e3\n");
  ASSERT_EQ(parsed.message, "");
  const auto& entries = parsed.root.entries;
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[0].value.text, "no");
  EXPECT_EQ(entries[1].value.items[0].text, "010");
  EXPECT_TRUE(entries[1].value.items[1].quoted);
  EXPECT_FALSE(entries[1].value.items[0].quoted);
  EXPECT_EQ(entries[1].value.items[1].place.text(), "f:2:10");
  EXPECT_EQ(entries[2].value.entries[0].value.place.text(), "f:4:6");
}

TEST(YamlTreeTest, CountsColumnsInCharacters) {
  EXPECT_EQ(parse("{\"äöü\": x}").root.entries[0].value.place.text(), "f:1:9");
}

TEST(YamlTreeTest, PlacesMissingValuesAtTheirKey) {
  const Parsed parsed = parse("a:\n\n\nb: 1\n");
  EXPECT_EQ(parsed.root.entries[0].value.kind, Node::Kind::null);
  EXPECT_EQ(parsed.root.entries[0].value.place.text(), "f:1:1");
}

TEST(YamlTreeTest, TakesByteOrderMarkAndCarriageReturns) {
  const Parsed parsed = parse(
      "\xEF\xBB\xBF"
      "a: |\r\n  x\r\n  y\r\nb: 2\r\n");
  ASSERT_EQ(parsed.message, "");
  EXPECT_EQ(parsed.root.entries[0].value.text, "x\ny\n");
  EXPECT_EQ(parsed.root.entries[1].value.text, "2");
}

TEST(YamlTreeTest, GivesANullNodeForNoText) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n"}) {
    EXPECT_EQ(parse(text).root.kind, Node::Kind::null) << text;
    EXPECT_EQ(message(text), "") << text;
  }
}

TEST(YamlTreeTest, RefusesWhatAJobDoesNotNeed) {
  EXPECT_TRUE(contains(message("a: &x 1\n"), "f:1:4: a: anchors"));
  EXPECT_TRUE(contains(message("a: &x 1\nb: *x\n"), "f:2:4: b: aliases"));
  EXPECT_TRUE(contains(message("a: {b: 1}\n<<: {c: 2}\n"), "f:2:1: <<: merge keys"));
  EXPECT_TRUE(contains(message("a: !!int 5\n"), "tags (tag:yaml.org,2002:int)"));
  EXPECT_TRUE(contains(message("a: !x {b: 1}\n"), "tags"));
  EXPECT_TRUE(contains(message("a: 1\n---\nb: 2\n"), "f:2:1: a second document"));
  EXPECT_TRUE(contains(message("? [a, b]\n: 1\n"), "a key must be a word"));
  for (const char* text : {": 1\n", "\"\": 1\n", "{: 1}\n", "? \n"}) {
    EXPECT_TRUE(contains(message(text), "a key must be a word")) << text;
    EXPECT_EQ(test::count_lines(message(text)), 1U) << text;
  }
  EXPECT_TRUE(contains(message("%YAML 9.9\n---\na: 1\n"), "is not valid YAML"));
}

TEST(YamlTreeTest, ReportsDuplicateKeysOnEveryLevel) {
  const std::string text = message("a: 1\nb: {c: 1, c: 2}\na: 3\n");
  EXPECT_TRUE(contains(text, "f:2:11: b.c: given twice; first at f:2:5"));
  EXPECT_TRUE(contains(text, "f:3:1: a: given twice; first at f:1:1"));
}

TEST(YamlTreeTest, ExplainsSyntaxErrors) {
  EXPECT_TRUE(contains(message("a: b: c\n"), "f:1:5: is not valid YAML"));
  EXPECT_TRUE(contains(message("a: b: c\n"), "must be in quotes"));
  EXPECT_TRUE(contains(message("a: *bold*\n"), "text that starts with * must be in quotes"));
  EXPECT_TRUE(contains(message("a: @x\n"), "text that starts with @ must be in quotes"));
  EXPECT_TRUE(contains(message("a:\n\tb: 1\n"), "a tab stands in the indentation"));
  EXPECT_TRUE(contains(message("a:\n  \tb: 1\n"), "a tab stands in the indentation"));
  EXPECT_TRUE(contains(message("a: [1, 2\n"), "is not valid YAML"));
}

TEST(YamlTreeTest, NoticesQuotesThatAreNeverClosed) {
  EXPECT_TRUE(contains(message("a: 1\nb: \"x\nc: 3\n"), "f:2:4: b: the quote that opens here"));
  EXPECT_TRUE(contains(message("b: 'it''s\n"), "the quote that opens here"));
  EXPECT_TRUE(contains(message("b: \"x\\\"\n"), "the quote that opens here"));
  EXPECT_EQ(message("b: 'it''s'\nc: \"a\\\"b\"\n"), "");
}

TEST(YamlTreeTest, RefusesBytesThatAreNoText) {
  EXPECT_TRUE(contains(message("a: \xff\n"), "is not UTF-8"));
  EXPECT_TRUE(contains(message(std::string("a\0:\0", 4)), "control character 0x00"));
  EXPECT_TRUE(contains(message("a: 1\nb: x\x1b\n"), "f:2:5: control character 0x1b"));
  EXPECT_TRUE(contains(message("a: 1\rb: 2\n"), "control character 0x0d"));
  EXPECT_TRUE(contains(message("a: \"x\\0y\"\n"), "a zero byte"));
  EXPECT_TRUE(contains(message("a: \"\\ud800\"\n"), "is not valid YAML"));
}

TEST(YamlTreeTest, LimitsSizeAndDepth) {
  EXPECT_TRUE(contains(message(std::string(kMaxYamlBytes + 1, ' ')), "more than 1048576 bytes"));
  EXPECT_TRUE(contains(message(std::string(100, '[') + std::string(100, ']')), "nested deeper"));
  EXPECT_TRUE(contains(message(std::string(500000, '[')), "nested deeper"));
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "- ";
  EXPECT_TRUE(contains(message(deep + "x"), "nested deeper"));
}

TEST(YamlTreeTest, ReadsLargeFlatTextInTime) {
  std::string line = "a: [";
  while (line.size() + 10 < kMaxYamlBytes) line += "1, ";
  EXPECT_EQ(message(line + "1]\n"), "");
}

TEST(QuoteYamlTest, ComesBackUnchanged) {
  std::string all = "ä \"quoted\" back\\slash\ttab\nnewline # no comment: 'x'";
  for (char c = 1; c < 0x20; ++c) all += c;
  all += '\x7f';
  const Parsed parsed = parse("a: " + quote_yaml(all) + "\n");
  ASSERT_EQ(parsed.message, "");
  EXPECT_EQ(parsed.root.entries[0].value.text, all);
}

}  // namespace
}  // namespace flotilla::config
