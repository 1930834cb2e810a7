// The names of a sweep's files: a template like "{index:04}_{seed}" for each point.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::config {

class NameTemplate {
 public:
  // Gives the text of a placeholder: "seed", "video.width"; nothing for one that is unknown.
  using Lookup = std::function<std::optional<std::string>(const std::string& placeholder)>;

  // Errors: `complaint` is set, and render() must not be called.
  NameTemplate(std::string_view text, std::optional<std::string>& complaint);

  // The name of point `index`; values are shortened, and what is not safe in a file's name becomes
  // "-". Nothing, and `complaint` set, when a placeholder is unknown or the name is no good.
  std::optional<std::string> render(int64_t index, const Lookup& lookup,
                                    std::string& complaint) const;

 private:
  struct Part {
    std::string text;  // as it stands, or the placeholder's name
    bool is_placeholder = false;
    int width = 0;  // of {index:04}
  };
  std::vector<Part> parts_;
};

}  // namespace flotilla::config
