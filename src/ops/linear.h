// Matrix products, and functions of elements, over the rows of a token tensor.
// A BLAS library chooses its kernel by the number of rows, and kernels differ in the last bits: a
// token's result depends on how many others are computed with it. With FixedRowBlocks it does not:
// rows run in blocks of 64, the last one filled with zeros, so any split of the tokens over ranks
// gives equal bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace flotilla::ops {

constexpr int64_t kRowBlock = 64;

// While one lives, this thread works in fixed blocks of rows: linear(), dot_product() of
// attention.h with its queries; by_rows() row by row. For `reproducible: world`.
class FixedRowBlocks {
 public:
  FixedRowBlocks();
  ~FixedRowBlocks();
  FixedRowBlocks(const FixedRowBlocks&) = delete;
  FixedRowBlocks& operator=(const FixedRowBlocks&) = delete;

  static bool active();

 private:
  bool before_;
};

// Weight and bias are of the type of the input, or e4m3. Without scales e4m3 is storage alone: it
// is made wide for each product. With scales the product itself is of 8-bit numbers, see
// fp8_linear.h.
struct LinearWeights {
  at::Tensor weight;      // [out, in]
  at::Tensor bias;        // [out] or undefined
  at::Tensor row_scales;  // [out], float32, of an e4m3 weight; undefined: none
};

// x [..., in] times the weight transposed, plus the bias -> [..., out], of the type of x.
at::Tensor linear(const at::Tensor& x, const LinearWeights& layer);
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

// Takes "<name>.weight" and, with `bias`, "<name>.bias". Binder is loader::WeightBinder; a
// template, because ops/ does not know loader/.
template <typename Binder>
LinearWeights bind_linear(Binder& binder, std::string_view name, int64_t in, int64_t out,
                          bool bias = true) {
  const std::string weight = std::string(name) + ".weight";
  LinearWeights layer;
  layer.weight = binder.take(weight, {out, in});
  if (bias) layer.bias = binder.take(std::string(name) + ".bias", {out});
  layer.row_scales = binder.row_scales(weight);
  return layer;
}

// Rows [begin, begin + size) along `axis`, filled with zeros to kRowBlock; size <= kRowBlock.
at::Tensor row_block(const at::Tensor& x, int64_t axis, int64_t begin, int64_t size);

// `function` of the elements of x [..., D]. Vector and scalar code of exp() and its like differ in
// the last bits, and the scalar code gets what is left over at the end of a thread's share: with
// FixedRowBlocks each row is a share of its own.
at::Tensor by_rows(const at::Tensor& x, at::Tensor (*function)(const at::Tensor&));

}  // namespace flotilla::ops
