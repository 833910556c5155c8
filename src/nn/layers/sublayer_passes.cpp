#include <optional>

#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"

#include "layers/sublayer.hpp"
#include "layers/whole_gradient.hpp"

namespace strata::nn {

std::int64_t Sublayer::rows_of(const LayerPass& pass) const {
  return pass.input.count() / width();
}

std::int64_t Sublayer::whole_rows(const LayerPass& pass) const {
  return is_split_by_tokens() ? pass.saved.at(Saved::kNormed).count() / width() : rows_of(pass);
}

NormStatistics<TensorView> Sublayer::statistics(const LayerPass& pass) const {
  return rows_at({.mean = pass.saved.at(Saved::kMean), .rstd = pass.saved.at(Saved::kRstd)},
                 {0, rows_of(pass)});
}

TensorView Sublayer::local_matrix(const LayerPass& pass, const TensorView& tensor) const {
  return row_range(tensor, {0, rows_of(pass)});
}

NormStatistics<TensorView> Sublayer::post_statistics(const LayerPass& pass) const {
  return rows_at({.mean = pass.saved.at(Saved::kPostMean), .rstd = pass.saved.at(Saved::kPostRstd)},
                 {0, rows_of(pass)});
}

std::vector<RowPiece> Sublayer::pieces(const LayerPass& pass) const {
  return row_pieces(pass, input().placement, whole_rows(pass));
}

ShardSum Sublayer::shard_sum(const LayerPass& pass) const {
  return {pass, TensorSlots(pass.workspace.from(Workspace::kSum)), pieces(pass), width()};
}

ConstTensorView Sublayer::normalized(const LayerPass& pass) const {
  const TensorView& made = pass.saved.at(Saved::kNormed);
  const std::int64_t rows = whole_rows(pass);
  return made.empty()
             ? pass.input.reshaped(Shape{rows, width()})
             : ConstTensorView(made.flat_slice(0, rows * width()).reshaped(Shape{rows, width()}));
}

Sublayer::Inner Sublayer::inner_of(const LayerPass& pass, std::int64_t shard) const {
  const std::int64_t rows = whole_rows(pass);
  const grid::Range& own = pass.shards.own();
  const auto block = [&](const TensorView& tensor, std::int64_t columns, std::int64_t unit) {
    return shard_block(tensor, rows, columns, pass.shards.shards(), own, shard, unit);
  };
  Inner inner{.pass = pass,
              .rows = rows,
              .shard = shard,
              .result = block(pass.saved.at(Saved::kResult), inner_width(), inner_unit_)};
  const std::span<const TensorView> made = pass.saved.from(Saved::kProducts);
  for (std::size_t p = 0; p < products().size(); ++p) {
    inner.products.push_back(block(made[p], products()[p].outputs(), products()[p].unit()));
  }
  const std::span<const TensorView> extras = made.subspan(products().size());
  const std::size_t count = extras.size() / static_cast<std::size_t>(own.count());
  inner.extras =
      TensorSlots(extras.subspan(static_cast<std::size_t>(shard - own.begin) * count, count));
  if (const TensorView& sums = pass.saved.at(Saved::kSums); !sums.empty()) {
    inner.forward_sums = row_range(sums, {0, rows});
  }
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const ParameterViews& weights = pass.weights[own_first_ + i];
    inner.weights.push_back(
        weights[divides_own() ? static_cast<std::size_t>(shard - own.begin) : 0]);
  }
  return inner;
}

std::vector<TensorView> Sublayer::product_gradients(const LayerPass& pass,
                                                    std::int64_t shard) const {
  const std::span<const TensorView> gradients = pass.gradients.from(Gradient::kProducts);
  std::vector<TensorView> views;
  for (std::size_t p = 0; p < products().size(); ++p) {
    views.push_back(shard_block(gradients[p], whole_rows(pass), products()[p].outputs(),
                                pass.shards.shards(), pass.shards.own(), shard,
                                products()[p].unit()));
  }
  return views;
}

std::vector<TensorView> Sublayer::own_gradients(const LayerPass& pass, std::int64_t shard) const {
  std::int64_t first = divides_own() ? 0 : (shard - pass.shards.own().begin) * own_elements();
  std::vector<TensorView> views;
  for (const ParameterSpec& parameter : own_) {
    const std::int64_t count = parameter.shape.count();
    const grid::Range part = divides_own()
                                 ? shard_part(count, parameter.unit, pass.shards.shards(), shard)
                                 : grid::Range{0, count};
    views.push_back(pass.gradients.at(Gradient::kOwn).flat_slice(first + part.begin, part.count()));
    first += count;
  }
  return views;
}

