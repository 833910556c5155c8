#include <fmt/format.h>

#include "strata/ops/batch_norm.hpp"
#include "strata/ops/convolution.hpp"

#include "layers.hpp"

namespace strata::bench {
namespace {

using Call = std::function<void()>;
using Operations = std::vector<Operation>;

/// A convolution whose output is as large as its input, without a bias, and both gradients.
void add_convolution(Operations& all, const ResidualBlockSizes& sizes, std::int64_t in_channels,
                     std::int64_t out_channels, std::int64_t window) {
  const ops::WindowAxis axis{
      .in = sizes.side, .out = sizes.side, .window = window, .padding = window / 2};
  const ops::ConvolutionShape shape{.images = sizes.images,
                                    .height = axis,
                                    .width = axis,
                                    .in_channels = in_channels,
                                    .out_channels = out_channels};
  const double flops = 2.0 * static_cast<double>(shape.weight().count()) *
                       static_cast<double>(sizes.images * sizes.side * sizes.side);
  const std::string name =
      fmt::format("conv {0}x{0}, {1} to {2}", window, in_channels, out_channels);
  all.push_back({name + ", forward", flops, [=](Operands& operands) -> Call {
                   const TensorView x = operands.read(shape.input());
                   const TensorView w = operands.read(shape.weight());
                   const TensorView y = operands.written(shape.output());
                   return [&context = operands.context(), shape, x, w, y] {
                     ops::convolution_forward(context, shape, x, w, y);
                   };
                 }});
  all.push_back({name + ", input gradient", flops, [=](Operands& operands) -> Call {
                   const TensorView dy = operands.read(shape.output());
                   const TensorView w = operands.read(shape.weight());
                   const TensorView dx = operands.written(shape.input());
                   return [&context = operands.context(), shape, dy, w, dx] {
                     ops::convolution_backward_input(context, shape, dy, w, dx);
                   };
                 }});
  all.push_back({name + ", weight gradient", flops, [=](Operands& operands) -> Call {
                   const TensorView x = operands.read(shape.input());
                   const TensorView dy = operands.read(shape.output());
                   const TensorView dw = operands.updated(shape.weight(), DType::kFloat32);
                   return [&context = operands.context(), shape, x, dy, dw] {
                     ops::convolution_backward_weight(context, shape, x, dy, dw,
                                                      ops::Accumulate::kAdd);
                   };
                 }});
}

/// What batch norm reads, and its statistics.
struct Columns {
  TensorView x;
  TensorView mean;
  TensorView variance;
};

Columns normalised(Operands& operands, const Shape& shape) {
  const Shape columns{shape[1]};
  const Columns all{operands.read(shape), operands.read(columns, DType::kFloat32),
                    operands.read(columns, DType::kFloat32)};
  ops::column_statistics(operands.context(), all.x, all.mean, all.variance);
  return all;
}

/// Shapes: rows x channels. With a relu, whose output the backward pass reads, or without.
void add_batch_norm(Operations& all, const Shape& shape, ops::Activation activation) {
  const Shape columns{shape[1]};
  const bool has_relu = activation == ops::Activation::kRelu;
  const std::string name = fmt::format("batch norm{} of {}", has_relu ? " and relu" : "", shape[1]);
  all.push_back({name + ", statistics", 0.0, [=](Operands& operands) -> Call {
                   const TensorView x = operands.read(shape);
                   const TensorView mean = operands.written(columns, DType::kFloat32);
                   const TensorView variance = operands.written(columns, DType::kFloat32);
                   return [&context = operands.context(), x, mean, variance] {
                     ops::column_statistics(context, x, mean, variance);
                   };
                 }});
  all.push_back({name + ", forward", 0.0, [=](Operands& operands) -> Call {
                   const Columns o = normalised(operands, shape);
                   const TensorView weight = operands.read(columns);
                   const TensorView bias = operands.read(columns);
                   const TensorView y = operands.written(shape);
                   return [&context = operands.context(), o, weight, bias, y, activation] {
                     ops::batch_norm_forward(context, o.x, o.mean, o.variance, weight, bias,
                                             kEpsilon, activation, y);
                   };
                 }});
  all.push_back({name + ", weight gradient", 0.0, [=](Operands& operands) -> Call {
                   const Columns o = normalised(operands, shape);
                   const TensorView y = has_relu ? operands.read(shape) : TensorView();
                   const TensorView dy = operands.read(shape);
                   const TensorView dweight = operands.written(columns, DType::kFloat32);
                   const TensorView dbias = operands.written(columns, DType::kFloat32);
                   return [&context = operands.context(), o, y, dy, dweight, dbias] {
                     ops::batch_norm_backward_sums(context, o.x, o.mean, o.variance, kEpsilon, y,
                                                   dy, dweight, dbias);
                   };
                 }});
  all.push_back({name + ", input gradient", 0.0, [=](Operands& operands) -> Call {
                   const Columns o = normalised(operands, shape);
                   const TensorView y = has_relu ? operands.read(shape) : TensorView();
                   const TensorView dy = operands.read(shape);
                   const TensorView weight = operands.read(columns);
                   const TensorView dweight = operands.read(columns, DType::kFloat32);
                   const TensorView dbias = operands.read(columns, DType::kFloat32);
                   const TensorView dx = operands.written(shape);
                   return [&context = operands.context(), o, weight, y, dy, dweight, dbias, dx] {
                     ops::batch_norm_backward_input(context, o.x, o.mean, o.variance, weight,
                                                    kEpsilon, y, dy, dweight, dbias, dx);
                   };
                 }});
}

}  // namespace

std::vector<Operation> residual_block_operations(const ResidualBlockSizes& sizes) {
  const std::int64_t inner = sizes.channels;
  const std::int64_t outer = 4 * inner;
  const std::int64_t rows = sizes.images * sizes.side * sizes.side;
  Operations all;
  add_convolution(all, sizes, outer, inner, 1);
  add_convolution(all, sizes, inner, inner, 3);
  add_convolution(all, sizes, inner, outer, 1);
  add_batch_norm(all, {rows, inner}, ops::Activation::kRelu);
  add_batch_norm(all, {rows, outer}, ops::Activation::kNone);
  return all;
}

}  // namespace strata::bench
