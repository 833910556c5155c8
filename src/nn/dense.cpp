#include <fmt/format.h>

#include "strata/ops/elementwise.hpp"

#include "layer_kinds.hpp"
#include "norm_part.hpp"
#include "shard_sum.hpp"

namespace strata::nn {
namespace {

/// How shards divide a dense layer.
enum class Parallel {
  kNone,
  kColumn,  ///< by output: each shard makes its share of the outputs
  kRow      ///< by input: each shard adds its share of the inputs
};

}  // namespace
}  // namespace strata::nn

template <>
struct strata::EnumNames<strata::nn::Parallel> {
  static constexpr std::array<std::pair<nn::Parallel, std::string_view>, 3> kTable{
      {{nn::Parallel::kNone, "none"},
       {nn::Parallel::kColumn, "column"},
       {nn::Parallel::kRow, "row"}}};
};

namespace strata::nn {
namespace {

struct DenseOptions {
  Bias bias = Bias::kYes;
  Initializer initializer = Initializer::kFanIn;
  ops::Activation activation = ops::Activation::kNone;
  Parallel parallel = Parallel::kNone;
};

Placement output_placement(Parallel parallel) {
  return parallel == Parallel::kColumn ? Placement::kFeatures : Placement::kReplicated;
}

/// y = activation(x W^T + b) over the last dimension, the activation none or relu.
/// Shapes: x rows x inputs, W outputs x inputs, b outputs, y rows x outputs. Communication: with
/// parallel=row one all-reduce of y over the tensor group, with parallel=column one of x's
/// gradient. Source of the splits: Shoeybi et al., "Megatron-LM", arXiv 1909.08053.
class Dense final : public Layer {
 public:
  Dense(const LayerSite& site, const Shape& output_shape, const DenseOptions& options)
      : Layer(site.name, site.input, {output_shape, output_placement(options.parallel)}),
        inputs_(site.input.shape.back()),
        outputs_(output_shape.back()),
        options_(options) {}

  std::string text() const override {
    return fmt::format(
        "dense {}{}{}", outputs_, options_.activation == ops::Activation::kRelu ? " relu" : "",
        options_.parallel == Parallel::kNone ? "" : fmt::format(" {}", name_of(options_.parallel)));
  }

  std::vector<ParameterSpec> parameters() const override {
    const bool column = options_.parallel == Parallel::kColumn;
    const bool row = options_.parallel == Parallel::kRow;
    std::vector<ParameterSpec> specs{{.name = name() + ".weight",
                                      .shape = {outputs_, inputs_},
                                      .initializer = options_.initializer,
                                      .fan_in = inputs_,
                                      .fan_out = outputs_,
                                      .split = column ? 0
                                               : row  ? 1
                                                      : kNotSplit}};
    if (options_.bias == Bias::kYes) {
      const Initializer initializer =
          options_.initializer == Initializer::kFanIn ? Initializer::kFanIn : Initializer::kZeros;
      specs.push_back({.name = name() + ".bias",
                       .shape = {outputs_},
                       .initializer = initializer,
                       .fan_in = inputs_,
                       .fan_out = outputs_,
                       .split = column ? 0 : kNotSplit});
    }
    return specs;
  }

  std::vector<TensorSpec> workspace(const PassShape& pass) const override {
    if (options_.parallel == Parallel::kNone || pass.shards.count == 1) {
      return {};
    }
    const std::int64_t rows = rows_at(input(), pass.microbatch);
    const std::int64_t columns = options_.parallel == Parallel::kRow ? outputs_ : inputs_;
    return ShardSum::workspace(pass, rows, columns);
  }

  bool backward_reads_output() const override {
    return options_.activation == ops::Activation::kRelu;
  }

  LayerCost cost() const override {
    const double flops =
        2.0 * static_cast<double>(input_shape().count()) * static_cast<double>(outputs_);
    LayerCost cost = Layer::cost();
    cost.forward_flops = flops;
    cost.backward_flops = 2.0 * flops;
    return cost;
  }