TensorView Sublayer::low_rows(const LayerPass& pass, const RowPiece& piece) const {
  return is_adapted() ? row_range(pass.workspace.at(Workspace::kLow), piece.all) : TensorView();
}

RowGather Sublayer::begin_normed(const LayerPass& pass) const {
  const TensorView& made = pass.saved.at(Saved::kNormed);
  RowGather gather(pass, input().placement, made);
  if (made.empty()) {
    return gather;
  }
  const ConstTensorView x = pass.input.reshaped(Shape{rows_of(pass), width()});
  for (const RowPiece& piece : pieces(pass)) {
    const TensorView own = row_range(made, piece.own);
    if (norm_.kind() == NormKind::kNone) {
      ops::copy(pass.context, row_range(x, piece.local), own);
    } else {
      norm_.forward(pass.context, pass.weights, row_range(x, piece.local), own,
                    rows_at(statistics(pass), piece.local));
    }
    gather.begin(piece);
  }
  return gather;
}

template <typename Make>
TensorView Sublayer::summed_terms(const LayerPass& pass, const Make& make) const {
  if (row_sums() == 0 || pass.shards.shards() == 1) {
    return {};
  }
  const grid::Range& own = pass.shards.own();
  const Shape shape{whole_rows(pass), row_sums()};
  const auto blocks = [&](Workspace slot, std::int64_t shards) {
    return pass.workspace.at(slot).flat_slice(0, shards * shape.count());
  };
  const ShardParts<TensorView> parts{
      .all_shards = blocks(Workspace::kTermsAllShards, pass.shards.shards()),
      .own_shards = blocks(Workspace::kTermsOwnShards, own.count())};
  const PartsMade made = pass.shards.ranks() > 1 ? PartsMade::kOwnShards : PartsMade::kAllShards;
  const TensorView& terms = made == PartsMade::kOwnShards ? parts.own_shards : parts.all_shards;
  for (std::int64_t s = own.begin; s < own.end; ++s) {
    make(s, terms.flat_slice((s - own.begin) * shape.count(), shape.count()).reshaped(shape));
  }
  return sum_blocks(pass, parts, made).reshaped(shape);
}

void Sublayer::make_products(const LayerPass& pass, RowGather& normed) const {
  // Selective recompute computes `result` from the products, so forward must too: a product that
  // also applies GELU may round once where two operations round twice.
  const bool makes_result = applies_gelu() && pass.shape.recompute != Recompute::kSelective;
  const grid::Range& own = pass.shards.own();
  for (const RowPiece& piece : pieces(pass)) {
    normed.wait();
    const ConstTensorView x = row_range(normalized(pass), piece.all);
    for (std::size_t p = 0; p < products().size(); ++p) {
      const Projection& projection = products()[p];
      const ConstTensorView lower = projection.lower(pass, own.begin, x, low_rows(pass, piece));
      for (std::int64_t s = own.begin; s < own.end; ++s) {
        const Inner inner = inner_of(pass, s);
        const TensorView product = row_range(inner.products[p], piece.all);
        ops::MatmulOptions options{.bias = projection.bias(pass, s)};
        if (makes_result) {
          options.activation = product_activation();
          options.pre_activation = product;
        }
        projection.forward(pass, s, x, lower,
                           makes_result ? row_range(inner.result, piece.all) : product, options);
      }
    }
    pass.engine.progress();
  }
  const TensorView sums = summed_terms(pass, [&](std::int64_t s, const TensorView& terms) {
    forward_terms(inner_of(pass, s), terms);
  });
  if (!sums.empty()) {
    ops::copy(pass.context, sums, inner_of(pass, own.begin).forward_sums);
  }
  for (std::int64_t s = own.begin; s < own.end && !makes_result; ++s) {
    inner_forward(inner_of(pass, s));
  }
}

ConstTensorView Sublayer::residual(const LayerPass& pass) const {
  const ConstTensorView& added = pass.added.empty() ? pass.input : pass.added;
  return options_.residual == Switch::kOn ? added.reshaped(Shape{rows_of(pass), width()})
                                          : ConstTensorView();
}

