#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cudnn.h>

// What the stand-in for cuDNN computes: convolutions of images that lie channels last.
namespace standin {

struct Images {
  bool is_set = false;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  std::int64_t images = 0;
  std::int64_t channels = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  [[nodiscard]] std::int64_t count() const { return images * channels * rows * columns; }
};

/// `images` are the output channels.
using Filter = Images;

struct Axis {
  int padding = 0;
  int stride = 1;
  int dilation = 1;

  [[nodiscard]] std::int64_t windows(std::int64_t in, std::int64_t window) const {
    const std::int64_t room = in + 2 * padding - ((window - 1) * dilation + 1);
    return room < 0 ? 0 : room / stride + 1;
  }
  /// Where a window's element stands.
  [[nodiscard]] std::int64_t seen_by(std::int64_t out, std::int64_t place) const {
    return out * stride - padding + place * dilation;
  }
};

struct Description {
  bool is_set = false;
  Axis rows;
  Axis columns;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  int groups = 1;
};

enum class Pass { kForward, kInput, kWeight };

/// A convolution: of three tensors, two are read.
struct Convolution {
  Pass pass;
  Images x;
  Filter w;
  Images y;
  Description how;
  void* x_at = nullptr;
  void* w_at = nullptr;
  void* y_at = nullptr;
  void* workspace = nullptr;

  /// Not the same for all shapes, so that another's is noticed.
  [[nodiscard]] std::size_t workspace_bytes() const {
    return static_cast<std::size_t>(64 + y.rows * y.columns * w.rows * w.columns);
  }
  /// What cuDNN's reference says of the combination: the sizes fit, and the algorithms that strata
  /// takes have filters channels last beside such images, in float and in bfloat16 computed in
  /// float; the forward one has no dilation.
  [[nodiscard]] cudnnStatus_t status() const;
  /// Sums in float, images, windows and channels in order.
  void run() const;

 private:
  [[nodiscard]] const Images& result() const;
  /// A tensor's elements; zeros where it is the result.
  [[nodiscard]] std::vector<float> unpacked(const Images& tensor, const void* at) const;
};

}  // namespace standin
