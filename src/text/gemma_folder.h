// The Hugging Face folder of the text encoder: which files it needs, and reading the small ones.
// A folder from a clone without Git LFS holds pointers instead of files; those are told by name.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace flotilla::text {

// Throws one ErrorKind::input that names every missing file of `folder` and what a complete one
// has.
void check_gemma_folder(const std::filesystem::path& folder);

// The bytes of `folder`/`name`. Errors (ErrorKind::input, the folder named): missing, unreadable,
// or a Git-LFS pointer.
std::string read_gemma_file(const std::filesystem::path& folder, const std::string& name);

// config.json, parsed. Errors as above, or not JSON.
nlohmann::json read_gemma_json(const std::filesystem::path& folder);

}  // namespace flotilla::text