void Sublayer::make_output(const LayerPass& pass) const {
  const Projection& projection = output_projection();
  const std::int64_t rows = rows_of(pass);
  const ConstTensorView x = residual(pass);
  const TensorView bias = projection.bias(pass, pass.shards.own().begin);
  const bool drops = options_.dropout > 0.0 && pass.mode == Mode::kTraining && !has_post_norm();
  const bool adds = !x.empty() && !has_post_norm();
  const TensorView y = has_post_norm() ? local_matrix(pass, pass.saved.at(Saved::kProjected))
                                       : pass.output.reshaped(Shape{rows, width()});
  const auto product = [&](const RowPiece& piece, std::int64_t s, const TensorView& into,
                           const ops::MatmulOptions& options) {
    const ConstTensorView result = row_range(inner_of(pass, s).result, piece.all);
    projection.forward(pass, s, result, projection.lower(pass, s, result, low_rows(pass, piece)),
                       into, options);
  };
  if (pass.shards.shards() == 1 && !drops) {
    product(one_piece(rows).front(), 0, y, {.bias = bias, .addend = adds ? x : ConstTensorView()});
  } else {
    ShardSum sums = shard_sum(pass);
    sums.begin([&](const RowPiece& piece, std::int64_t s, const TensorView& into) {
      product(piece, s, into, {});
    });
    sums.end(input().placement, [&](const RowPiece& piece, const TensorView& sum) {
      const ConstTensorView addend = adds ? row_range(x, piece.local) : ConstTensorView();
      const TensorView output = row_range(y, piece.local);
      if (!drops) {
        ops::add_bias_residual(pass.context, sum, bias, addend, output);
        return;
      }
      ops::bias_dropout_residual(pass.context, sum, bias, addend, options_.dropout, dropout_stream_,
                                 {pass.first_sample, rows_at(input(), 1), piece.own.begin}, output,
                                 row_range(pass.saved.at(Saved::kMask), piece.local));
    });
  }
  if (has_post_norm()) {
    apply_post_norm(pass);
  }
}

void Sublayer::apply_post_norm(const LayerPass& pass) const {
  const std::int64_t rows = rows_of(pass);
  const TensorView y = pass.output.reshaped(Shape{rows, width()});
  const ConstTensorView x = residual(pass);
  post_norm_.forward(pass.context, pass.weights,
                     local_matrix(pass, pass.saved.at(Saved::kProjected)), y,
                     post_statistics(pass));
  for (const RowPiece& piece : pieces(pass)) {
    const TensorView output = row_range(y, piece.local);
    const ConstTensorView addend = x.empty() ? x : row_range(x, piece.local);
    if (options_.dropout > 0.0 && pass.mode == Mode::kTraining) {
      ops::bias_dropout_residual(pass.context, output, {}, addend, options_.dropout,
                                 dropout_stream_,
                                 {pass.first_sample, rows_at(input(), 1), piece.own.begin}, output,
                                 row_range(pass.saved.at(Saved::kMask), piece.local));
    } else if (!addend.empty()) {
      ops::add_bias_residual(pass.context, output, {}, addend, output);
    }
  }
}

void Sublayer::forward(const LayerPass& given) const {
  shared_rows_.with_copies(given, shared_workspace(given), [&](const LayerPass& pass) {
    RowGather normed = begin_normed(pass);
    make_products(pass, normed);
    make_output(pass);
  });
}

void Sublayer::recompute(const LayerPass& pass) const {
  if (pass.shape.recompute == Recompute::kFull) {
    shared_rows_.with_copies(pass, shared_workspace(pass), [&](const LayerPass& copied) {
      RowGather normed = begin_normed(copied);
      make_products(copied, normed);
    });
    return;
  }
  RowGather normed = begin_normed(pass);
  normed.wait_for_all();
  if (result_under_selective() == Keep::kRecomputed) {
    for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
      inner_forward(inner_of(pass, s));
    }
  }
}

ConstTensorView Sublayer::projected_gradient(const LayerPass& pass) const {
  return has_post_norm() ? ConstTensorView(pass.gradients.at(Gradient::kProjected))
                         : pass.output_gradient.reshaped(Shape{rows_of(pass), width()});
}

ConstTensorView Sublayer::whole_gradient(const LayerPass& pass) const {
  const TensorView& whole = pass.gradients.at(Gradient::kWhole);
  return whole.empty() ? projected_gradient(pass) : ConstTensorView(whole);
}

void Sublayer::post_norm_backward(const LayerPass& pass, Wants wants) const {
  const TensorView& dropped = pass.gradients.at(Gradient::kDropped);
  const ConstTensorView dy = pass.output_gradient.reshaped(Shape{rows_of(pass), width()});
  if (wants_input(wants) && !dropped.empty()) {
    ops::dropout_backward(pass.context, dy, pass.saved.at(Saved::kMask), options_.dropout, dropped);
  }
  post_norm_.backward(pass, wants, input().placement,
                      local_matrix(pass, pass.saved.at(Saved::kProjected)), post_statistics(pass),
                      dropped.empty() ? dy : dropped, {}, pass.gradients.at(Gradient::kProjected),
                      {.all_shards = pass.workspace.at(Workspace::kPostAllShards),
                       .own_shards = pass.workspace.at(Workspace::kPostOwnShards)});
}

