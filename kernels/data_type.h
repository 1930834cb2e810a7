// Element types that the kernels take.
#pragma once

namespace flotilla::kernels {

enum class DataType { float32, bfloat16 };

}  // namespace flotilla::kernels
