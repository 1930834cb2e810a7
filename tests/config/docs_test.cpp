// docs/configuration.md says what the table of keys says: the same keys, types, defaults, meanings.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/describe.h"

namespace flotilla::config {
namespace {

// "a | b" without the spaces around the bars; the first and last bar are gone.
std::vector<std::string> cells_of(const std::string& row) {
  std::vector<std::string> cells;
  for (size_t at = 1; at < row.size();) {
    const size_t bar = row.find('|', at);
    std::string cell = row.substr(at, bar - at);
    cell.erase(0, cell.find_first_not_of(' '));
    cell.erase(cell.find_last_not_of(' ') + 1);
    cells.push_back(cell);
    at = bar == std::string::npos ? row.size() : bar + 1;
  }
  return cells;
}

struct Row {
  std::string section;
  std::vector<std::string> cells;
};

std::map<std::string, Row> documented_rows() {
  std::ifstream file(FLOTILLA_SOURCE_DIR "/docs/configuration.md");
  EXPECT_TRUE(file) << "docs/configuration.md cannot be read";
  std::map<std::string, Row> rows;
  std::string section;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("### ")) section = line.substr(4);
    if (!line.starts_with("| `")) continue;
    Row row{section, cells_of(line)};
    const std::string key = row.cells[0].substr(1, row.cells[0].size() - 2);
    EXPECT_TRUE(rows.emplace(key, row).second) << key << " is documented twice";
  }
  return rows;
}

TEST(DocsTest, DocumentEveryKeyAsItIs) {
  const auto rows = documented_rows();
  for (const auto& doc : describe_keys()) {
    const auto found = rows.find(doc.key);
    if (found == rows.end()) {
      ADD_FAILURE() << doc.key << " is not documented";
      continue;
    }
    const auto& [section, cells] = found->second;
    ASSERT_EQ(cells.size(), 4U) << doc.key;
    EXPECT_EQ(section, doc.section == "job" ? "Job" : doc.section) << doc.key;
    EXPECT_EQ(cells[1], doc.type) << doc.key;
    EXPECT_EQ(cells[2], doc.default_text) << doc.key;
    EXPECT_EQ(cells[3], doc.meaning) << doc.key;
  }
}

TEST(DocsTest, DocumentNoOtherKeys) {
  std::set<std::string> known;
  for (const auto& doc : describe_keys()) known.insert(doc.key);
  for (const auto& [key, row] : documented_rows()) {
    EXPECT_TRUE(known.count(key) != 0) << key << " is documented and does not exist";
  }
  EXPECT_GT(known.size(), 60U);
}

TEST(DocsTest, MeaningsFitIntoATable) {
  for (const auto& doc : describe_keys()) {
    EXPECT_FALSE(doc.meaning.empty()) << doc.key;
    EXPECT_EQ((doc.type + doc.default_text + doc.meaning).find('|'), std::string::npos) << doc.key;
  }
}

}  // namespace
}  // namespace flotilla::config
