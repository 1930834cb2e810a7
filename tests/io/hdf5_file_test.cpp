// HDF5 files: round trips, and files that lie about themselves, made with the library's own calls.
#include "io/hdf5_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "io_support.h"
#include "support/compare.h"
#include "support/temp_dir.h"

namespace flotilla::io {
namespace {

using testing::error_of;
using testing::holds;

void write_sample(const std::filesystem::path& path, const at::Tensor& tensor,
                  bool overwrite = false) {
  H5PendingFile pending(path, overwrite);
  pending.file().write("group/data", tensor,
                       std::vector<std::string>(static_cast<size_t>(tensor.dim()), "axis"));
  pending.commit();
}

TEST(H5FileTest, RoundTripsTensorsDimsAndAttributes) {
  const test::TempDir folder;
  at::manual_seed(2);
  const at::Tensor floats = at::randn({2, 3, 5});
  const at::Tensor bytes = at::randint(0, 256, {7}, at::kByte);
  const at::Tensor large = at::randn({3, 1000, 1001});  // more than one chunk, uneven
  const std::string text = "prompt: ä\n" + std::string(100'000, 'x');
  H5PendingFile pending(folder / "a.h5", false);
  pending.file().write("one/two/floats", floats, {"batch", "token", "channel"});
  pending.file().write("bytes", bytes, {"byte"});
  pending.file().write("large", large, {"a", "b", "c"});
  pending.file().write("halves", floats.to(at::kBFloat16), {"a", "b", "c"});
  pending.file().write_text("", "text", text);
  pending.file().write_integer("one/two", "number", -(int64_t{1} << 62));
  pending.commit();

  const H5File file = H5File::open(folder / "a.h5");
  EXPECT_EQ(file.datasets(),
            (std::vector<std::string>{"bytes", "halves", "large", "one/two/floats"}));
  EXPECT_TRUE(test::same_bytes(file.read("one/two/floats"), floats));
  EXPECT_TRUE(test::same_bytes(file.read("bytes"), bytes));
  EXPECT_TRUE(test::same_bytes(file.read("large"), large));
  EXPECT_TRUE(test::same_bytes(file.read("halves"), floats.to(at::kBFloat16).to(at::kFloat)));
  EXPECT_EQ(file.read_dims("one/two/floats"),
            (std::vector<std::string>{"batch", "token", "channel"}));
  EXPECT_EQ(file.read_text("", "text"), text);
  EXPECT_EQ(file.read_integer("one/two", "number"), -(int64_t{1} << 62));
  EXPECT_EQ(file.read_text("", "missing"), std::nullopt);
  EXPECT_EQ(file.read_text("no/object", "missing"), std::nullopt);
  EXPECT_TRUE(
      holds(error_of([&] { file.read_integer("", "text"); }), ErrorKind::input, "not an integer"));
  EXPECT_TRUE(holds(error_of([&] { file.read("none"); }), ErrorKind::input, "\"none\" is missing"));
}

TEST(H5FileTest, EqualContentGivesEqualBytes) {
  const test::TempDir folder;
  const at::Tensor tensor = at::arange(100, at::kFloat);
  write_sample(folder / "a.h5", tensor);
  write_sample(folder / "b.h5", tensor);
  EXPECT_EQ(test::read_file(folder / "a.h5"), test::read_file(folder / "b.h5"));
}

TEST(H5FileTest, ChecksumsFindEveryFlippedByteOfTheData) {
  const test::TempDir folder;
  const at::Tensor tensor = at::arange(1, 2001, at::kFloat);
  write_sample(folder / "a.h5", tensor);
  const std::string whole = test::read_file(folder / "a.h5");
  const size_t data = whole.find(std::string(static_cast<const char*>(tensor.data_ptr()), 64));
  ASSERT_NE(data, std::string::npos);
  for (size_t at = data; at < data + 8000; at += 501) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    test::write_file(folder / "b.h5", damaged);
    const H5File file = H5File::open(folder / "b.h5");
    EXPECT_TRUE(holds(error_of([&] { file.read("group/data"); }), ErrorKind::input, "damaged"))
        << at;
  }
}

TEST(H5FileTest, RefusesCutFilesAndOtherFiles) {
  const test::TempDir folder;
  write_sample(folder / "a.h5", at::arange(2000, at::kFloat));
  std::string whole = test::read_file(folder / "a.h5");
  whole.resize(whole.size() - 24);  // without the seal, which H5File::open() does not need
  for (size_t size = 0; size < whole.size(); size += whole.size() / 16) {
    test::write_file(folder / "cut.h5", whole.substr(0, size));
    const Error error = error_of([&] { H5File::open(folder / "cut.h5").read("group/data"); });
    EXPECT_TRUE(holds(error, ErrorKind::input, "cut.h5")) << size;
    EXPECT_EQ(error.message().find("HDF5_USE_FILE_LOCKING"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("truncated"), std::string::npos) << error.message();
  }
  test::write_file(folder / "text.h5", "no numbers here");
  EXPECT_TRUE(holds(error_of([&] { H5File::open(folder / "text.h5"); }), ErrorKind::input,
                    "not an HDF5 file"));
  EXPECT_TRUE(
      holds(error_of([&] { H5File::open(folder / "none.h5"); }), ErrorKind::input, "no such file"));
  EXPECT_TRUE(
      holds(error_of([&] { H5File::open(folder.path()); }), ErrorKind::input, "is not a file"));
}

// Makes a file by hand.
void craft(const std::filesystem::path& path, const std::function<void(hid_t)>& body) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  body(file);
  H5Fclose(file);
}

// A dataset "data" without any content written to it.
void craft_dataset(hid_t file, std::vector<hsize_t> shape, hid_t type,
                   const std::function<void(hid_t)>& layout) {
  const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
  const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
  layout(plist);
  const hid_t data = H5Dcreate2(file, "data", type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  H5Dclose(data);
  H5Pclose(plist);
  H5Sclose(space);
}

TEST(H5FileTest, RefusesDatasetsThatClaimMoreThanTheyStore) {
  const test::TempDir folder;
  craft(folder / "huge.h5", [](hid_t file) {
    craft_dataset(file, {1 << 20, 1 << 20, 1 << 20}, H5T_IEEE_F32LE, [](hid_t plist) {
      const hsize_t chunk[] = {16, 16, 16};
      H5Pset_chunk(plist, 3, chunk);
    });
  });
  const H5File file = H5File::open(folder / "huge.h5");
  EXPECT_TRUE(holds(error_of([&] { file.read("data"); }), ErrorKind::input, "claims the shape"));
}

TEST(H5FileTest, RefusesCompressionOtherTypesAndExternalData) {
  const test::TempDir folder;
  const auto refused = [&](hid_t type, const std::function<void(hid_t)>& layout,
                           const std::string& reason) {
    craft(folder / "odd.h5", [&](hid_t file) { craft_dataset(file, {4, 4}, type, layout); });
    const H5File file = H5File::open(folder / "odd.h5");
    EXPECT_TRUE(holds(error_of([&] { file.read("data"); }), ErrorKind::input, reason));
  };
  const auto plain = [](hid_t) {};
  refused(H5T_IEEE_F64LE, plain, "neither float32 nor uint8");
  refused(H5T_IEEE_F32BE, plain, "neither float32 nor uint8");
  refused(
      H5T_IEEE_F32LE, [](hid_t plist) { H5Pset_external(plist, "/etc/passwd", 0, 64); },
      "another file");
  refused(
      H5T_IEEE_F32LE,
      [](hid_t plist) {
        const hsize_t chunk[] = {4, 4};
        H5Pset_chunk(plist, 2, chunk);
        H5Pset_shuffle(plist);
      },
      "filtered");
}

TEST(H5FileTest, FollowsNoLinksOutOfTheFile) {
  const test::TempDir folder;
  write_sample(folder / "other.h5", at::arange(10, at::kFloat));
  craft(folder / "link.h5", [&](hid_t file) {
    H5Lcreate_external((folder / "other.h5").c_str(), "/group/data", file, "data", H5P_DEFAULT,
                       H5P_DEFAULT);
    H5Lcreate_soft("/data", file, "soft", H5P_DEFAULT, H5P_DEFAULT);
  });
  const H5File file = H5File::open(folder / "link.h5");
  EXPECT_TRUE(file.datasets().empty());
  EXPECT_TRUE(holds(error_of([&] { file.read("data"); }), ErrorKind::input, "is missing"));
}

TEST(H5FileTest, LockedFileNamesTheVariable) {
  const test::TempDir folder;
  write_sample(folder / "a.h5", at::arange(10, at::kFloat));
  const int fd = ::open((folder / "a.h5").c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const Error error = error_of([&] { H5File::open(folder / "a.h5"); });
  ::close(fd);
  EXPECT_TRUE(holds(error, ErrorKind::input, "HDF5_USE_FILE_LOCKING=FALSE"));
}

TEST(H5FileTest, ForbiddenFileSaysSo) {
  const test::TempDir folder;
  write_sample(folder / "a.h5", at::arange(10, at::kFloat));
  const auto refusal = [&](const std::filesystem::path& forbidden) {
    std::filesystem::permissions(forbidden, std::filesystem::perms::none);
    // Root may read all, so it becomes nobody meanwhile.
    const bool is_root = ::geteuid() == 0;
    if (is_root) EXPECT_EQ(::seteuid(65534), 0);
    const Error error = error_of([&] { H5File::open(folder / "a.h5"); });
    if (is_root) EXPECT_EQ(::seteuid(0), 0);
    std::filesystem::permissions(forbidden, std::filesystem::perms(0755));
    return error;
  };
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  EXPECT_TRUE(holds(refusal(folder / "a.h5"), ErrorKind::input, "Permission denied"));
  EXPECT_TRUE(holds(refusal(folder.path()), ErrorKind::input, "Permission denied"));
}

// As on a full disk, in one line: the library's own has times, addresses and the temporary name.
TEST(H5FileTest, LimitOnTheSizeIsAnOutputErrorInOneLine) {
  const test::TempDir folder;
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto old_action = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const Error error = error_of([&] { write_sample(folder / "a.h5", at::randn({1000, 1000})); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, old_action);
  EXPECT_EQ(error.kind(), ErrorKind::output);
  EXPECT_EQ(error.message(),
            fmt::format("\"{}\": cannot write \"group/data\": file write failed: File too large",
                        (folder / "a.h5").string()));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(H5FileTest, AppearsWholeAndKeepsThePreviousOne) {
  const test::TempDir folder;
  write_sample(folder / "a.h5", at::zeros({3}));
  EXPECT_TRUE(holds(error_of([&] { write_sample(folder / "a.h5", at::ones({3})); }),
                    ErrorKind::output, "overwrite"));
  {
    H5PendingFile abandoned(folder / "a.h5", true);
    abandoned.file().write("group/data", at::ones({3}), {"axis"});
  }
  EXPECT_TRUE(test::same_bytes(H5File::open(folder / "a.h5").read("group/data"), at::zeros({3})));
  for (const float value : {1.0F, 2.0F}) {
    H5PendingFile pending(folder / "a.h5", true);
    pending.file().write("group/data", at::full({3}, value), {"axis"});
    pending.commit(/*keep_previous=*/true);
  }
  EXPECT_TRUE(
      test::same_bytes(H5File::open(folder / "a.h5").read("group/data"), at::full({3}, 2.0F)));
  EXPECT_TRUE(
      test::same_bytes(H5File::open(folder / "a_prev.h5").read("group/data"), at::ones({3})));
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    files += entry.exists() ? 1 : 0;
  EXPECT_EQ(files, 2);
}

TEST(H5FileTest, FullDiskIsAnOutputErrorAndTheOldFileStays) {
  const test::TempDir folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "needs the right to mount a tmpfs";
  }
  write_sample(folder / "a.h5", at::zeros({3}));
  const Error error = error_of([&] {
    write_sample(folder / "a.h5", at::randn({1000, 1000}), true);
  });
  EXPECT_TRUE(holds(error, ErrorKind::output, "a.h5"));
  EXPECT_TRUE(holds(error, ErrorKind::output, "No space left on device"));
  EXPECT_TRUE(test::same_bytes(H5File::open(folder / "a.h5").read("group/data"), at::zeros({3})));
  ::umount2(folder.path().c_str(), MNT_DETACH);
}

TEST(H5FileTest, SurvivesDamageInTheHeaders) {
  const test::TempDir folder;
  write_sample(folder / "a.h5", at::arange(10, at::kFloat));
  const std::string whole = test::read_file(folder / "a.h5");
  for (size_t at = 8; at < whole.size(); at += 13) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    test::write_file(folder / "b.h5", damaged);
    try {
      const H5File file = H5File::open(folder / "b.h5");
      for (const std::string& name : file.datasets()) file.read(name);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    }
  }
}

}  // namespace
}  // namespace flotilla::io
