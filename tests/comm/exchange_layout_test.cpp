// The index arithmetic of the head exchange, also with sizes that no memory could hold.
#include "comm/exchange_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace flotilla::comm {
namespace {

TEST(TokenShardsTest, EveryTokenHasOneOwner) {
  for (int64_t tokens = 1; tokens < 40; ++tokens) {
    for (int64_t world = 1; world <= 8; ++world) {
      const TokenShards shards{tokens, world};
      int64_t next = 0;
      for (int64_t rank = 0; rank < world; ++rank) {
        EXPECT_EQ(shards.begin(rank), next);
        EXPECT_LE(shards.count(rank), shards.padded_local());
        next += shards.count(rank);
      }
      EXPECT_EQ(next, tokens);
      EXPECT_LT(shards.padded_local() * world - tokens, world);
    }
  }
}

// All bytes that peers write into one rank's buffer: each one once, none outside.
void expect_filled_once(int64_t bytes, const std::vector<BlockCopy>& blocks) {
  std::set<int64_t> written;
  for (const BlockCopy& block : blocks) {
    for (int64_t b = 0; b < block.batches; ++b) {
      for (int64_t row = 0; row < block.rows; ++row) {
        for (int64_t w = 0; w < block.row_bytes; ++w)
          EXPECT_TRUE(written.insert(block.to.at(b, row) + w).second);
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(written.size()), bytes);
  if (!written.empty()) {
    EXPECT_EQ(*written.begin(), 0);
    EXPECT_EQ(*written.rbegin(), bytes - 1);
  }
}

TEST(ExchangeLayoutTest, ReceivedBlocksTileTheBuffer) {
  for (const int64_t world : {2, 3, 4, 8}) {
    for (const int64_t tokens : {1, 5, 8, 11}) {
      const TokenShards shards{tokens, world};
      const int64_t token_bytes = world * 3;
      std::vector<BlockCopy> to_heads, to_all;
      for (int64_t from = 0; from < world; ++from) {
        to_heads.push_back(tokens_to_heads(shards, 2, token_bytes, from, 1));
        to_all.push_back(heads_to_all(tokens, world, 2, token_bytes, from));
      }
      expect_filled_once(2 * tokens * 3, to_heads);
      expect_filled_once(2 * tokens * token_bytes, to_all);
    }
  }
}

TEST(ExchangeLayoutTest, TheWayBackIsTheInverse) {
  const TokenShards shards{11, 4};
  for (int64_t self = 0; self < 4; ++self) {
    for (int64_t peer = 0; peer < 4; ++peer) {
      const BlockCopy out = tokens_to_heads(shards, 2, 64, self, peer);
      const BlockCopy back = heads_to_tokens(shards, 2, 64, peer, self);
      ASSERT_EQ(out.rows, back.rows);
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t row = 0; row < out.rows; ++row) {
          EXPECT_EQ(out.from.at(b, row), back.to.at(b, row));
          EXPECT_EQ(out.to.at(b, row), back.from.at(b, row));
        }
      }
    }
  }
}

TEST(ExchangeLayoutTest, OffsetsGoPast32Bits) {
  // 3 samples of 2^20 tokens of 2^14 bytes: 2^34 bytes a sample.
  const int64_t tokens = int64_t{1} << 20;
  const int64_t token_bytes = int64_t{1} << 14;
  const TokenShards shards{tokens, 8};
  const BlockCopy out = tokens_to_heads(shards, 3, token_bytes, 7, 5);
  const int64_t last_row = shards.count(7) - 1;
  EXPECT_EQ(out.from.at(2, last_row),
            2 * (tokens / 8) * token_bytes + last_row * token_bytes + 5 * (token_bytes / 8));
  EXPECT_EQ(out.to.at(2, last_row), (3 * tokens - 1) * (token_bytes / 8));
  const BlockCopy all = heads_to_all(tokens, 8, 3, token_bytes, 7);
  EXPECT_EQ(all.to.at(2, tokens - 1), 3 * tokens * token_bytes - token_bytes / 8);
  EXPECT_GT(all.to.at(2, tokens - 1), int64_t{1} << 35);
}

}  // namespace
}  // namespace flotilla::comm
