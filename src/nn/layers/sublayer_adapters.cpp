#include "strata/ops/elementwise.hpp"

#include "layers/sublayer.hpp"

// The products of a sublayer's adapters.
namespace strata::nn {

ConstTensorView Sublayer::low(const LayerPass& pass, const RowPiece& piece,
                              const ConstTensorView& x, const TensorView& w,
                              ops::Transpose transpose) const {
  const TensorView result = row_range(pass.workspace.at(Workspace::kLow), piece.all);
  ops::matmul(pass.context, x, w, result, {.transpose_b = transpose});
  const auto [rank, alpha, products] = options_.adapters;
  if (alpha != static_cast<double>(rank)) {
    ops::scaled(pass.context, alpha / static_cast<double>(rank), result, result,
                ops::Accumulate::kOverwrite);
  }
  return result;
}

void Sublayer::adapter_gradients(const LayerPass& pass,
                                 const ConstTensorView& output_gradient) const {
  const std::vector<ParameterViews>& weight_gradients = pass.weight_gradients;
  const grid::Range& own = pass.shards.own();
  const RowPiece all = one_piece(whole_rows(pass)).front();
  const ShardParts<TensorView> parts{.all_shards = pass.workspace.at(Workspace::kAdapterAllShards),
                                     .own_shards = pass.workspace.at(Workspace::kAdapterOwnShards)};
  const PartsMade made = pass.shards.ranks() > 1 ? PartsMade::kOwnShards : PartsMade::kAllShards;
  const TensorView& blocks = made == PartsMade::kOwnShards ? parts.own_shards : parts.all_shards;
  const bool has_parts = pass.shards.shards() > 1;
  std::vector<SharedGradient> shared;
  // A = (dy B)^T x and B = dy^T (x A^T), of which kLow holds the factor of rank columns.
  const auto product = [&](const ConstTensorView& upper, const ConstTensorView& lower,
                           const TensorView& gradient, ops::Accumulate into) {
    ops::matmul(pass.context, upper, lower, gradient,
                {.transpose_a = ops::Transpose::kYes, .accumulate = into});
    pass.engine.progress();
  };
  for (const std::size_t p : adapted_) {
    const Adapter adapter = *adapter_of(p);
    const bool is_output = p == products_.size();
    const std::size_t split = is_output ? adapter.a : adapter.b;
    const std::size_t common = is_output ? adapter.b : adapter.a;
    const TensorView& common_gradient = weight_gradients[common][0];
    shared.push_back({common_gradient, adapter.first_element});
    const auto x = [&](std::int64_t s) {
      return is_output ? ConstTensorView(inner_of(pass, s).result) : normalized(pass);
    };
    const auto dy = [&](std::int64_t s) {
      return is_output ? output_gradient : ConstTensorView(product_gradients(pass, s)[p]);
    };
    const auto low_of = [&](std::int64_t s, std::size_t matrix, const TensorView& weight) {
      return matrix == adapter.a ? low(pass, all, x(s), weight, ops::Transpose::kYes)
                                 : low(pass, all, dy(s), weight, ops::Transpose::kNo);
    };
    // One factor of the split matrix's gradient is the same for all shards.
    if (!weight_gradients[split].front().empty()) {
      const ConstTensorView factor = low_of(own.begin, common, pass.weights[common][0]);
      for (std::int64_t s = own.begin; s < own.end; ++s) {
        product(is_output ? factor : dy(s), is_output ? x(s) : factor,
                weight_gradients[split][static_cast<std::size_t>(s - own.begin)], pass.accumulate);
      }
    }
    for (std::int64_t s = own.begin; s < own.end && !common_gradient.empty(); ++s) {
      const ConstTensorView factor =
          low_of(s, split, pass.weights[split][static_cast<std::size_t>(s - own.begin)]);
      const TensorView part =
          has_parts ? blocks
                          .flat_slice((s - own.begin) * adapter_elements() + adapter.first_element,
                                      common_gradient.count())
                          .reshaped(common_gradient.shape())
                    : common_gradient;
      product(is_output ? dy(s) : factor, is_output ? factor : x(s), part,
              has_parts ? ops::Accumulate::kOverwrite : pass.accumulate);
    }
  }
  if (has_parts) {
    sum_shard_parts(pass, parts, made, shared);
  }
}

}  // namespace strata::nn
