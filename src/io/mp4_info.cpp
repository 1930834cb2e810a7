#include "io/mp4_info.h"

#include <fmt/format.h>

#include <fstream>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace flotilla::io {
namespace {

// The index of an hour of video has a few megabytes.
constexpr uint64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kBoxHeaderBytes = 8;

[[noreturn]] void fail_damaged(std::string_view what) {
  fail(ErrorKind::input, fmt::format("damaged mp4: {}", what));
}

// Big-endian numbers of a box; reading past its end is an error.
class Box {
 public:
  explicit Box(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  size_t size() const { return bytes_.size(); }
  uint64_t number(size_t at, size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) fail_damaged("a box is too short");
    uint64_t value = 0;
    for (size_t i = 0; i < count; ++i) value = value << 8 | bytes_[at + i];
    return value;
  }
  int64_t u16(size_t at) const { return static_cast<int64_t>(number(at, 2)); }
  int64_t u32(size_t at) const { return static_cast<int64_t>(number(at, 4)); }
  std::string name(size_t at) const {
    number(at, 4);
    return std::string(reinterpret_cast<const char*>(bytes_.data()) + at, 4);
  }
  std::string text() const { return {bytes_.begin(), bytes_.end()}; }
  Box from(size_t at) const {
    if (at > bytes_.size()) fail_damaged("a box is too short");
    return Box(bytes_.subspan(at));
  }
  // Calls `visit` with the name and the content of every child.
  void for_each(const std::function<void(const std::string&, const Box&)>& visit) const {
    size_t at = 0;
    while (at + kBoxHeaderBytes <= bytes_.size()) {
      const uint64_t length = number(at, 4);
      if (length < kBoxHeaderBytes || length > bytes_.size() - at)
        fail_damaged("a box is longer than its parent");
      visit(name(at + 4), Box(bytes_.subspan(at + kBoxHeaderBytes, length - kBoxHeaderBytes)));
      at += length;
    }
  }

