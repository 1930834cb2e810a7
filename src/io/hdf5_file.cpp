#include "io/hdf5_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <utility>

#include "base/error.h"
#include "io/file_seal.h"
#include "io/hdf5_handles.h"

namespace flotilla::io {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxAxes = 8;
// Checksums need chunks; a chunk is read and checked whole, so it stays small.
constexpr hsize_t kMaxChunkBytes = 4 << 20;
constexpr std::array<unsigned char, 8> kSignature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

#if H5_VERSION_GE(1, 12, 0)
using ObjectInfo = H5O_info2_t;
#else
using ObjectInfo = H5O_info_t;
#endif

hid_t memory_type(at::ScalarType type) {
  return type == at::kByte ? H5T_NATIVE_UINT8 : H5T_NATIVE_FLOAT;
}
hid_t file_type(at::ScalarType type) { return type == at::kByte ? H5T_STD_U8LE : H5T_IEEE_F32LE; }

// The shape, with its slowest axes cut until a chunk is small enough.
std::vector<hsize_t> choose_chunk(std::vector<hsize_t> shape, size_t element_bytes) {
  hsize_t bytes = element_bytes;
  for (const hsize_t size : shape) bytes *= size;
  for (hsize_t& size : shape) {
    while (size > 1 && bytes > kMaxChunkBytes) {
      bytes = bytes / size * ((size + 1) / 2);
      size = (size + 1) / 2;
    }
  }
  return shape;
}

// The library looks for its signature at other places too; ours stands at the beginning.
void check_signature(const fs::path& path) {
  std::error_code code;
  const auto status = fs::status(path, code);
  if (status.type() == fs::file_type::not_found)
    fail(ErrorKind::input, fmt::format("no such file: \"{}\"", path.string()));
  if (code) {
    fail(ErrorKind::input, fmt::format("\"{}\" cannot be read: {}", path.string(), code.message()));
  }
  if (!fs::is_regular_file(status))
    fail(ErrorKind::input, fmt::format("\"{}\" is not a file", path.string()));
  std::array<unsigned char, 8> head{};
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" cannot be read: {}", path.string(), std::strerror(errno)));
  }
  stream.read(reinterpret_cast<char*>(head.data()), head.size());
  if (!stream) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" is truncated: it has {} bytes", path.string(), stream.gcount()));
  }
  if (head != kSignature)
    fail(ErrorKind::input, fmt::format("\"{}\" is not an HDF5 file", path.string()));
}

// Type of the elements of a dataset of ours; nothing for any other.
std::optional<at::ScalarType> element_type(hid_t dataset) {
  const H5Handle type(H5Dget_type(dataset), H5Tclose);
  if (!type) return std::nullopt;
  if (H5Tequal(type.get(), H5T_IEEE_F32LE) > 0) return at::kFloat;
  if (H5Tequal(type.get(), H5T_STD_U8LE) > 0) return at::kByte;
  return std::nullopt;
}

// Refuses what can grow far beyond the file (compression, fill values) or points out of it.
std::string storage_problem(hid_t dataset) {
  const H5Handle plist(H5Dget_create_plist(dataset), H5Pclose);
  if (!plist) return "has no readable description";
  const H5D_layout_t layout = H5Pget_layout(plist.get());
  if (layout != H5D_CHUNKED && layout != H5D_CONTIGUOUS && layout != H5D_COMPACT)
    return "has an unknown layout";
  if (layout == H5D_CONTIGUOUS && H5Pget_external_count(plist.get()) != 0)
    return "keeps its data in another file";
  for (int i = 0; i < H5Pget_nfilters(plist.get()); ++i) {
    unsigned flags = 0;
    unsigned config = 0;
    size_t count = 0;
    const H5Z_filter_t filter = H5Pget_filter2(plist.get(), static_cast<unsigned>(i), &flags,
                                               &count, nullptr, 0, nullptr, &config);
    if (filter != H5Z_FILTER_FLETCHER32)
      return "is compressed or filtered; only plain data with checksums is read";
  }
  return {};
}