  LayerTraffic traffic(const PassShape& pass) const override {
    if (options_.parallel == Parallel::kNone) {
      return {};
    }
    const std::int64_t columns = options_.parallel == Parallel::kRow ? outputs_ : inputs_;
    const double bytes = static_cast<double>(rows_at(input(), pass.microbatch) * columns *
                                             size_bytes(compute_dtype(pass.dtype)));
    LayerTraffic traffic = exchange_of(pass, bytes);
    traffic += exchange_of(pass, bytes);
    return traffic;
  }

  void forward(const LayerPass& pass) const override {
    const std::int64_t rows = rows_of(pass);
    if (options_.parallel == Parallel::kRow && pass.shards.shards() > 1) {
      const TensorView y = pass.output.reshaped(Shape{rows, outputs_});
      const TensorView sum = summed(pass, [&](std::int64_t s, const TensorView& into) {
        ops::matmul(pass.context, input_block(pass, s), weight(pass, s), into,
                    {.transpose_b = ops::Transpose::kYes});
      });
      ops::add_bias_residual(pass.context, sum, bias(pass, 0), {}, y);
      if (options_.activation != ops::Activation::kNone) {
        ops::activation_forward(pass.context, options_.activation, y, y);
      }
      return;
    }
    for (std::int64_t s = own_blocks(pass).begin; s < own_blocks(pass).end; ++s) {
      ops::matmul(pass.context, whole_input(pass), weight(pass, s),
                  output_block(pass, pass.output, s),
                  {.transpose_b = ops::Transpose::kYes,
                   .bias = bias(pass, s),
                   .activation = options_.activation});
    }
  }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    if (options_.activation == ops::Activation::kRelu) {
      ops::activation_backward(pass.context, options_.activation, {}, pass.output, output_gradient,
                               output_gradient);
    }
    if (input_gradient.empty()) {
      return;
    }
    const std::int64_t rows = rows_of(pass);
    if (options_.parallel == Parallel::kColumn && pass.shards.shards() > 1) {
      const TensorView sum = summed(pass, [&](std::int64_t s, const TensorView& into) {
        ops::matmul(pass.context, output_block(pass, output_gradient, s), weight(pass, s), into);
      });
      ops::add_bias_residual(pass.context, sum, {}, {},
                             input_gradient.reshaped(Shape{rows, inputs_}));
      return;
    }
    const grid::Range blocks = own_blocks(pass);
    for (std::int64_t s = blocks.begin; s < blocks.end; ++s) {
      const TensorView dx = options_.parallel == Parallel::kRow
                                ? shard_block(input_gradient, rows, inputs_, pass.shards.shards(),
                                              pass.shards.own(), s)
                                : input_gradient.reshaped(Shape{rows, inputs_});
      ops::matmul(pass.context,
                  output_gradient.reshaped(Shape{rows, output_gradient.count() / rows}),
                  weight(pass, s), dx);
    }
  }

  void backward_weight(const LayerPass& pass, const TensorView& output_gradient,
                       std::span<const ParameterViews> weight_gradients,
                       ops::Accumulate accumulate) const override {
    for (std::int64_t s = own_blocks(pass).begin; s < own_blocks(pass).end; ++s) {
      const auto local = static_cast<std::size_t>(s - own_blocks(pass).begin);
      const TensorView dy = output_block(pass, output_gradient, s);
      const bool row = options_.parallel == Parallel::kRow;
      ops::matmul(pass.context, dy, row ? input_block(pass, s) : whole_input(pass),
                  weight_gradients[0][local],
                  {.transpose_a = ops::Transpose::kYes, .accumulate = accumulate});
      // The bias behind a sum over shards is whole.
      if (options_.bias == Bias::kYes && (!row || local == 0)) {
        ops::column_sum(pass.context, dy, weight_gradients[1][local], accumulate);
      }
    }
  }

 private:
  std::int64_t rows_of(const LayerPass& pass) const {
    return options_.parallel == Parallel::kRow ? pass.output.count() / outputs_
                                               : pass.input.count() / inputs_;
  }

