// Tests that need a GPU skip with a reason where there is none.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#define FLOTILLA_REQUIRE_GPU() \
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device (or a build without CUDA)"
