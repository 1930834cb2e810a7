// HDF5 files that are whole but hold anything: an input is a recipe, a byte or two a choice, from
// which the library itself makes the file. latents.cpp damages files; this is for what a stranger's
// script may write.
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "fuzz/fuzz_target.h"
#include "fuzz/scratch_file.h"
#include "io/file_seal.h"
#include "io/hdf5_handles.h"
#include "io/latents_file.h"

namespace flotilla::fuzz {
namespace {

using io::H5Handle;

constexpr int kMaxParts = 24;
constexpr std::array kNames = {io::latents::kVideoContext,
                               io::latents::kStage1Video,
                               io::latents::kStage1Audio,
                               io::latents::kDecodedVideo,
                               io::latents::kDecodedAudio,
                               io::latents::kInitialVideo,
                               "resume/generator",
                               io::latents::kUpscaledVideo,
                               "resume",
                               "resume/deep/name",
                               "stage_1",
                               "other"};
constexpr std::array kKeys = {
    "format_version", "flotilla_version", "job_yaml",      "checkpoint_digest", "seed", "world",
    "created",        "original_prompt",  "restart_count", "sample_rate",       "dims", "step"};
constexpr std::array<hsize_t, 8> kSizes = {1, 2, 3, 4, 0, 100, hsize_t{1} << 20, hsize_t{1} << 40};
constexpr std::array<std::string_view, 6> kTexts = {"",     "prompt: a fox\n", "0.1.0", "\xff\xfe",
                                                    "\xc3", "stage_1"};

// The choices of an input; 0 behind its end.
class Recipe {
 public:
  Recipe(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool is_done() const { return left_ == 0; }
  size_t pick(size_t count) {
    if (left_ == 0) return 0;
    --left_;
    return *data_++ % count;
  }
  template <typename List>
  const auto& of(const List& list) {
    return list[pick(list.size())];
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Calls may fail here: the name is taken, the layout does not suit. Then the file lacks that part.
class FileMaker {
 public:
  explicit FileMaker(const std::filesystem::path& path)
      : file_(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose),
        links_(H5Pcreate(H5P_LINK_CREATE), H5Pclose) {
    H5Pset_create_intermediate_group(links_.get(), 1);
  }

  // What every file of ours has.
  void add_root() {
    for (size_t i = 0; i < 7; ++i) {
      const bool is_number = i == 0 || i == 4 || i == 5;
      if (is_number) add_integers("/", kKeys[i], H5T_STD_I64LE, 1);
      if (!is_number) add_variable_text("/", kKeys[i], "prompt: a fox", H5T_CSET_UTF8, 1);
    }
  }

  void add_part(Recipe& recipe) {
    switch (recipe.pick(6)) {
      case 0:
      case 1:
        return add_dataset(recipe);
      case 2:
        return add_integers(recipe);
      case 3:
        return add_fixed_text(recipe);
      case 4:
        return add_variable_text(recipe);
      default:
        return add_link(recipe);
    }
  }

 private:
  static const char* object(Recipe& recipe) {
    return recipe.pick(2) == 0 ? "/" : recipe.of(kNames);
  }
  static hsize_t count(Recipe& recipe) { return recipe.pick(4) == 3 ? 1 + recipe.pick(100) : 1; }
  static hid_t element(Recipe& recipe) {
    const std::array types = {H5T_IEEE_F32LE, H5T_STD_U8LE,  H5T_STD_I64LE, H5T_IEEE_F64LE,
                              H5T_IEEE_F32BE, H5T_STD_U64BE, H5T_STD_I8LE};
    return recipe.of(types);
  }

  void add_dataset(Recipe& recipe) {
    const char* name = recipe.of(kNames);
    const hid_t type = element(recipe);
    std::array<hsize_t, 10> shape{};
    const size_t rank = recipe.pick(shape.size());
    hsize_t elements = 1;
    for (size_t i = 0; i < rank; ++i) elements *= shape[i] = recipe.of(kSizes);
    const H5Handle space(H5Screate_simple(static_cast<int>(rank), shape.data(), nullptr), H5Sclose);
    const H5Handle layout(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    choose_layout(recipe, layout.get(), std::span(shape).first(rank));
    const H5Handle dataset(
        H5Dcreate2(file_.get(), name, type, space.get(), links_.get(), layout.get(), H5P_DEFAULT),
        H5Dclose);
    static const std::vector<uint8_t> zeros(8 * 4096);
    if (dataset && elements <= 4096 && recipe.pick(4) != 0)
      H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
  }

  static void choose_layout(Recipe& recipe, hid_t layout, std::span<const hsize_t> shape) {
    const size_t kind = recipe.pick(5);
    if (kind == 1) H5Pset_layout(layout, H5D_COMPACT);
    if (kind == 2) H5Pset_external(layout, "/dev/zero", 0, 64);
    if (kind < 3) return;
    std::vector<hsize_t> chunk;
    for (const hsize_t size : shape) chunk.push_back(std::clamp<hsize_t>(size, 1, 2));
    H5Pset_chunk(layout, static_cast<int>(chunk.size()), chunk.data());
    H5Pset_fletcher32(layout);
    if (kind == 4) H5Pset_shuffle(layout);
  }

  void add_attribute(const char* where, const char* key, hid_t type, hsize_t count,
                     const void* values) {
    const H5Handle owner(H5Oopen(file_.get(), where, H5P_DEFAULT), H5Oclose);
    if (owner && H5Aexists(owner.get(), key) > 0) H5Adelete(owner.get(), key);
    const H5Handle space(count == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &count, nullptr),
                         H5Sclose);
    const H5Handle attribute(
        H5Acreate2(owner.get(), key, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    if (attribute) H5Awrite(attribute.get(), type, values);
  }

  void add_integers(const char* where, const char* key, hid_t type, hsize_t count) {
    const std::vector<int64_t> ones(count, 1);  // of eight bytes, no type has more
    add_attribute(where, key, type, count, ones.data());
  }

  // Of choices that are made in this order, whatever the compiler.
  void add_integers(Recipe& recipe) {
    const char* where = object(recipe);
    const char* key = recipe.of(kKeys);
    const hid_t type = element(recipe);
    add_integers(where, key, type, count(recipe));
  }

  void add_variable_text(Recipe& recipe) {
    const char* where = object(recipe);
    const char* key = recipe.of(kKeys);
    const H5T_cset_t set = recipe.pick(2) == 0 ? H5T_CSET_UTF8 : H5T_CSET_ASCII;
    const std::string_view text = recipe.of(kTexts);
    add_variable_text(where, key, text, set, count(recipe));
  }

  void add_fixed_text(Recipe& recipe) {
    const char* where = object(recipe);
    const char* key = recipe.of(kKeys);
    const H5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    const size_t size = 1 + recipe.pick(200);
    H5Tset_size(type.get(), size);
    H5Tset_strpad(type.get(), recipe.pick(2) == 0 ? H5T_STR_NULLTERM : H5T_STR_SPACEPAD);
    const hsize_t texts = count(recipe);
    const std::string text(size * texts, recipe.pick(2) == 0 ? 'x' : '\0');
    add_attribute(where, key, type.get(), texts, text.data());
  }

  void add_variable_text(const char* where, const char* key, std::string_view text, H5T_cset_t set,
                         hsize_t count) {
    const H5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.get(), H5T_VARIABLE);
    H5Tset_cset(type.get(), set);
    const std::vector<const char*> texts(count, text.data());  // all are literals
    add_attribute(where, key, type.get(), count, texts.data());
  }

  void add_link(Recipe& recipe) {
    const char* name = recipe.of(kNames);
    const char* target = recipe.of(kNames);
    const hid_t links = links_.get();
    switch (recipe.pick(4)) {
      case 0:
        H5Lcreate_soft(target, file_.get(), name, links, H5P_DEFAULT);
        break;
      case 1:
        H5Lcreate_external("/dev/zero", target, file_.get(), name, links, H5P_DEFAULT);
        break;
      case 2:
        H5Lcreate_hard(file_.get(), target, file_.get(), name, links, H5P_DEFAULT);
        break;
      default:
        H5Handle(H5Gcreate2(file_.get(), name, links, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
    }
  }

  H5Handle file_;
  H5Handle links_;
};

// Every file that is open has a table of half a megabyte. Getting it from the system each time took
// longer than all the rest.
void keep_memory_of_library() {
  constexpr int kNoLimit = -1;
  static const herr_t set =
      H5set_free_list_limits(kNoLimit, kNoLimit, kNoLimit, kNoLimit, kNoLimit, kNoLimit);
  check_internal(set >= 0, "the library keeps its memory");
}

}  // namespace

// By the order of the lists above: parts of one kind each, and two that belong together.
std::vector<Bytes> good_inputs() {
  return {{1},
          {1, 0, 1, 0, 5, 0, 1, 2, 3, 1, 3, 1},  // a latent of stage 1 in chunks
          {1, 5, 8, 8, 3, 4, 1, 8, 11, 0, 5, 0, 2, 1, 8, 11, 2, 0},
          {1, 3, 0, 2, 40, 0, 0, 0}};
}

std::vector<std::string> words() { return {std::string(2, '\0'), "\x01\x02\x03"}; }

void repair(Bytes& input, Random& random) {
  if (!input.empty() && chance(random, 90)) input[0] |= 1;  // with what every file has
}

}  // namespace flotilla::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  const fuzz::ScratchFile scratch({});
  {
    const io::H5Silence quiet;
    fuzz::keep_memory_of_library();
    fuzz::Recipe recipe(data, size);
    fuzz::FileMaker maker(scratch.path());
    if (recipe.pick(2) == 1) maker.add_root();
    for (int i = 0; i < fuzz::kMaxParts && !recipe.is_done(); ++i) maker.add_part(recipe);
  }
  io::add_seal(scratch.path(), "crafted");
  return fuzz::outcome_of([&] { io::read_latents(scratch.path()); });
}
