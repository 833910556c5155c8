#include "layers/linear_layer.hpp"

#include <fmt/format.h>

#include "strata/ops/elementwise.hpp"

#include "layers/shard_sum.hpp"

namespace strata::nn {
namespace {

Placement output_placement(ProjectionSplit parallel) {
  return parallel == ProjectionSplit::kOutputs ? Placement::kFeatures : Placement::kReplicated;
}

void check_split(const LayerLine& line, const LayerSite& site, ProjectionSplit parallel,
                 std::int64_t outputs) {
  const bool row = parallel == ProjectionSplit::kInputs;
  if (row != (site.input.placement == Placement::kFeatures)) {
    line.refuse(row ? "parallel=row adds up inputs that are split by feature, but its input is "
                      "whole; put it behind a layer with parallel=column"
                    : "its input is split by feature, since a layer before it has parallel=column; "
                      "give parallel=row");
  }
  if (site.input.placement == Placement::kTokens) {
    line.refuse(
        "its input is split by token, but it needs whole sequences; turn parallel.sequence off");
  }
  const std::int64_t split = row ? site.input.shape.back() / site.input.unit : outputs;
  if (parallel != ProjectionSplit::kNone) {
    site.require_shards_divide(line, split, row ? "inputs" : "outputs");
  }
}

}  // namespace

LinearOptions take_linear_options(LayerLine& line, const LayerSite& site, std::int64_t outputs) {
  LinearOptions options;
  options.activation = line.take_relu();
  options.bias = line.take_enum("bias", Switch::kOn);
  options.initializer = line.take_enum("init", Initializer::kFanIn);
  options.parallel = line.take_enum("parallel", ProjectionSplit::kNone);
  check_split(line, site, options.parallel, outputs);
  return options;
}

LinearLayer::LinearLayer(const LayerSite& site, const Shape& output_shape, LinearSizes sizes,
                         const LinearOptions& options)
    : Layer(site.name, site.input, {output_shape, output_placement(options.parallel)},
            {.backward_reads_output = options.activation == ops::Activation::kRelu}),
      sizes_(sizes),
      options_(options),
      projection_({.inputs = sizes.inputs,
                   .outputs = sizes.outputs,
                   .split = options.parallel,
                   .unit = is_row() ? site.input.unit : 1,
                   .bias = options.bias,
                   .initializer = options.initializer,
                   .weight = sizes.weight},
                  0) {}

std::string LinearLayer::options_text() const {
  return fmt::format("{}{}", options_.activation == ops::Activation::kRelu ? " relu" : "",
                     options_.parallel == ProjectionSplit::kNone
                         ? ""
                         : fmt::format(" {}", name_of(options_.parallel)));
}

std::vector<TensorSpec> LinearLayer::workspace(const PassShape& pass) const {
  if (options_.parallel == ProjectionSplit::kNone || pass.shards.count == 1) {
    return {};
  }
  return is_row() ? ShardSum::workspace(pass, rows_at(output(), pass.microbatch), sizes_.outputs)
                  : ShardSum::workspace(pass, rows_at(input(), pass.microbatch), sizes_.inputs);
}

void LinearLayer::forward(const LayerPass& pass) const {
  const std::int64_t rows = rows_out(pass);
  if (is_row() && pass.shards.shards() > 1) {
    const TensorView y = pass.output.reshaped(Shape{rows, sizes_.outputs});
    ShardSum sums(pass, pass.workspace, one_piece(rows), sizes_.outputs);
    sums.begin([&](const RowPiece& /*all*/, std::int64_t s, const TensorView& into) {
      product(pass, s, input_block(pass, pass.input, s), into, {}, ops::Activation::kNone);
    });
    sums.end(Placement::kReplicated, [&](const RowPiece& /*all*/, const TensorView& sum) {
      ops::add_bias_residual(pass.context, sum, projection_.bias(pass, 0), {}, y);
    });
    if (options_.activation != ops::Activation::kNone) {
      ops::activation_forward(pass.context, options_.activation, y, y);
    }
    return;
  }
  for (std::int64_t s = own_shards(pass).begin; s < own_shards(pass).end; ++s) {
    product(pass, s, input_block(pass, pass.input, s), output_block(pass, pass.output, s),
            projection_.bias(pass, s), options_.activation);
  }
}

void LinearLayer::backward(const LayerPass& pass, Wants wants) const {
  if (wants_input(wants)) {
    if (options_.activation == ops::Activation::kRelu) {
      ops::activation_backward(pass.context, options_.activation, {}, pass.output,
                               pass.output_gradient, pass.output_gradient);
    }
    if (!pass.input_gradient.empty()) {
      input_gradient(pass);
    }
    pass.engine.progress();
  }
  if (wants_weights(wants)) {
    weight_gradients(pass);
  }
}

void LinearLayer::input_gradient(const LayerPass& pass) const {
  const std::int64_t rows = rows_in(pass);
  if (is_column() && pass.shards.shards() > 1) {
    ShardSum sums(pass, pass.workspace, one_piece(rows), sizes_.inputs);
    sums.begin([&](const RowPiece& /*all*/, std::int64_t s, const TensorView& into) {
      input_product(pass, s, output_block(pass, pass.output_gradient, s), into);
    });
    sums.end(Placement::kReplicated, [&](const RowPiece& /*all*/, const TensorView& sum) {
      ops::add_bias_residual(pass.context, sum, {}, {},
                             pass.input_gradient.reshaped(Shape{rows, sizes_.inputs}));
    });
    return;
  }
  for (std::int64_t s = own_shards(pass).begin; s < own_shards(pass).end; ++s) {
    input_product(pass, s, output_block(pass, pass.output_gradient, s),
                  input_block(pass, pass.input_gradient, s));
  }
}

void LinearLayer::weight_gradients(const LayerPass& pass) const {
  for (std::int64_t s = own_shards(pass).begin; s < own_shards(pass).end; ++s) {
    const TensorView dy = output_block(pass, pass.output_gradient, s);
    weight_product(pass, s, input_block(pass, pass.input, s), dy);
    // After a sum over shards the bias is not split.
    if (projection_.has_bias() && (!is_row() || s == own_shards(pass).begin)) {
      ops::column_sum(pass.context, dy, projection_.bias_gradient(pass, s), pass.accumulate);
    }
  }
}

std::int64_t LinearLayer::rows_in(const LayerPass& pass) const {
  return is_row() ? rows_out(pass) / sizes_.rows_out * sizes_.rows_in
                  : pass.input.count() / sizes_.inputs;
}

std::int64_t LinearLayer::rows_out(const LayerPass& pass) const {
  return is_row() ? pass.output.count() / sizes_.outputs
                  : rows_in(pass) / sizes_.rows_in * sizes_.rows_out;
}

grid::Range LinearLayer::own_shards(const LayerPass& pass) const {
  const grid::Range& own = pass.shards.own();
  return options_.parallel == ProjectionSplit::kNone ? grid::Range{own.begin, own.begin + 1} : own;
}

template <typename View>
View LinearLayer::input_block(const LayerPass& pass, const View& tensor, std::int64_t shard) const {
  if (!is_row()) {
    return tensor.reshaped(Shape{rows_in(pass), sizes_.inputs});
  }
  return shard_block(tensor, rows_in(pass), sizes_.inputs, pass.shards.shards(), pass.shards.own(),
                     shard, input().unit);
}

TensorView LinearLayer::output_block(const LayerPass& pass, const TensorView& tensor,
                                     std::int64_t shard) const {
  if (!is_column()) {
    return tensor.reshaped(Shape{rows_out(pass), sizes_.outputs});
  }
  return shard_block(tensor, rows_out(pass), sizes_.outputs, pass.shards.shards(),
                     pass.shards.own(), shard);
}

}  // namespace strata::nn
