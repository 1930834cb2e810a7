// Options that commands share, on Boost.Program_options: exact names only, and an unknown option is
// an error that names the nearest known one.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

#include "app/command.h"
#include "config/load.h"

namespace flotilla::app {

namespace po = boost::program_options;

struct Usage {
  const char* command;   // "run"
  const char* synopsis;  // "flotilla run JOB.yaml [options]"
  const char* explanation;
  const char* positional;   // name of the one positional argument
  bool many_ranks = false;  // may be started with more than one rank
};

// Adds --help, --quiet, --verbose to `options` and parses. Empty when --help was asked for (and
// printed). Errors: ErrorKind::usage. Sets the log's level.
std::optional<po::variables_map> parse(const Usage& usage, po::options_description options,
                                       const Arguments& arguments);

// The keys that a command uses, by their beginnings: "output.", "decoder.".
struct KeyFilter {
  std::vector<std::string> only;     // empty: all
  std::vector<std::string> without;  // of those
};
// --set, --overwrite, and the short forms of the keys that people change most, as far as the
// command uses them.
po::options_description job_options(const KeyFilter& keys = {});
// Those options as changes to the job, short forms after --set.
// Errors (ErrorKind::usage): a --set outside `keys`.
std::vector<config::Override> job_overrides(const po::variables_map& values,
                                            const KeyFilter& keys = {});

// The positional argument. Errors (ErrorKind::usage): missing.
std::string positional(const Usage& usage, const po::variables_map& values);

}  // namespace flotilla::app
