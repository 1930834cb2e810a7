#include "base/error.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(ErrorTest, KindsMapToTheDocumentedExitCodes) {
  EXPECT_EQ(exit_code(ErrorKind::internal), 1);
  EXPECT_EQ(exit_code(ErrorKind::usage), 2);
  EXPECT_EQ(exit_code(ErrorKind::config), 2);
  EXPECT_EQ(exit_code(ErrorKind::input), 3);
  EXPECT_EQ(exit_code(ErrorKind::machine), 4);
  EXPECT_EQ(exit_code(ErrorKind::memory), 5);
  EXPECT_EQ(exit_code(ErrorKind::communication), 6);
  EXPECT_EQ(exit_code(ErrorKind::non_finite), 7);
  EXPECT_EQ(exit_code(ErrorKind::output), 8);
  EXPECT_EQ(exit_code(ErrorKind::failed_jobs), 9);
  EXPECT_EQ(exit_code(ErrorKind::stopped), 75);
}

TEST(ErrorTest, ContextsStandOutermostFirst) {
  try {
    with_context("stage 2", [] {
      with_context("block 17", [] { fail(ErrorKind::input, "no such tensor"); });
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "stage 2: block 17: no such tensor");
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_EQ(error.message(), "no such tensor");
    EXPECT_NE(std::string(error.where().file_name()).find("error_test.cpp"), std::string::npos);
  }
}

TEST(ErrorTest, BrokenInvariantIsInternal) {
  try {
    FLOTILLA_ASSERT(1 + 1 == 3);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
    EXPECT_NE(error.message().find("1 + 1 == 3"), std::string::npos);
  }
}

}  // namespace
}  // namespace flotilla
