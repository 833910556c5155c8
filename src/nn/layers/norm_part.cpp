#include "layers/norm_part.hpp"

#include "strata/ops/row_norm.hpp"

#include "layers/row_pieces.hpp"

namespace strata::nn {

NormStatistics<TensorView> rows_at(const NormStatistics<TensorView>& statistics,
                                   const grid::Range& range) {
  const auto slice = [&](const TensorView& statistic) {
    return statistic.empty() ? statistic : statistic.flat_slice(range.begin, range.count());
  };
  return {.mean = slice(statistics.mean), .rstd = slice(statistics.rstd)};
}

std::int64_t NormPart::parameter_count() const {
  return kind_ == NormKind::kNone                                        ? 0
         : kind_ == NormKind::kLayerNorm && options_.bias == Switch::kOn ? 2
                                                                         : 1;
}

std::vector<ParameterSpec> NormPart::parameters(const std::string& prefix) const {
  std::vector<ParameterSpec> specs;
  if (kind_ != NormKind::kNone) {
    specs.push_back({.name = parameter_name(prefix, "weight"),
                     .shape = {width_},
                     .initializer = norm_initializer(options_)});
  }
  if (parameter_count() == 2) {
    specs.push_back({.name = parameter_name(prefix, "bias"),
                     .shape = {width_},
                     .initializer = Initializer::kZeros});
  }
  return specs;
}

NormStatistics<TensorSpec> NormPart::statistics(std::int64_t rows, DType dtype) const {
  const DType statistic = compute_dtype(dtype);
  return {.mean = {{kind_ == NormKind::kLayerNorm ? rows : 0}, statistic},
          .rstd = {{kind_ != NormKind::kNone ? rows : 0}, statistic}};
}

ShardParts<TensorSpec> NormPart::workspace(const PassShape& pass) const {
  return shard_parts(pass, parameter_count() * width_);
}

void NormPart::forward(ops::Context& context, std::span<const ParameterViews> weights,
                       const ConstTensorView& x, const TensorView& y,
                       const NormStatistics<TensorView>& statistics) const {
  ops::row_norm_forward(context, norm(), x, weights[first_][0],
                        parameter_count() == 2 ? weights[first_ + 1][0] : TensorView(),
                        options_.epsilon, y, statistics.mean, statistics.rstd);
}

void NormPart::backward(const LayerPass& pass, Wants wants, Placement placement,
                        const ConstTensorView& x, const NormStatistics<TensorView>& statistics,
                        const ConstTensorView& dy, const ConstTensorView& addend,
                        const TensorView& dx, const ShardParts<TensorView>& workspace) const {
  if (wants == Wants::kBoth && pass.shards.shards() == 1 && !dx.empty()) {
    ops::row_norm_backward(
        pass.context, norm(), x, pass.weights[first_][0], statistics.mean, statistics.rstd, dy,
        addend, dx, pass.weight_gradients[first_][0],
        parameter_count() == 2 ? pass.weight_gradients[first_ + 1][0] : TensorView(),
        pass.accumulate);
    return;
  }
  if (wants_input(wants) && !dx.empty()) {
    ops::row_norm_backward_input(pass.context, norm(), x, pass.weights[first_][0], statistics.mean,
                                 statistics.rstd, dy, addend, dx);
    pass.engine.progress();
  }
  if (wants_weights(wants)) {
    backward_weights(pass, placement, x, statistics, dy, workspace);
  }
}

void NormPart::backward_weights(const LayerPass& pass, Placement placement,
                                const ConstTensorView& x,
                                const NormStatistics<TensorView>& statistics,
                                const ConstTensorView& dy,
                                const ShardParts<TensorView>& workspace) const {
  const std::int64_t count = parameter_count();
  const std::span<const ParameterViews> gradients =
      std::span(pass.weight_gradients).subspan(first_);
  if (pass.shards.shards() == 1) {
    ops::row_norm_backward_weight(pass.context, norm(), x, statistics.mean, statistics.rstd, dy,
                                  gradients[0][0], count == 2 ? gradients[1][0] : TensorView(),
                                  pass.accumulate);
    return;
  }
  const bool gathers = placement == Placement::kTokens && pass.shards.ranks() > 1;
  const std::int64_t blocks = gathers ? pass.shards.own().count() : pass.shards.shards();
  const TensorView& made = gathers ? workspace.own_shards : workspace.all_shards;
  const Shape rows{x.count() / width_, width_};
  const bool is_split = placement == Placement::kTokens;
  const std::vector<RowPiece> pieces =
      row_pieces(pass, placement, is_split ? rows[0] * pass.shards.ranks() : rows[0]);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const TensorView part = made.flat_slice(b * count * width_, count * width_);
    // A shard's rows of each piece, in order.
    for (const RowPiece& piece : pieces) {
      const grid::Range share = grid::even_part(piece.local.count(), blocks, b);
      const grid::Range range{piece.local.begin + share.begin, piece.local.begin + share.end};
      const NormStatistics<TensorView> of_rows = rows_at(statistics, range);
      ops::row_norm_backward_weight(
          pass.context, norm(), row_range(x.reshaped(rows), range), of_rows.mean, of_rows.rstd,
          row_range(dy.reshaped(rows), range), part.flat_slice(0, width_),
          count == 2 ? part.flat_slice(width_, width_) : TensorView(),
          piece.all.begin == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd);
    }
  }
  std::vector<SharedGradient> sums;
  for (std::int64_t p = 0; p < count; ++p) {
    sums.push_back({gradients[static_cast<std::size_t>(p)][0], p * width_});
  }
  sum_shard_parts(pass, workspace, gathers ? PartsMade::kOwnShards : PartsMade::kAllShards, sums);
}

double take_epsilon(LayerLine& line) {
  const double epsilon = line.take_option_number("epsilon", 1e-5);
  if (!(epsilon > 0.0)) {
    line.refuse(fmt::format("epsilon is {}, it must be above 0", epsilon));
  }
  return epsilon;
}

Switch take_unit_offset(LayerLine& line, bool has_rms_norm) {
  const Switch unit_offset = line.take_enum("unit_offset", Switch::kOff);
  if (unit_offset == Switch::kOn && !has_rms_norm) {
    line.refuse("unit_offset=on is for RMS norms, which it has none of; leave it out");
  }
  return unit_offset;
}

}  // namespace strata::nn
