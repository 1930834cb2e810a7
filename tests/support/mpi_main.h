// What a test under mpirun needs: the ranks that the program opened.
#pragma once

#include "comm/rank_context.h"

namespace flotilla::test {

comm::RankContext& ranks();

}  // namespace flotilla::test

// At the start of a test that makes no sense with fewer ranks; says so.
#define FLOTILLA_NEEDS_RANKS(count)                             \
  if (::flotilla::test::ranks().world_size() < (count))         \
  GTEST_SKIP() << "needs " << (count) << " ranks or more, has " \
               << ::flotilla::test::ranks().world_size()