 private:
  std::span<const uint8_t> bytes_;
};

// Sample entry of "stsd": common fields, then those of pictures or sound.
void read_sample_entry(const Box& stsd, bool is_video, TrackInfo& track) {
  constexpr size_t kEntry = 8 + kBoxHeaderBytes;  // version, count; size and name of the entry
  constexpr size_t kVideoFields = 78;
  track.codec = stsd.name(12);
  const Box entry = stsd.from(kEntry);
  if (!is_video) {
    track.channels = entry.u16(16);
    track.sample_rate = entry.u16(24);
    return;
  }
  track.width = entry.u16(24);
  track.height = entry.u16(26);
  entry.from(kVideoFields).for_each([&](const std::string& name, const Box& box) {
    if (name != "colr" || box.name(0) != "nclx") return;
    track.color = ColorTags{static_cast<int>(box.u16(4)), static_cast<int>(box.u16(6)),
                            static_cast<int>(box.u16(8)), (box.number(10, 1) & 0x80) != 0};
  });
}

// "stts": runs of samples with one duration each.
void read_sample_times(const Box& stts, TrackInfo& track) {
  const int64_t runs = stts.u32(4);
  for (int64_t i = 0; i < runs; ++i) {
    const auto at = static_cast<size_t>(8 + i * 8);
    track.num_samples += stts.u32(at);
    track.duration += stts.u32(at) * stts.u32(at + 4);
  }
}

// "elst": the parts of the track that are shown, in ticks of the film; -1 marks an empty part.
int64_t read_shown_ticks(const Box& elst) {
  const bool wide = elst.number(0, 1) == 1;
  const size_t number_bytes = wide ? 8 : 4;
  const size_t entry_bytes = 2 * number_bytes + 4;
  const int64_t entries = elst.u32(4);
  int64_t shown = 0;
  for (int64_t i = 0; i < entries; ++i) {
    const size_t at = 8 + static_cast<size_t>(i) * entry_bytes;
    const uint64_t start = elst.number(at + number_bytes, number_bytes);
    const bool empty = start == (wide ? UINT64_MAX : UINT32_MAX);
    if (!empty) shown += static_cast<int64_t>(elst.number(at, number_bytes));
  }
  return shown;
}

void read_track(const Box& trak, int64_t movie_timescale, Mp4Info& info) {
  TrackInfo track;
  std::string handler;
  std::optional<Box> stsd;
  std::optional<int64_t> shown_ticks;
  const std::function<void(const std::string&, const Box&)> visit = [&](const std::string& name,
                                                                        const Box& box) {
    if (name == "mdia" || name == "minf" || name == "stbl" || name == "edts") box.for_each(visit);
    if (name == "hdlr") handler = box.name(8);
    if (name == "mdhd") track.timescale = box.u32(box.number(0, 1) == 1 ? 20 : 12);
    if (name == "stsd") stsd = box;
    if (name == "stts") read_sample_times(box, track);
    if (name == "elst") shown_ticks = read_shown_ticks(box);
  };
  trak.for_each(visit);
  if (!stsd || track.timescale < 1) fail_damaged("a track without description");
  track.shown_s = shown_ticks && movie_timescale > 0
                      ? static_cast<double>(*shown_ticks) / static_cast<double>(movie_timescale)
                      : static_cast<double>(track.duration) / static_cast<double>(track.timescale);
  read_sample_entry(*stsd, handler == "vide", track);
  if (handler == "vide") info.video = track;
  if (handler == "soun") info.audio = track;
}

// "udta": among the tags that iTunes introduced is the comment, as UTF-8.
std::string read_comment(const Box& udta) {
  std::string comment;
  const std::function<void(const std::string&, const Box&)> visit = [&](const std::string& name,
                                                                        const Box& box) {
    // "meta" begins with a version, but not in QuickTime files.
    if (name == "meta") box.from(box.name(4) == "hdlr" ? 0 : 4).for_each(visit);
    if (name == "ilst" || name ==
                              "\xA9"
                              "cmt")
      box.for_each(visit);
    if (name == "data" && comment.empty()) comment = box.from(8).text();
  };
  udta.for_each(visit);
  return comment;
}

struct Index {
  std::vector<uint8_t> moov;
  bool in_front = true;
};

// Walks the boxes of the file itself, which may be larger than memory.
Index read_index(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::error_code code;
  const uint64_t file_bytes = std::filesystem::file_size(path, code);
  if (!stream || code) fail(ErrorKind::input, "cannot be opened");
  Index index;
  uint64_t at = 0;
  while (at + kBoxHeaderBytes <= file_bytes) {
    std::vector<uint8_t> head(16);
    stream.clear();
    stream.seekg(static_cast<std::streamoff>(at));
    stream.read(reinterpret_cast<char*>(head.data()), 16);
    const Box box(head);
    const bool wide = box.number(0, 4) == 1;
    const uint64_t length = wide ? box.number(8, 8) : box.number(0, 4);
    const uint64_t head_bytes = wide ? 16 : kBoxHeaderBytes;
    if (length < head_bytes || length > file_bytes - at) fail_damaged("the file is cut short");
    if (box.name(4) == "mdat" && index.moov.empty()) index.in_front = false;
    if (box.name(4) == "moov") {
      if (length > kMaxIndexBytes) fail_damaged("the index is too large");
      index.moov.resize(length - head_bytes);
      stream.clear();
      stream.seekg(static_cast<std::streamoff>(at + head_bytes));
      stream.read(reinterpret_cast<char*>(index.moov.data()),
                  static_cast<std::streamsize>(index.moov.size()));
      if (!stream) fail_damaged("the index cannot be read");
    }
    at += length;
  }
  if (index.moov.empty()) fail_damaged("no index");
  return index;
}

}  // namespace

Mp4Info read_mp4_info(const std::filesystem::path& path) {
  return with_context(fmt::format("\"{}\"", path.string()), [&] {
    const Index index = read_index(path);
    Mp4Info info;
    info.index_in_front = index.in_front;
    const Box moov{std::span(index.moov)};
    int64_t movie_timescale = 0;
    moov.for_each([&](const std::string& name, const Box& box) {
      if (name == "mvhd") movie_timescale = box.u32(box.number(0, 1) == 1 ? 20 : 12);
      if (name == "trak") read_track(box, movie_timescale, info);
      if (name == "udta") info.comment = read_comment(box);
    });
    return info;
  });
}

}  // namespace flotilla::io