void Sublayer::gradients_of_products(const LayerPass& pass) const {
  const Projection& projection = output_projection();
  RowGather gather = begin_whole_gradient(
      pass, input().placement, projected_gradient(pass), has_post_norm() ? 0.0 : options_.dropout,
      pass.saved.at(Saved::kMask), pass.gradients.at(Gradient::kWhole));
  const grid::Range& own = pass.shards.own();
  const auto d_result = [&](std::int64_t s) {
    return shard_block(pass.workspace.at(Workspace::kResultGradient), whole_rows(pass),
                       inner_width(), pass.shards.shards(), own, s, inner_unit_);
  };
  for (const RowPiece& piece : pieces(pass)) {
    gather.wait();
    const ConstTensorView rows = row_range(whole_gradient(pass), piece.all);
    const ConstTensorView lower =
        projection.lower_gradient(pass, own.begin, rows, low_rows(pass, piece));
    for (std::int64_t s = own.begin; s < own.end; ++s) {
      if (applies_gelu()) {
        projection.input_gradient(
            pass, s, rows, lower, row_range(product_gradients(pass, s)[0], piece.all),
            {.gelu_gradient_of = row_range(inner_of(pass, s).products[0], piece.all)});
      } else {
        projection.input_gradient(pass, s, rows, lower, row_range(d_result(s), piece.all), {});
      }
    }
    pass.engine.progress();
  }
  const TensorView sums = summed_terms(pass, [&](std::int64_t s, const TensorView& terms) {
    backward_terms(inner_of(pass, s), d_result(s), TensorSlots(product_gradients(pass, s)), terms);
  });
  for (std::int64_t s = own.begin; s < own.end && !applies_gelu(); ++s) {
    Inner inner = inner_of(pass, s);
    inner.backward_sums = sums;
    inner.weight_gradients = own_gradients(pass, s);
    inner_backward(inner, d_result(s), TensorSlots(product_gradients(pass, s)));
  }
}

std::optional<ShardSum> Sublayer::begin_normed_gradient(const LayerPass& pass) const {
  gradients_of_products(pass);
  const auto make = [&](const RowPiece& piece, std::int64_t s, const TensorView& into) {
    const std::vector<TensorView> gradients = product_gradients(pass, s);
    for (std::size_t p = 0; p < products().size(); ++p) {
      const TensorView gradient = row_range(gradients[p], piece.all);
      const ConstTensorView lower =
          products()[p].lower_gradient(pass, s, gradient, low_rows(pass, piece));
      products()[p].input_gradient(
          pass, s, gradient, lower, into,
          {.accumulate = p == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd});
    }
  };
  if (pass.shards.shards() == 1 && products().size() == 1) {
    make(one_piece(whole_rows(pass)).front(), 0, pass.gradients.at(Gradient::kNormed));
    return std::nullopt;
  }
  ShardSum sum = shard_sum(pass);
  sum.begin(make);
  return sum;
}

void Sublayer::end_normed_gradient(const LayerPass& pass, std::optional<ShardSum>& sum) const {
  if (sum) {
    sum->end(input().placement, [&](const RowPiece& piece, const TensorView& rows) {
      ops::convert(pass.context, rows,
                   row_range(pass.gradients.at(Gradient::kNormed), piece.local));
    });
  }
}

void Sublayer::norm_backward(const LayerPass& pass, Wants wants, const TensorView& dy) const {
  const TensorView& d_normed = pass.gradients.at(Gradient::kNormed);
  const TensorView dx =
      pass.input_gradient.empty() ? TensorView() : pass.input_gradient.reshaped(dy.shape());
  // The gradient that bypasses the sublayer.
  const bool bypasses = options_.residual == Switch::kOn && pass.added.empty();
  const ConstTensorView past = bypasses ? dy : TensorView();
  if (norm_.kind() != NormKind::kNone) {
    norm_.backward(pass, wants, input().placement, pass.input.reshaped(dy.shape()),
                   statistics(pass), d_normed, past, dx,
                   {.all_shards = pass.workspace.at(Workspace::kNormAllShards),
                    .own_shards = pass.workspace.at(Workspace::kNormOwnShards)});
  } else if (wants_input(wants) && !dx.empty()) {
    ops::add_bias_residual(pass.context, d_normed, {}, past, dx);
  }
}

