// The attributes of HDF5 objects: texts, integers and the names of a dataset's axes.
#include <fmt/format.h>
#include <hdf5.h>

#include <cstring>

#include "base/error.h"
#include "io/hdf5_file.h"
#include "io/hdf5_handles.h"

namespace flotilla::io {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxTextBytes = 16 << 20;
constexpr hssize_t kMaxTexts = 64;

std::string object_path(const std::string& object) { return object.empty() ? "/" : object; }

H5Handle text_type() {
  H5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

void write_attribute(const fs::path& shown, hid_t object, const std::string& key, hid_t type,
                     hid_t space, const void* value) {
  const H5Handle attribute(H5Acreate2(object, key.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT),
                           H5Aclose);
  if (!attribute || H5Awrite(attribute.get(), type, value) < 0) {
    fail_hdf5(ErrorKind::output, shown, fmt::format("cannot write attribute \"{}\"", key));
  }
}

// The texts of a string attribute, of fixed or variable length; nothing when it is not one.
std::optional<std::vector<std::string>> read_texts(hid_t attribute) {
  const H5Handle type(H5Aget_type(attribute), H5Tclose);
  const H5Handle space(H5Aget_space(attribute), H5Sclose);
  if (!type || !space || H5Tget_class(type.get()) != H5T_STRING) return std::nullopt;
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  if (count < 1 || count > kMaxTexts) return std::nullopt;
  std::vector<std::string> texts;
  if (H5Tis_variable_str(type.get()) > 0) {
    const H5Handle memory = text_type();
    // The character set of the file's type must be kept: the library does not convert between them.
    H5Tset_cset(memory.get(), H5Tget_cset(type.get()));
    std::vector<char*> values(static_cast<size_t>(count), nullptr);
    if (H5Aread(attribute, memory.get(), values.data()) < 0) return std::nullopt;
    for (const char* value : values) texts.emplace_back(value != nullptr ? value : "");
    H5Dvlen_reclaim(memory.get(), space.get(), H5P_DEFAULT, values.data());
    return texts;
  }
  const size_t size = H5Tget_size(type.get());
  if (size == 0 || size > kMaxTextBytes) return std::nullopt;
  std::vector<char> bytes(size * static_cast<size_t>(count));
  if (H5Aread(attribute, type.get(), bytes.data()) < 0) return std::nullopt;
  for (hssize_t i = 0; i < count; ++i) {
    const char* text = bytes.data() + static_cast<size_t>(i) * size;
    texts.emplace_back(text, ::strnlen(text, size));
  }
  return texts;
}

H5Handle open_attribute(hid_t file, const std::string& object, const std::string& key) {
  const H5Handle owner(H5Oopen(file, object_path(object).c_str(), H5P_DEFAULT), H5Oclose);
  if (!owner || H5Aexists(owner.get(), key.c_str()) <= 0) return {};
  return H5Handle(H5Aopen(owner.get(), key.c_str(), H5P_DEFAULT), H5Aclose);
}

}  // namespace

void H5File::write_dims(int64_t dataset, const std::vector<std::string>& dims) const {
  std::vector<const char*> texts;
  for (const std::string& dim : dims) texts.push_back(dim.c_str());
  const auto count = static_cast<hsize_t>(texts.size());
  const H5Handle names(H5Screate_simple(1, &count, nullptr), H5Sclose);
  write_attribute(shown_, dataset, "dims", text_type().get(), names.get(), texts.data());
}

std::vector<std::string> H5File::read_dims(const std::string& name) const {
  const H5Silence quiet;
  const H5Handle attribute = open_attribute(id_, name, "dims");
  if (!attribute) return {};
  return read_texts(attribute.get()).value_or(std::vector<std::string>{});
}

void H5File::write_text(const std::string& object, const std::string& key,
                        const std::string& value) {
  const H5Silence quiet;
  const H5Handle owner(H5Oopen(id_, object_path(object).c_str(), H5P_DEFAULT), H5Oclose);
  const H5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const char* text = value.c_str();
  write_attribute(shown_, owner.get(), key, text_type().get(), space.get(), &text);
}

void H5File::write_integer(const std::string& object, const std::string& key, int64_t value) {
  const H5Silence quiet;
  const H5Handle owner(H5Oopen(id_, object_path(object).c_str(), H5P_DEFAULT), H5Oclose);
  const H5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  write_attribute(shown_, owner.get(), key, H5T_STD_I64LE, space.get(), &value);
}

std::optional<std::string> H5File::read_text(const std::string& object,
                                             const std::string& key) const {
  const H5Silence quiet;
  const H5Handle attribute = open_attribute(id_, object, key);
  if (!attribute) return std::nullopt;
  const auto texts = read_texts(attribute.get());
  if (!texts || texts->size() != 1) {
    fail(ErrorKind::input,
         fmt::format("\"{}\": attribute \"{}\" is not a text", shown_.string(), key));
  }
  return texts->front();
}

std::optional<int64_t> H5File::read_integer(const std::string& object,
                                            const std::string& key) const {
  const H5Silence quiet;
  const H5Handle attribute = open_attribute(id_, object, key);
  if (!attribute) return std::nullopt;
  const H5Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const H5Handle space(H5Aget_space(attribute.get()), H5Sclose);
  int64_t value = 0;
  if (H5Tget_class(type.get()) != H5T_INTEGER || H5Sget_simple_extent_npoints(space.get()) != 1 ||
      H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0) {
    fail(ErrorKind::input,
         fmt::format("\"{}\": attribute \"{}\" is not an integer", shown_.string(), key));
  }
  return value;
}

bool H5File::is_text(const std::string& object, const std::string& key) const {
  const H5Silence quiet;
  const H5Handle attribute = open_attribute(id_, object, key);
  const H5Handle type(attribute ? H5Aget_type(attribute.get()) : -1, H5Tclose);
  return type && H5Tget_class(type.get()) == H5T_STRING;
}

std::vector<std::string> H5File::attributes(const std::string& object) const {
  const H5Silence quiet;
  const H5Handle owner(H5Oopen(id_, object_path(object).c_str(), H5P_DEFAULT), H5Oclose);
  std::vector<std::string> keys;
  const auto collect = [](hid_t, const char* key, const H5A_info_t*, void* all) -> herr_t {
    static_cast<std::vector<std::string>*>(all)->emplace_back(key);
    return 0;
  };
  if (owner) H5Aiterate2(owner.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &keys);
  return keys;
}

}  // namespace flotilla::io
