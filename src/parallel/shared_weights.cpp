#include "parallel/shared_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "comm/agreement.h"

namespace flotilla::parallel {
namespace {

std::vector<loader::ArenaShare> shares_of(const loader::WeightArena& arena, int world_size) {
  std::vector<loader::ArenaShare> shares;
  for (int r = 0; r < world_size; ++r) shares.push_back(arena.share(r, world_size));
  return shares;
}

template <typename Body>
void agreed(comm::Communicator* communicator, Body&& body) {
  if (communicator == nullptr) {
    body();
  } else {
    comm::agreed(*communicator, std::forward<Body>(body));
  }
}

// What the driver tells of a checkpoint: headers, or why there are none. CBOR, since a header may
// be any bytes.
std::string pack_headers(const loader::ReadHeaders& read, const std::filesystem::path& path) {
  auto files = nlohmann::json::array();
  try {
    for (const auto& [file, text, bytes] : read(path))
      files.push_back({file.string(), text.json, text.file_bytes, text.modified_ns});
  } catch (...) {
    const Error error = comm::current_error();
    files = {{"kind", static_cast<int>(error.kind())}, {"message", error.message()}};
  }
  const auto bytes = nlohmann::json::to_cbor(files);
  return {bytes.begin(), bytes.end()};
}

std::vector<loader::FileHeader> unpack_headers(const std::string& packed) {
  const auto files = nlohmann::json::from_cbor(packed);
  if (files.is_object()) {
    fail(static_cast<ErrorKind>(files.at("kind").get<int>()),
         files.at("message").get<std::string>());
  }
  std::vector<loader::FileHeader> headers;
  for (const auto& file : files) {
    headers.push_back(
        {file.at(0).get<std::string>(), {file.at(1).get<std::string>(), file.at(2), file.at(3)}});
  }
  return headers;
}

}  // namespace

loader::ReadHeaders headers_from_driver(comm::Communicator& communicator,
                                        loader::ReadHeaders read) {
  return [&communicator, read = std::move(read)](const std::filesystem::path& path) {
    comm::agree(communicator, std::nullopt);
    const bool reads = communicator.rank() == 0;
    const std::string own = reads ? pack_headers(read, path) : "";
    auto headers = unpack_headers(communicator.broadcast(own, 0));
    if (reads) {
      for (auto& header : headers)
        header.bytes_read = static_cast<int64_t>(header.text.json.size());
    }
    return headers;
  };
}

void load_shared(loader::WeightArena& arena, comm::Communicator& communicator) {
  std::vector<comm::ByteRange> ranges;
  comm::agreed(communicator, [&] {
    const auto shares = shares_of(arena, communicator.world_size());
    for (const auto& share : shares) ranges.push_back({share.begin, share.end});
    arena.load_share(shares[static_cast<size_t>(communicator.rank())]);
  });
  communicator.all_gather_in_place(arena.storage(), ranges);
  arena.set_loaded();
}

SharedWeights::SharedWeights(std::shared_ptr<loader::WeightArena> arena,
                             comm::Communicator* communicator, const SharedWeightsOptions& options)
    : arena_(std::move(arena)),
      communicator_(communicator),
      options_(options),
      shares_(shares_of(*arena_, communicator == nullptr ? 1 : communicator->world_size())),
      own_(arena_, shares_[communicator == nullptr ? 0 : communicator->rank()], options.clean,
           options.clean_device) {
  FLOTILLA_ASSERT(arena_->loaded());
}

void SharedWeights::read_factors(const loader::LoraSet& set) {
  agreed(communicator_, [&] { own_.read_factors(set, factors_); });
}

void SharedWeights::set_loras(const loader::LoraSet& set) {
  if (communicator_ != nullptr) {
    comm::agree_on(*communicator_, "the set of LoRAs",
                   static_cast<int64_t>(std::hash<std::string>()(set.identity())));
  }
  if (set.identity() == current_.identity()) return;
  if (options_.clean == loader::FusedShare::Clean::read_again && !current_.identity().empty()) {
    agreed(communicator_, [] {
      fail(ErrorKind::config,
           "models.fixed_loras: true keeps no clean copy of the weights, so the LoRAs cannot be "
           "changed; use models.fixed_loras: false");
    });
  }
  const auto ranges = changed_ranges(current_, set);
  current_ = {};  // what every way out with an error leaves
  try {
    agreed(communicator_, [&] { own_.fuse(set, factors_, options_.aggregation); });
  } catch (const comm::AgreedError&) {
    agreed(communicator_, [&] { own_.restore(); });
    gather(ranges);
    throw;
  }
  gather(ranges);
  current_ = set;
}

std::vector<comm::ByteRange> SharedWeights::changed_ranges(const loader::LoraSet& a,
                                                           const loader::LoraSet& b) const {
  std::vector<comm::ByteRange> ranges;
  for (const auto& share : shares_) {
    comm::ByteRange range{share.end, share.begin};
    for (const auto& piece : share.pieces) {
      if (!a.changes(piece.name) && !b.changes(piece.name)) continue;
      range.begin = std::min(range.begin, piece.arena_begin);
      range.end = std::max(range.end, piece.arena_end);
    }
    ranges.push_back(range.begin < range.end ? range : comm::ByteRange{});
  }
  return ranges;
}

void SharedWeights::gather(std::span<const comm::ByteRange> ranges) {
  if (communicator_ != nullptr) communicator_->all_gather_in_place(arena_->storage(), ranges);
}

}  // namespace flotilla::parallel
