#include "config/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "base/text.h"
#include "config/yaml_text.h"

namespace flotilla::config {
namespace {

// Ends the parse where going on makes no sense; the problem is recorded before.
struct Stop {};

size_t offset_of(const YAML::Mark& mark, const Lines& lines) {
  return lines.offset(mark.line, mark.column);
}
Place place_of(const YAML::Mark& mark, const Lines& lines) {
  return lines.place_at(offset_of(mark, lines));
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const Lines& lines, Problems& problems) : lines_(lines), problems_(problems) {}

  Node take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      problem(mark, "a second document starts here; a job file holds one");
      throw Stop{};
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check_anchor(mark, anchor);
    Node node;
    // The mark of a missing value is that of the next token, which may be lines away.
    node.place = pending_key() ? stack_.back().key_place : place_of(mark, lines_);
    complete(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    problem(mark, "aliases (*name) are not supported; write the value out, or quote the text");
    complete(broken_node(mark));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_anchor(mark, anchor);
    if (!check_tag(mark, tag)) return complete(broken_node(mark));
    Node node;
    node.kind = Node::Kind::scalar;
    node.text = value;
    node.quoted = tag == "!";
    node.place = place_of(mark, lines_);
    check_text(mark, node);
    complete(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::sequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::map, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    Node node;
    std::optional<std::string> key;  // read, waiting for its value
    Place key_place;
    std::map<std::string, Place> seen;
  };

  void problem(const YAML::Mark& mark, std::string text) {
    problems_.add(place_of(mark, lines_), path(), std::move(text));
  }

  // The dotted key that is being read.
  std::string path() const {
    std::string text;
    for (const auto& level : stack_) {
      if (level.node.kind == Node::Kind::sequence) {
        text += fmt::format("[{}]", level.node.items.size());
      } else if (level.key) {
        text += (text.empty() ? "" : ".") + excerpt(*level.key);
      }
    }
    return text;
  }

  bool pending_key() const { return !stack_.empty() && stack_.back().key.has_value(); }

  Node broken_node(const YAML::Mark& mark) const {
    Node node;
    node.kind = Node::Kind::broken;
    node.place = place_of(mark, lines_);
    return node;
  }

  void check_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) {
      problem(mark, "anchors (&name) are not supported; write the value out, or quote the text");
    }
  }

  bool check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return true;
    problem(mark, fmt::format("tags ({}) are not supported; quote the value to make it text",
                              excerpt(tag, 40)));
    return false;
  }

  void check_text(const YAML::Mark& mark, Node& node) {
    const size_t at = offset_of(mark, lines_);
    const bool has_quotes = node.quoted && at < lines_.text().size() &&
                            (lines_.text()[at] == '"' || lines_.text()[at] == '\'');
    if (has_quotes && !is_quote_closed(lines_.text(), at)) {
      problem(mark, "the quote that opens here is never closed");
      throw Stop{};
    }
    if (node.text.find('\0') != std::string::npos || !is_valid_utf8(node.text)) {
      problem(mark, "a zero byte, or an escape that is no character; remove it");
      node.kind = Node::Kind::broken;
    }
  }

  void open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    check_anchor(mark, anchor);
    check_tag(mark, tag);
    if (stack_.size() >= kMaxYamlDepth) {
      problem(mark, fmt::format("nested deeper than {} levels", kMaxYamlDepth));
      throw Stop{};
    }
    stack_.emplace_back();
    stack_.back().node.kind = kind;
    stack_.back().node.place = place_of(mark, lines_);
  }

  void close() {
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    complete(std::move(node));
  }

  // Puts a finished node where it belongs: root, list element, key or value.
  void complete(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
    } else if (stack_.back().node.kind == Node::Kind::sequence) {
      stack_.back().node.items.push_back(std::move(node));
    } else if (!stack_.back().key) {
      take_key(std::move(node));
    } else {
      take_value(std::move(node));
    }
  }

  void take_key(Node node) {
    Level& level = stack_.back();
    if (node.kind == Node::Kind::scalar && !node.text.empty()) {
      level.key = std::move(node.text);
    } else {
      if (node.kind != Node::Kind::broken) {
        problems_.add(node.place, path(), "a key must be a word, not empty, a list or a map");
      }
      level.key = "?";
    }
    level.key_place = node.place;
  }

  void take_value(Node node) {
    Level& level = stack_.back();
    const auto [first, is_new] = level.seen.emplace(*level.key, level.key_place);
    if (level.key == "<<") {
      problems_.add(level.key_place, path(), "merge keys are not supported; write the keys out");
    } else if (!is_new && level.key != "?") {
      problems_.add(level.key_place, path(),
                    fmt::format("given twice; first at {}", first->second.text()));
    } else if (level.key != "?") {
      level.node.entries.push_back({*level.key, level.key_place, std::move(node)});
    }
    level.key.reset();
  }

  const Lines& lines_;
  Problems& problems_;
  std::vector<Level> stack_;
  Node root_;
  int documents_ = 0;
};

// yaml-cpp's words, and what usually helps.
std::string syntax_message(const YAML::Exception& error, const Lines& lines) {
  std::string text = fmt::format("is not valid YAML: {}", error.msg);
  const size_t at = offset_of(error.mark, lines);
  if (at < lines.text().size() &&
      std::string_view("*&!%@`").find(lines.text()[at]) != std::string_view::npos) {
    text += fmt::format("; text that starts with {} must be in quotes", lines.text()[at]);
  }
  if (lines.indent_at(at).find('\t') != std::string_view::npos) {
    return text + "; a tab stands in the indentation, use spaces";
  }
  if (error.msg.find("illegal map value") != std::string::npos) {
    text +=
        "; text with \": \" in it must be in quotes, keys of one level must be equally indented";
  }
  return text;
}

}  // namespace

Entry* Node::find(std::string_view key) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [key](const Entry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

Node parse_yaml(std::string_view text, std::shared_ptr<const Source> source, Problems& problems) {
  Node broken;
  broken.kind = Node::Kind::broken;
  broken.place = {source, 0, 0};
  const auto lines = read_yaml_text(text, source, problems);
  if (!lines) return broken;
  TreeBuilder builder(*lines, problems);
  try {
    std::istringstream stream(lines->text());
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Stop&) {
    return broken;
  } catch (const YAML::Exception& error) {
    problems.add(place_of(error.mark, *lines), "", syntax_message(error, *lines));
    return broken;
  }
  Node root = builder.take_root();
  if (!root.place.source) root.place = broken.place;
  return root;
}

}  // namespace flotilla::config
