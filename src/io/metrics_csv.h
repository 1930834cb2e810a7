// The metrics of a run as a table of one row, for spreadsheets: a choice of the JSON's figures, in
// a fixed order of columns. Layout: docs/configuration.md, "Metrics".
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::io {

struct CsvColumn {
  std::string name;
  std::string pointer;     // into the JSON, RFC 6901
  bool is_median = false;  // of the list there
};
const std::vector<CsvColumn>& metrics_columns();

// A line of names and a line of values, as in RFC 4180 but with "\n"; what is null or missing is an
// empty cell.
std::string metrics_csv(const nlohmann::ordered_json& metrics);

// One cell: in quotes where it has to be.
std::string csv_cell(std::string_view text);

}  // namespace flotilla::io