herr_t collect_dataset(hid_t, const char* name, const ObjectInfo* info, void* names) {
  if (info->type == H5O_TYPE_DATASET)
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

// All datasets, by a walk over hard links: neither a loop nor a way out of the file can be met.
std::vector<std::string> list_datasets(hid_t file, const fs::path& shown) {
  std::vector<std::string> names;
#if H5_VERSION_GE(1, 12, 0)
  const herr_t rc =
      H5Ovisit3(file, H5_INDEX_NAME, H5_ITER_NATIVE, collect_dataset, &names, H5O_INFO_BASIC);
#else
  const herr_t rc = H5Ovisit1(file, H5_INDEX_NAME, H5_ITER_NATIVE, collect_dataset, &names);
#endif
  if (rc < 0) fail_hdf5(ErrorKind::input, shown, "cannot list the datasets");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

H5File::H5File(int64_t id, fs::path shown, int64_t file_bytes)
    : id_(id), shown_(std::move(shown)), file_bytes_(file_bytes) {}

H5File::H5File(H5File&& other) noexcept
    : id_(std::exchange(other.id_, -1)),
      shown_(std::move(other.shown_)),
      file_bytes_(other.file_bytes_),
      datasets_(std::move(other.datasets_)) {}

H5File::~H5File() {
  const H5Silence quiet;
  if (id_ >= 0) H5Fclose(id_);
}

H5File H5File::create(const fs::path& path, fs::path shown) {
  const H5Silence quiet;
  const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  if (id < 0) fail_hdf5(ErrorKind::output, shown, "cannot create the file");
  return H5File(id, std::move(shown), 0);
}

H5File H5File::open(const fs::path& path) {
  check_signature(path);
  const H5Silence quiet;
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (id < 0) fail_hdf5(ErrorKind::input, path, "cannot open the file");
  H5File file(id, path, static_cast<int64_t>(fs::file_size(path)));
  file.datasets_ = list_datasets(id, path);
  return file;
}

H5File H5File::open_sealed(const fs::path& path) {
  check_signature(path);
  check_seal(path);
  return open(path);
}

void H5File::close() {
  const H5Silence quiet;
  const hid_t id = std::exchange(id_, -1);
  if (H5Fclose(id) < 0) fail_hdf5(ErrorKind::output, shown_, "cannot close the file");
}

void H5File::write(const std::string& name, const at::Tensor& tensor,
                   const std::vector<std::string>& dims) {
  FLOTILLA_ASSERT(tensor.defined() && tensor.numel() > 0);
  FLOTILLA_ASSERT(tensor.dim() >= 1 && tensor.dim() <= kMaxAxes);
  FLOTILLA_ASSERT(static_cast<int64_t>(dims.size()) == tensor.dim());
  FLOTILLA_ASSERT(tensor.is_floating_point() || tensor.scalar_type() == at::kByte);
  const H5Silence quiet;
  const at::ScalarType type = tensor.is_floating_point() ? at::kFloat : at::kByte;
  const at::Tensor data = tensor.detach().to(at::kCPU, type).contiguous();
  const std::vector<hsize_t> shape(data.sizes().begin(), data.sizes().end());
  const std::vector<hsize_t> chunk = choose_chunk(shape, data.element_size());
  const auto rank = static_cast<int>(shape.size());

  const H5Handle space(H5Screate_simple(rank, shape.data(), nullptr), H5Sclose);
  const H5Handle layout(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const H5Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_chunk(layout.get(), rank, chunk.data());
  H5Pset_fletcher32(layout.get());
  H5Pset_obj_track_times(layout.get(), false);  // equal tensors give equal bytes
  H5Pset_create_intermediate_group(links.get(), 1);
  const H5Handle dataset(H5Dcreate2(id_, name.c_str(), file_type(type), space.get(), links.get(),
                                    layout.get(), H5P_DEFAULT),
                         H5Dclose);
  if (!dataset || H5Dwrite(dataset.get(), memory_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                           data.data_ptr()) < 0) {
    fail_hdf5(ErrorKind::output, shown_, fmt::format("cannot write \"{}\"", name));
  }
  write_dims(dataset.get(), dims);
}

void H5File::make_group(const std::string& name) {
  const H5Silence quiet;
  if (H5Lexists(id_, name.c_str(), H5P_DEFAULT) > 0) return;
  const H5Handle group(H5Gcreate2(id_, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                       H5Gclose);
  if (!group)
    fail_hdf5(ErrorKind::output, shown_, fmt::format("cannot make the group \"{}\"", name));
}

at::Tensor H5File::read(const std::string& name) const {
  const H5Silence quiet;
  const auto refuse = [&](std::string_view why) {
    fail(ErrorKind::input, fmt::format("\"{}\": dataset \"{}\" {}", shown_.string(), name, why));
  };
  // The list was made without following links, so what it holds lies in this file.
  if (!std::binary_search(datasets_.begin(), datasets_.end(), name)) refuse("is missing");
  const H5Handle dataset(H5Dopen2(id_, name.c_str(), H5P_DEFAULT), H5Dclose);
  if (!dataset)
    fail_hdf5(ErrorKind::input, shown_, fmt::format("dataset \"{}\" cannot be opened", name));
  const std::optional<at::ScalarType> type = element_type(dataset.get());
  if (!type) refuse("is neither float32 nor uint8");
  if (const std::string problem = storage_problem(dataset.get()); !problem.empty()) refuse(problem);
  const H5Handle space(H5Dget_space(dataset.get()), H5Sclose);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 1 || rank > kMaxAxes) refuse(fmt::format("has {} axes, not 1 to {}", rank, kMaxAxes));
  std::array<hsize_t, kMaxAxes> shape{};
  H5Sget_simple_extent_dims(space.get(), shape.data(), nullptr);
  const auto sizes = std::span(shape).first(static_cast<size_t>(rank));
  // What is not stored is made up by the library, so the storage, too, must cover the shape.
  const auto stored =
      std::min(H5Dget_storage_size(dataset.get()), static_cast<hsize_t>(file_bytes_));
  hsize_t bytes = c10::elementSize(*type);
  for (const hsize_t size : sizes) {
    if (size == 0 || size > stored / bytes) {
      refuse(fmt::format("claims the shape {}, but {} bytes are stored", sizes, stored));
    }
    bytes *= size;
  }
  const std::vector<int64_t> tensor_shape(sizes.begin(), sizes.end());
  at::Tensor tensor = at::empty(tensor_shape, *type);
  if (H5Dread(dataset.get(), memory_type(*type), H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.data_ptr()) <
      0) {
    fail_hdf5(ErrorKind::input, shown_, fmt::format("dataset \"{}\" is damaged", name));
  }
  return tensor;
}

std::string hdf5_library() {
  const H5Silence quiet;  // this can be the program's first call of the library
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

fs::path previous_file(const fs::path& path) {
  fs::path previous = follow_links(path);
  previous.replace_filename(previous.stem().string() + "_prev" + previous.extension().string());
  return previous;
}

H5PendingFile::H5PendingFile(const fs::path& path, bool overwrite)
    : pending_(path, overwrite), file_(H5File::create(pending_.temporary(), path)) {}

void H5PendingFile::commit(bool keep_previous) {
  file_.close();
  add_seal(pending_.temporary(), pending_.final_path());
  try {
    const H5File written = H5File::open_sealed(pending_.temporary());
    for (const std::string& name : written.datasets()) written.read(name);
  } catch (const Error& error) {
    fail(ErrorKind::output, fmt::format("\"{}\" was written wrongly: {}",
                                        pending_.final_path().string(), error.what()));
  }
  std::error_code code;
  const fs::path& final_path = pending_.final_path();
  if (keep_previous && fs::exists(final_path, code)) {
    const fs::path previous = previous_file(final_path);
    // A second name for the old file; the new one then takes over the first name in one move.
    fs::remove(previous, code);
    fs::create_hard_link(final_path, previous, code);
  }
  pending_.commit();
}

}  // namespace flotilla::io