void Sublayer::backward(const LayerPass& given, Wants wants) const {
  const TensorView dy = given.output_gradient.reshaped(Shape{rows_of(given), width()});
  if (has_post_norm()) {
    post_norm_backward(given, wants);
  }
  // Gradients of weights alone read only those of adapters.
  const SharedRows::Reads reads = wants_input(wants) || is_adapted() ? SharedRows::Reads::kWeights
                                                                     : SharedRows::Reads::kNothing;
  shared_rows_.with_copies(
      given, shared_workspace(given),
      [&](const LayerPass& pass) {
        std::optional<ShardSum> normed_gradient =
            wants_input(wants) ? begin_normed_gradient(pass) : std::nullopt;
        if (wants_weights(wants)) {
          product_weight_gradients(pass);
        }
        end_normed_gradient(pass, normed_gradient);
      },
      reads);
  if (wants_weights(wants)) {
    shared_rows_.add_gradients(given, shared_workspace(given));
  }
  norm_backward(given, wants, dy);
}

void Sublayer::product_weight_gradients(const LayerPass& pass) const {
  const ConstTensorView dy = whole_gradient(pass);
  const ConstTensorView x = normalized(pass);
  std::vector<ops::ColumnSum> bias_sums;
  for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
    output_projection().weight_gradient(pass, s, inner_of(pass, s).result, dy, pass.accumulate);
    const std::vector<TensorView> gradients = product_gradients(pass, s);
    for (std::size_t p = 0; p < products().size(); ++p) {
      products()[p].weight_gradient(pass, s, x, gradients[p], pass.accumulate);
      if (products()[p].has_bias()) {
        bias_sums.push_back({gradients[p], products()[p].bias_gradient(pass, s)});
      }
    }
  }
  if (output_projection().has_bias()) {
    bias_sums.push_back({dy, output_projection().bias_gradient(pass, pass.shards.own().begin)});
  }
  ops::column_sums(pass.context, bias_sums, pass.accumulate);
  if (is_adapted()) {
    adapter_gradients(pass);
  }
  if (!own_.empty()) {
    own_weight_gradients(pass);
  }
}

void Sublayer::adapter_gradients(const LayerPass& pass) const {
  const ShardParts<TensorView> parts{.all_shards = pass.workspace.at(Workspace::kAdapterAllShards),
                                     .own_shards = pass.workspace.at(Workspace::kAdapterOwnShards)};
  const PartsMade made = pass.shards.ranks() > 1 ? PartsMade::kOwnShards : PartsMade::kAllShards;
  const TensorView& blocks = made == PartsMade::kOwnShards ? parts.own_shards : parts.all_shards;
  const TensorView low = low_rows(pass, one_piece(whole_rows(pass)).front());
  std::vector<SharedGradient> shared;
  for (std::size_t p = 0; p < projections_.size(); ++p) {
    const bool is_output = p + 1 == projections_.size();
    const Projection::Operands operands{
        .x =
            [&](std::int64_t s) {
              return is_output ? ConstTensorView(inner_of(pass, s).result) : normalized(pass);
            },
        .dy =
            [&](std::int64_t s) {
              return is_output ? whole_gradient(pass)
                               : ConstTensorView(product_gradients(pass, s)[p]);
            }};
    if (projections_[p].is_adapted()) {
      projections_[p].adapter_gradients(pass, operands, low, blocks, adapter_elements_, shared);
    }
  }
  if (pass.shards.shards() > 1) {
    sum_shard_parts(pass, parts, made, shared);
  }
}

void Sublayer::own_weight_gradients(const LayerPass& pass) const {
  const grid::Range& own = pass.shards.own();
  for (std::int64_t s = own.begin; s < own.end && divides_own(); ++s) {
    const std::vector<TensorView> made = own_gradients(pass, s);
    for (std::size_t i = 0; i < own_.size(); ++i) {
      add_gradient(pass, made[i],
                   pass.weight_gradients[own_first_ + i][static_cast<std::size_t>(s - own.begin)]);
    }
  }
  if (divides_own()) {
    return;
  }
  const TensorView& made = pass.gradients.at(Gradient::kOwn);
  const bool gathers = pass.shards.ranks() > 1;
  std::vector<SharedGradient> shared;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    shared.push_back({pass.weight_gradients[own_first_ + i][0], first});
    first += own_[i].shape.count();
  }
  sum_shard_parts(pass,
                  {.all_shards = gathers ? pass.workspace.at(Workspace::kOwnAllShards) : made,
                   .own_shards = made},
                  gathers ? PartsMade::kOwnShards : PartsMade::kAllShards, shared);
}

}  // namespace strata::nn
