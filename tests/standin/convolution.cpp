#include "convolution.hpp"

#include <cstring>

#include <cuda_bf16.h>

namespace standin {
namespace {

float load(const void* at, cudnnDataType_t type, std::size_t index) {
  return type == CUDNN_DATA_BFLOAT16
             ? __bfloat162float(static_cast<const __nv_bfloat16*>(at)[index])
             : static_cast<const float*>(at)[index];
}

void store(float value, void* at, cudnnDataType_t type, std::size_t index) {
  if (type == CUDNN_DATA_BFLOAT16) {
    static_cast<__nv_bfloat16*>(at)[index] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(at)[index] = value;
  }
}

/// A number as tf32 keeps it: 11 bits.
float as_tf32(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0x1000U) & ~0x1FFFU;
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

/// Calls function(pixel of x, pixel of y, place of a window) for all that meet.
template <typename Function>
void for_each_meeting(const Convolution& all, const Function& function) {
  const Images& x = all.x;
  const Filter& w = all.w;
  const Images& y = all.y;
  for (std::int64_t pixel = 0; pixel < y.images * y.rows * y.columns; ++pixel) {
    const std::int64_t image = pixel / y.columns / y.rows;
    for (std::int64_t tap = 0; tap < w.rows * w.columns; ++tap) {
      const std::int64_t row = all.how.rows.seen_by(pixel / y.columns % y.rows, tap / w.columns);
      const std::int64_t column = all.how.columns.seen_by(pixel % y.columns, tap % w.columns);
      if (row >= 0 && row < x.rows && column >= 0 && column < x.columns) {
        function((image * x.rows + row) * x.columns + column, pixel, tap);
      }
    }
  }
}

}  // namespace

cudnnStatus_t Convolution::status() const {
  if (!x.is_set || !w.is_set || !y.is_set || !how.is_set || how.groups < 1 ||
      x.images != y.images || w.images != y.channels || x.channels != w.channels * how.groups ||
      w.images % how.groups != 0 || y.rows != how.rows.windows(x.rows, w.rows) ||
      y.columns != how.columns.windows(x.columns, w.columns) || x.type != w.type ||
      y.type != w.type) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const bool last = x.format == CUDNN_TENSOR_NHWC && w.format == CUDNN_TENSOR_NHWC &&
                    y.format == CUDNN_TENSOR_NHWC;
  const bool types = (w.type == CUDNN_DATA_FLOAT || w.type == CUDNN_DATA_BFLOAT16) &&
                     how.compute == CUDNN_DATA_FLOAT;
  const bool is_dilated = how.rows.dilation != 1 || how.columns.dilation != 1;
  return !last || !types || (pass == Pass::kForward && is_dilated) ? CUDNN_STATUS_NOT_SUPPORTED
                                                                   : CUDNN_STATUS_SUCCESS;
}

const Images& Convolution::result() const {
  return pass == Pass::kForward ? y : pass == Pass::kInput ? x : w;
}

std::vector<float> Convolution::unpacked(const Images& tensor, const void* at) const {
  std::vector<float> values(static_cast<std::size_t>(tensor.count()));
  if (&tensor == &result()) {
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = load(at, tensor.type, i);
    // Tensor cores, where they are let, take float so.
    values[i] =
        tensor.type == CUDNN_DATA_FLOAT && how.math != CUDNN_FMA_MATH ? as_tf32(value) : value;
  }
  return values;
}

void Convolution::run() const {
  // As a kernel may that works there.
  std::memset(workspace, 0xFF, workspace_bytes());
  std::vector<float> of_x = unpacked(x, x_at);
  std::vector<float> of_w = unpacked(w, w_at);
  std::vector<float> of_y = unpacked(y, y_at);
  const std::int64_t taps = w.rows * w.columns;
  const std::int64_t group_outs = w.images / how.groups;
  for_each_meeting(*this, [&](std::int64_t in_pixel, std::int64_t out_pixel, std::int64_t tap) {
    for (std::int64_t out = 0; out < w.images; ++out) {
      const std::int64_t first = in_pixel * x.channels + out / group_outs * w.channels;
      float* const from = &of_x[static_cast<std::size_t>(first)];
      float* const weight = &of_w[static_cast<std::size_t>((out * taps + tap) * w.channels)];
      float& to = of_y[static_cast<std::size_t>(out_pixel * y.channels + out)];
      for (std::int64_t in = 0; in < w.channels; ++in) {
        switch (pass) {
          case Pass::kForward:
            to += from[in] * weight[in];
            break;
          case Pass::kInput:
            from[in] += to * weight[in];
            break;
          case Pass::kWeight:
            weight[in] += to * from[in];
            break;
        }
      }
    }
  });
  const std::vector<float>& values = pass == Pass::kForward ? of_y
                                     : pass == Pass::kInput ? of_x
                                                            : of_w;
  void* const at = pass == Pass::kForward ? y_at : pass == Pass::kInput ? x_at : w_at;
  for (std::size_t i = 0; i < values.size(); ++i) {
    store(values[i], at, result().type, i);
  }
}

}  // namespace standin
