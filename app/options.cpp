#include "app/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>

#include "app/launcher.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace flotilla::app {
namespace {

struct ShortForm {
  const char* option;
  const char* key;
  const char* help;
};
constexpr ShortForm kShortForms[] = {
    {"prompt", "prompt", "what the clip shows"},
    {"negative-prompt", "negative_prompt",
     "what it must not show (not with the distilled pipeline)"},
    {"seed", "seed", "number that fixes the noise, 0 or more"},
    {"output", "output.path", "the clip's file (.mp4, or .y4m without ffmpeg)"},
    {"latents", "output.latents", "HDF5 file for the latents of all stages"},
    {"metrics", "output.metrics", "JSON file for times and memory"},
};

std::vector<std::string> names_of(const po::options_description& options) {
  std::vector<std::string> names;
  for (const auto& option : options.options()) names.push_back("--" + option->long_name());
  return names;
}

bool passes(const KeyFilter& keys, std::string_view key) {
  const auto begins = [&](const std::string& start) { return key.starts_with(start); };
  return std::none_of(keys.without.begin(), keys.without.end(), begins) &&
         (keys.only.empty() || std::any_of(keys.only.begin(), keys.only.end(), begins));
}

[[noreturn]] void fail_usage(const Usage& usage, const std::string& text) {
  fail(ErrorKind::usage,
       fmt::format("{} (flotilla {} --help lists the options)", text, usage.command));
}

po::variables_map parse_strictly(const Usage& usage, const po::options_description& options,
                                 const Arguments& arguments) {
  po::options_description all = options;
  all.add_options()("positional", po::value<std::vector<std::string>>());
  po::positional_options_description positions;
  positions.add("positional", -1);
  po::variables_map values;
  try {
    namespace style = po::command_line_style;
    po::store(po::command_line_parser(arguments)
                  .options(all)
                  .positional(positions)
                  .style(style::default_style & ~style::allow_guessing)
                  .run(),
              values);
    po::notify(values);
  } catch (const po::unknown_option& error) {
    const std::string name = error.get_option_name();
    const std::string near = nearest_word(name, names_of(options));
    fail_usage(usage, fmt::format("unknown option \"{}\"{}", excerpt(name),
                                  near.empty() ? "" : fmt::format(", did you mean {}?", near)));
  } catch (const po::error& error) {
    fail_usage(usage, error.what());
  }
  return values;
}

}  // namespace

std::optional<po::variables_map> parse(const Usage& usage, po::options_description options,
                                       const Arguments& arguments) {
  options.add_options()("help,h", "this text")("quiet,q", "warnings and errors only")("verbose,v",
                                                                                      "more lines");
  po::variables_map values = parse_strictly(usage, options, arguments);
  const LaunchedRanks ranks = launched_ranks();
  if (values.count("help") != 0) {
    if (ranks.rank == 0) {
      fmt::print("usage: {}\n\n{}\n\n", usage.synopsis, usage.explanation);
      std::cout << options;
    }
    return std::nullopt;
  }
  if (!usage.many_ranks) require_one_rank();
  const log::Level level = values.count("quiet") != 0     ? log::Level::warn
                           : values.count("verbose") != 0 ? log::Level::debug
                                                          : log::Level::info;
  log::configure({.level = level, .rank = ranks.rank, .world_size = ranks.world_size});
  return values;
}

po::options_description job_options(const KeyFilter& keys) {
  po::options_description options("options");
  auto add = options.add_options();
  add("set", po::value<std::vector<std::string>>()->composing()->value_name("KEY=VALUE"),
      "change a key of the job file, e.g. --set video.num_frames=49; may be repeated");
  for (const auto& form : kShortForms) {
    if (!passes(keys, form.key)) continue;
    add(form.option, po::value<std::string>()->value_name("VALUE"), form.help);
  }
  add("overwrite", "replace outputs that exist");
  return options;
}

std::vector<config::Override> job_overrides(const po::variables_map& values,
                                            const KeyFilter& keys) {
  std::vector<config::Override> overrides;
  if (values.count("set") != 0) {
    for (const auto& text : values["set"].as<std::vector<std::string>>()) {
      overrides.push_back(config::parse_set(text));
      if (passes(keys, overrides.back().key)) continue;
      fail(ErrorKind::usage, fmt::format("--set {} changes nothing here; keys that count: {}...",
                                         overrides.back().key, fmt::join(keys.only, "..., ")));
    }
  }
  for (const auto& form : kShortForms) {
    if (values.count(form.option) == 0) continue;
    // A seed is YAML, so that "abc" and "1e3" are refused as in the file; all others are text as it
    // stands.
    overrides.push_back({form.key, values[form.option].as<std::string>(),
                         std::string("--") + form.option, std::string(form.key) != "seed"});
  }
  if (values.count("overwrite") != 0)
    overrides.push_back({"output.overwrite", "true", "--overwrite", false});
  return overrides;
}

std::string positional(const Usage& usage, const po::variables_map& values) {
  const auto given = values.count("positional") != 0
                         ? values["positional"].as<std::vector<std::string>>()
                         : std::vector<std::string>();
  if (given.empty())
    fail_usage(usage, fmt::format("{} is missing; usage: {}", usage.positional, usage.synopsis));
  if (given.size() > 1) {
    fail_usage(usage, fmt::format("one {} is wanted, not {}: \"{}\" is too many", usage.positional,
                                  given.size(), excerpt(given[1])));
  }
  return given.front();
}

}  // namespace flotilla::app
