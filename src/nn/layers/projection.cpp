#include "layers/projection.hpp"

#include <utility>

#include "strata/ops/elementwise.hpp"

namespace strata::nn {

void Projection::adapt(const AdapterOptions& adapter, std::size_t first,
                       std::int64_t first_element) {
  rank_ = adapter.rank;
  factor_ = adapter.alpha / static_cast<double>(adapter.rank);
  a_ = first;
  first_element_ = first_element;
}

std::vector<ParameterSpec> Projection::parameters(const std::string& layer) const {
  const std::string product = full_name(layer);
  const Shape shape = options_.weight.rank() == 0 ? Shape{outputs(), inputs()} : options_.weight;
  const std::int64_t window = shape.count() / (shape[0] * shape[1]);
  std::vector<ParameterSpec> specs{{.name = parameter_name(product, "weight"),
                                    .shape = shape,
                                    .initializer = options_.initializer,
                                    .deviation = options_.deviation,
                                    .fan_in = shape[1] * window,
                                    .fan_out = outputs() * window}};
  if (options_.split != ProjectionSplit::kNone) {
    specs[0].split = splits_outputs() ? 0 : 1;
    specs[0].unit = options_.unit;
  }
  if (has_bias()) {
    specs.push_back({.name = parameter_name(product, "bias"),
                     .shape = {outputs()},
                     .initializer = options_.initializer == Initializer::kFanIn
                                        ? Initializer::kFanIn
                                        : Initializer::kZeros,
                     .fan_in = specs[0].fan_in,
                     .fan_out = specs[0].fan_out,
                     // After a sum over shards the bias is not split.
                     .split = splits_outputs() ? 0 : kNotSplit,
                     .unit = splits_outputs() ? options_.unit : 1});
  }
  return specs;
}

std::vector<ParameterSpec> Projection::adapter_parameters(const std::string& layer) const {
  if (!is_adapted()) {
    return {};
  }
  const std::string product = full_name(layer);
  return {{.name = parameter_name(product, kAdapterA),
           .shape = {rank_, inputs()},
           .initializer = Initializer::kFanIn,
           .fan_in = inputs(),
           .fan_out = rank_,
           .split = splits_outputs() ? kNotSplit : 1,
           .unit = splits_outputs() ? 1 : options_.unit},
          {.name = parameter_name(product, kAdapterB),
           .shape = {outputs(), rank_},
           .initializer = Initializer::kZeros,
           .split = splits_outputs() ? 0 : kNotSplit,
           .unit = splits_outputs() ? options_.unit : 1}};
}

TensorView Projection::bias(const LayerPass& pass, std::int64_t shard) const {
  return has_bias() ? pass.weights[weight_ + 1][splits_outputs() ? local(pass, shard) : 0]
                    : TensorView();
}

ConstTensorView Projection::scaled_product(const LayerPass& pass, const ConstTensorView& x,
                                           const TensorView& matrix, ops::Transpose transpose,
                                           const TensorView& low) const {
  ops::MatmulOptions options{.transpose_b = transpose};
  options.row_bits = pass.row_bits();
  ops::matmul(pass.context, x, matrix, low, options);
  if (factor_ != 1.0) {
    ops::scaled(pass.context, factor_, low, low, ops::Accumulate::kOverwrite);
  }
  return low;
}

ConstTensorView Projection::lower(const LayerPass& pass, std::int64_t shard,
                                  const ConstTensorView& x, const TensorView& low) const {
  return is_adapted() ? scaled_product(pass, x, a(pass, shard), ops::Transpose::kYes, low)
                      : ConstTensorView();
}

ConstTensorView Projection::lower_gradient(const LayerPass& pass, std::int64_t shard,
                                           const ConstTensorView& dy, const TensorView& low) const {
  return is_adapted() ? scaled_product(pass, dy, b(pass, shard), ops::Transpose::kNo, low)
                      : ConstTensorView();
}

void Projection::forward(const LayerPass& pass, std::int64_t shard, const ConstTensorView& x,
                         const ConstTensorView& lower, const TensorView& y,
                         ops::MatmulOptions options) const {
  options.transpose_b = ops::Transpose::kYes;
  options.padded_rows = options_.padded_rows;
  options.row_bits = pass.row_bits();
  ops::matmul(pass.context, x, weight(pass, shard), y, options);
  if (is_adapted()) {
    ops::matmul(pass.context, lower, b(pass, shard), y,
                {.transpose_b = ops::Transpose::kYes,
                 .accumulate = ops::Accumulate::kAdd,
                 .row_bits = pass.row_bits()});
  }
}

void Projection::input_gradient(const LayerPass& pass, std::int64_t shard,
                                const ConstTensorView& dy, const ConstTensorView& lower,
                                const TensorView& dx, ops::MatmulOptions options) const {
  options.padded_rows = options_.padded_rows;
  ops::matmul(pass.context, dy, weight(pass, shard), dx, options);
  if (is_adapted()) {
    ops::matmul(pass.context, lower, a(pass, shard), dx, {.accumulate = ops::Accumulate::kAdd});
  }
}

void Projection::weight_gradient(const LayerPass& pass, std::int64_t shard,
                                 const ConstTensorView& x, const ConstTensorView& dy,
                                 ops::Accumulate accumulate) const {
  const TensorView& gradient = weight_gradient_at(pass, shard);
  if (!gradient.empty()) {
    ops::matmul(pass.context, dy, x, gradient,
                {.transpose_a = ops::Transpose::kYes,
                 .accumulate = accumulate,
                 .padded_rows = options_.padded_rows});
    // Messages of the input's gradient may be in flight.
    pass.engine.progress();
  }
}

void Projection::adapter_gradients(const LayerPass& pass, const Operands& operands,
                                   const TensorView& low, const TensorView& blocks,
                                   std::int64_t elements,
                                   std::vector<SharedGradient>& shared) const {
  const grid::Range& own = pass.shards.own();
  // A = (dy B)^T x and B = dy^T (x A^T), of which `low` holds the factor of rank columns.
  const auto product = [&](const ConstTensorView& upper, const ConstTensorView& lower,
                           const TensorView& gradient, ops::Accumulate into) {
    ops::matmul(pass.context, upper, lower, gradient,
                {.transpose_a = ops::Transpose::kYes, .accumulate = into});
    pass.engine.progress();
  };
  const auto gradient_of_a = [&](std::int64_t s, const TensorView& gradient, ops::Accumulate into) {
    product(low, operands.x(s), gradient, into);
  };
  const auto gradient_of_b = [&](std::int64_t s, const TensorView& gradient, ops::Accumulate into) {
    product(operands.dy(s), low, gradient, into);
  };
  const auto make_lower = [&](std::int64_t s) {
    static_cast<void>(lower(pass, s, operands.x(s), low));
  };
  const auto make_lower_gradient = [&](std::int64_t s) {
    static_cast<void>(lower_gradient(pass, s, operands.dy(s), low));
  };
  const std::size_t split = splits_outputs() ? a_ + 1 : a_;
  const TensorView& common = pass.weight_gradients[splits_outputs() ? a_ : a_ + 1][0];
  shared.push_back({common, first_element_});
  // One factor of the split matrix's gradient is the same for all shards.
  if (!pass.weight_gradients[split].front().empty()) {
    splits_outputs() ? make_lower(own.begin) : make_lower_gradient(own.begin);
    for (std::int64_t s = own.begin; s < own.end; ++s) {
      const TensorView& gradient = pass.weight_gradients[split][local(pass, s)];
      splits_outputs() ? gradient_of_b(s, gradient, pass.accumulate)
                       : gradient_of_a(s, gradient, pass.accumulate);
    }
  }
  const bool has_parts = pass.shards.shards() > 1;
  const ops::Accumulate into = has_parts ? ops::Accumulate::kOverwrite : pass.accumulate;
  for (std::int64_t s = own.begin; s < own.end && !common.empty(); ++s) {
    const TensorView part =
        has_parts ? blocks.flat_slice((s - own.begin) * elements + first_element_, common.count())
                        .reshaped(common.shape())
                  : common;
    if (splits_outputs()) {
      make_lower_gradient(s);
      gradient_of_a(s, part, into);
    } else {
      make_lower(s);
      gradient_of_b(s, part, into);
    }
  }
}

}  // namespace strata::nn