  /// The blocks of the weight that this rank holds.
  grid::Range own_blocks(const LayerPass& pass) const {
    return options_.parallel == Parallel::kNone ? grid::Range{0, 1} : pass.shards.own();
  }

  const TensorView& weight(const LayerPass& pass, std::int64_t shard) const {
    return pass.weights[0][static_cast<std::size_t>(shard - own_blocks(pass).begin)];
  }

  TensorView bias(const LayerPass& pass, std::int64_t shard) const {
    if (options_.bias == Bias::kNo) {
      return {};
    }
    const bool split = options_.parallel == Parallel::kColumn;
    return pass.weights[1][split ? static_cast<std::size_t>(shard - own_blocks(pass).begin) : 0];
  }

  ConstTensorView whole_input(const LayerPass& pass) const {
    return pass.input.reshaped(Shape{rows_of(pass), pass.input.count() / rows_of(pass)});
  }

  ConstTensorView input_block(const LayerPass& pass, std::int64_t shard) const {
    return shard_block(pass.input, rows_of(pass), inputs_, pass.shards.shards(), pass.shards.own(),
                       shard);
  }

  TensorView output_block(const LayerPass& pass, const TensorView& tensor,
                          std::int64_t shard) const {
    if (options_.parallel != Parallel::kColumn) {
      return tensor.reshaped(Shape{rows_of(pass), outputs_});
    }
    return shard_block(tensor, rows_of(pass), outputs_, pass.shards.shards(), pass.shards.own(),
                       shard);
  }

  /// The sum over all shards of what make(shard, into) gives, on every rank.
  template <typename Make>
  TensorView summed(const LayerPass& pass, const Make& make) const {
    const std::int64_t columns = options_.parallel == Parallel::kRow ? outputs_ : inputs_;
    const std::int64_t rows = rows_of(pass);
    return ShardSum(pass, pass.workspace, rows, columns).rows(Placement::kReplicated, make);
  }

  std::int64_t inputs_;
  std::int64_t outputs_;
  DenseOptions options_;
};

void check_split(const LayerLine& line, const LayerSite& site, Parallel parallel,
                 std::int64_t units) {
  const bool row = parallel == Parallel::kRow;
  if (row != (site.input.placement == Placement::kFeatures)) {
    line.refuse(row ? "parallel=row adds up inputs that are split by feature, but its input is "
                      "whole; put it behind a dense layer with parallel=column"
                    : "its input is split by feature, since a layer before it has parallel=column; "
                      "give parallel=row");
  }
  if (site.input.placement == Placement::kTokens) {
    line.refuse(
        "its input is split by token, but it needs whole sequences; turn parallel.sequence off");
  }
  const std::int64_t split = row ? site.input.shape.back() : units;
  if (parallel != Parallel::kNone) {
    site.require_shards_divide(line, split, row ? "inputs" : "outputs");
  }
}

}  // namespace

std::unique_ptr<Layer> make_dense(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  const std::int64_t units = line.take_count("the number of outputs");
  const std::string activation = line.take_value();
  if (!activation.empty() && activation != "relu") {
    line.refuse(fmt::format(
        "only relu can follow on the line of a dense layer; give \"{}\" a line of its own",
        activation));
  }
  if (site.input.shape.rank() == 0) {
    line.refuse("its input has no dimension to act on");
  }
  std::vector<std::int64_t> extents(site.input.shape.extents().begin(),
                                    site.input.shape.extents().end());
  extents.back() = units;
  DenseOptions options;
  options.bias = line.take_enum("bias", Bias::kYes);
  options.initializer = line.take_enum("init", Initializer::kFanIn);
  options.activation = activation.empty() ? ops::Activation::kNone : ops::Activation::kRelu;
  options.parallel = line.take_enum("parallel", Parallel::kNone);
  check_split(line, site, options.parallel, units);
  return std::make_unique<Dense>(site, Shape(extents), options);
}

}  // namespace strata::nn
