// The temporary files of this process, where a signal handler finds them: a run that is ended by a
// signal unwinds nothing, so the handler (app/process.cpp) removes them. A table of fixed size and
// the one place that must be global; only base/temp_file.cpp enters files.
#pragma once

#include <filesystem>

namespace flotilla {

// The entry of `path`, for forget_temporary(); -1 when the table is full: the file is then left
// behind by a signal. Thread-safe.
int register_temporary(const std::filesystem::path& path) noexcept;
// After the file is gone or renamed. -1 is passed over.
void forget_temporary(int entry) noexcept;
// Unlinks all files that are entered. Async-signal-safe; the process should end afterwards.
void remove_temporaries() noexcept;

}  // namespace flotilla
