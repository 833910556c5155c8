#pragma once

#include <compare>
#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/ops/convolution.hpp"

#include "onednn/primitive.hpp"

namespace strata::ops {

/// The task of a convolution primitive. Weights are stored as the public header says; oneDNN packs
/// them into a layout of its own, which may differ between passes.
enum class ConvolutionStep {
  kPackForward,        ///< operands: stored weight, packed weight
  kForward,            ///< operands: x, packed weight, y and, where there is one, the bias
  kPackBackwardInput,  ///< operands: stored weight, packed weight
  kBackwardInput,      ///< operands: dy, packed weight, dx
  kBackwardWeight,     ///< operands: x, dy, packed gradient
  kUnpackWeight        ///< operands: packed gradient, stored gradient
};

/// Cache key of a oneDNN convolution or of a reorder of its weights.
struct ConvolutionKey {
  ConvolutionStep step = ConvolutionStep::kForward;
  DType operands = DType::kFloat32;
  DType result = DType::kFloat32;  ///< of y, dx or dw
  ConvolutionShape shape;
  /// Weights are packed for this many images, so that calls with other counts share them.
  std::int64_t packed_images = 1;
  bool has_bias = false;

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const ConvolutionKey&, const ConvolutionKey&) = default;
};

[[nodiscard]] PrimitiveDescription describe(const dnnl::engine& engine, const ConvolutionKey& key);

}  // namespace strata::ops
