// A checksum over all of a file, at its end, for formats whose libraries trust what they read: HDF5
// runs into memory that is not its own on a single wrong byte in some places, so that such a file
// must not get there. It finds damage, not intent: whoever changes the file can seal it again.
#pragma once

#include <filesystem>

namespace flotilla::io {

// Appends it: 24 bytes, "FLTLSEAL", then the number of bytes in front and their FNV-1a hash, both
// as 64-bit little-endian numbers. HDF5 tools read such files as others. Errors
// (ErrorKind::output): `shown` is the name in messages.
void add_seal(const std::filesystem::path& path, const std::filesystem::path& shown);

// Reads the whole file. Errors (ErrorKind::input): it has no seal, or another one.
void check_seal(const std::filesystem::path& path);

}  // namespace flotilla::io
