// What a command found out, as JSON for programs and as indented lines for people.
#pragma once

#include <nlohmann/json.hpp>

namespace flotilla::app {

using Report = nlohmann::ordered_json;  // an object; keys with "bytes" in them hold bytes

// Prints to standard output. Texts of strangers are safe to print: control characters are made
// visible, and bytes that are not UTF-8 are replaced.
void print_report(const Report& report, bool as_json);

}  // namespace flotilla::app
