// What libraries under this program leave on the machine when their processes are killed: session
// folders of Open MPI, and its and NCCL's shared memory. They are not ours to remove, as another
// program's job may use them; the next start tells them, with the command that removes them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace flotilla::comm {

// Files and folders of this user that no process uses any more: folders of ended processes in
// `temporary` (TMPDIR), objects in `shared` (/dev/shm) that none of the user's processes has mapped
// or opened. Those younger than a minute are passed over: a job may be starting. In their order.
std::vector<std::filesystem::path> find_leftovers(const std::filesystem::path& temporary,
                                                  const std::filesystem::path& shared);

// `ended jobs left 2 files ... behind; remove them with: rm -r '/tmp/...' '/dev/shm/...'`; of many
// the first ones. "" for none.
std::string leftovers_text(const std::vector<std::filesystem::path>& leftovers);

}  // namespace flotilla::comm
