#include "app/bench_support.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/temp_file.h"
#include "gpu/device.h"
#include "io/file_bytes.h"

namespace flotilla::app {

void draw_weights(loader::WeightArena& arena) {
  constexpr double kStd = 0.02;
  for (const auto& [name, view] : arena.views()) {
    at::Tensor weight = view;
    if (name.ends_with("norm.weight")) {
      weight.fill_(1.0);
    } else if (at::isFloatingType(weight.scalar_type()) && weight.element_size() > 1) {
      weight.normal_(0.0, kStd);
    } else if (at::isFloatingType(weight.scalar_type())) {
      const auto wide = at::TensorOptions(weight.device()).dtype(at::kBFloat16);
      weight.copy_(at::randn(weight.sizes(), wide) * kStd);
    }
  }
  for (const auto& [name, scales] : arena.row_scales()) at::Tensor(scales).fill_(1.0);
  arena.set_loaded();
}

at::ScalarType bench_dtype(const std::string& precision) {
  if (precision == "bf16") return at::kBFloat16;
  if (precision == "fp32") return at::kFloat;
  fail(ErrorKind::usage, fmt::format("--precision is bf16 or fp32 here, not \"{}\"", precision));
}

double seconds_of(at::Device device, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  gpu::synchronize(device);
  const auto start = Clock::now();
  work();
  gpu::synchronize(device);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double rate_of(at::Device device, double flop, const std::function<void()>& work) {
  const double once = std::min(seconds_of(device, work), seconds_of(device, work));
  const int calls = static_cast<int>(std::clamp(0.25 / once, 1.0, 2000.0));
  const double all = seconds_of(device, [&] {
    for (int i = 0; i < calls; ++i) work();
  });
  return flop * calls / all;
}

TimeSummary time_calls(at::Device device, int warmup, int iters,
                       const std::function<void()>& work) {
  for (int i = 0; i < warmup; ++i) work();
  std::vector<double> times;
  for (int i = 0; i < iters; ++i) times.push_back(1e3 * seconds_of(device, work));
  return summary_of(std::move(times));
}

TimeSummary summary_of(std::vector<double> milliseconds) {
  FLOTILLA_ASSERT(!milliseconds.empty());
  std::sort(milliseconds.begin(), milliseconds.end());
  return {milliseconds.front(), milliseconds[milliseconds.size() / 2], milliseconds.back()};
}

void write_bench_json(const std::string& file, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(1) + "\n";
  PendingFile pending(file, /*overwrite=*/true);
  io::write_bytes(pending.temporary(), file,
                  {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  pending.commit();
}

}  // namespace flotilla::app
