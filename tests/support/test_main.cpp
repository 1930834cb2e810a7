// main() of every test program with tensors: no gradients are kept anywhere.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const c10::InferenceMode no_gradients;
  return RUN_ALL_TESTS();
}
