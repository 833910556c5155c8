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
              .result = block(pass.saved.at(Saved::kResult), inner_width_, inner_unit_)};
  const std::span<const TensorView> products = pass.saved.from(Saved::kProducts);
  for (std::size_t p = 0; p < products_.size(); ++p) {
    inner.products.push_back(block(products[p], products_[p].columns, products_[p].unit));
  }
  const std::span<const TensorView> extras = products.subspan(products_.size());
  const std::size_t count = extras.size() / static_cast<std::size_t>(own.count());
  inner.extras =
      TensorSlots(extras.subspan(static_cast<std::size_t>(shard - own.begin) * count, count));
  return inner;
}

std::vector<TensorView> Sublayer::product_gradients(const LayerPass& pass,
                                                    std::int64_t shard) const {
  const std::span<const TensorView> gradients = pass.gradients.from(Gradient::kProducts);
  std::vector<TensorView> views;
  for (std::size_t p = 0; p < products_.size(); ++p) {
    views.push_back(shard_block(gradients[p], whole_rows(pass), products_[p].columns,
                                pass.shards.shards(), pass.shards.own(), shard, products_[p].unit));
  }
  return views;
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

void Sublayer::make_products(const LayerPass& pass, RowGather& normed) const {
  // Selective recompute computes `result` from the products, so forward must too: a product that
  // also applies GELU may round once where two operations round twice.
  const bool makes_result = applies_gelu() && pass.shape.recompute != Recompute::kSelective;
  const grid::Range& own = pass.shards.own();
  for (const RowPiece& piece : pieces(pass)) {
    normed.wait();
    const ConstTensorView x = row_range(normalized(pass), piece.all);
    for (std::size_t p = 0; p < products_.size(); ++p) {
      const std::size_t weight = parameters_of(p);
      const std::optional<Adapter> adapter = adapter_of(p);
      const ConstTensorView lower =
          adapter ? low(pass, piece, x, pass.weights[adapter->a][0], ops::Transpose::kYes)
                  : ConstTensorView();
      for (std::int64_t s = own.begin; s < own.end; ++s) {
        const auto local = static_cast<std::size_t>(s - own.begin);
        const Inner inner = inner_of(pass, s);
        const TensorView product = row_range(inner.products[p], piece.all);
        ops::MatmulOptions options{.transpose_b = ops::Transpose::kYes,
                                   .bias = bias_of(pass.weights, weight, local)};
        if (makes_result) {
          options.activation = product_activation();
          options.pre_activation = product;
        }
        ops::matmul(pass.context, x, pass.weights[weight][local],
                    makes_result ? row_range(inner.result, piece.all) : product, options);
        if (adapter) {
          ops::matmul(pass.context, lower, pass.weights[adapter->b][local], product,
                      {.transpose_b = ops::Transpose::kYes, .accumulate = ops::Accumulate::kAdd});
        }
      }
    }
    pass.engine.progress();
  }
  for (std::int64_t s = own.begin; s < own.end && !makes_result; ++s) {
    inner_forward(inner_of(pass, s));
  }
}

void Sublayer::make_output(const LayerPass& pass) const {
  const std::size_t weight = output_parameters();
  const std::optional<Adapter> adapter = adapter_of(products_.size());
  const auto add_adapted = [&](const RowPiece& piece, std::int64_t s, const TensorView& into) {
    if (adapter) {
      const auto local = static_cast<std::size_t>(s - pass.shards.own().begin);
      const ConstTensorView lower = low(pass, piece, row_range(inner_of(pass, s).result, piece.all),
                                        pass.weights[adapter->a][local], ops::Transpose::kYes);
      ops::matmul(pass.context, lower, pass.weights[adapter->b][0], into,
                  {.transpose_b = ops::Transpose::kYes, .accumulate = ops::Accumulate::kAdd});
    }
  };
  const std::int64_t rows = rows_of(pass);
  const TensorView y = pass.output.reshaped(Shape{rows, width()});
  const ConstTensorView x = pass.input.reshaped(Shape{rows, width()});
  const bool adds = options_.residual == Switch::kOn;
  const TensorView bias = bias_of(pass.weights, weight, 0);
  const bool drops = options_.dropout > 0.0 && pass.mode == Mode::kTraining;
  if (pass.shards.shards() == 1 && !drops) {
    ops::matmul(pass.context, inner_of(pass, 0).result, pass.weights[weight][0], y,
                {.transpose_b = ops::Transpose::kYes,
                 .bias = bias,
                 .addend = adds ? x : ConstTensorView()});
    add_adapted(one_piece(rows).front(), 0, y);
    return;
  }
  ShardSum sums = shard_sum(pass);
  sums.begin([&](const RowPiece& piece, std::int64_t s, const TensorView& into) {
    const auto local = static_cast<std::size_t>(s - pass.shards.own().begin);
    ops::matmul(pass.context, row_range(inner_of(pass, s).result, piece.all),
                pass.weights[weight][local], into, {.transpose_b = ops::Transpose::kYes});
    add_adapted(piece, s, into);
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

void Sublayer::forward(const LayerPass& pass) const {
  RowGather normed = begin_normed(pass);
  make_products(pass, normed);
  make_output(pass);
}

void Sublayer::recompute(const LayerPass& pass) const {
  RowGather normed = begin_normed(pass);
  if (pass.shape.recompute == Recompute::kFull) {
    make_products(pass, normed);
    return;
  }
  normed.wait_for_all();
  if (result_under_selective() == Keep::kRecomputed) {
    for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
      inner_forward(inner_of(pass, s));
    }
  }
}

ConstTensorView Sublayer::whole_gradient(const LayerPass& pass,
                                         const ConstTensorView& output_gradient) const {
  const TensorView& whole = pass.gradients.at(Gradient::kWhole);
  return whole.empty() ? output_gradient.reshaped(Shape{rows_of(pass), width()})
                       : ConstTensorView(whole);
}

void Sublayer::gradients_of_products(const LayerPass& pass, const TensorView& dy) const {
  RowGather gather =
      begin_whole_gradient(pass, input().placement, dy, options_.dropout,
                           pass.saved.at(Saved::kMask), pass.gradients.at(Gradient::kWhole));
  const std::optional<Adapter> adapter = adapter_of(products_.size());
  const grid::Range& own = pass.shards.own();
  const auto d_result = [&](std::int64_t s) {
    return shard_block(pass.workspace.at(Workspace::kResultGradient), whole_rows(pass),
                       inner_width_, pass.shards.shards(), own, s, inner_unit_);
  };
  for (const RowPiece& piece : pieces(pass)) {
    gather.wait();
    const ConstTensorView rows = row_range(whole_gradient(pass, dy), piece.all);
    const ConstTensorView lower =
        adapter ? low(pass, piece, rows, pass.weights[adapter->b][0], ops::Transpose::kNo)
                : ConstTensorView();
    for (std::int64_t s = own.begin; s < own.end; ++s) {
      const auto local = static_cast<std::size_t>(s - own.begin);
      const TensorView& weight = pass.weights[output_parameters()][local];
      if (applies_gelu()) {
        ops::matmul(pass.context, rows, weight, row_range(product_gradients(pass, s)[0], piece.all),
                    {.gelu_gradient_of = row_range(inner_of(pass, s).products[0], piece.all)});
      } else {
        ops::matmul(pass.context, rows, weight, row_range(d_result(s), piece.all));
      }
      if (adapter) {
        ops::matmul(pass.context, lower, pass.weights[adapter->a][local],
                    row_range(d_result(s), piece.all), {.accumulate = ops::Accumulate::kAdd});
      }
    }
    pass.engine.progress();
  }
  for (std::int64_t s = own.begin; s < own.end && !applies_gelu(); ++s) {
    inner_backward(inner_of(pass, s), d_result(s), TensorSlots(product_gradients(pass, s)));
  }
}

std::optional<ShardSum> Sublayer::begin_normed_gradient(const LayerPass& pass,
                                                        const TensorView& dy) const {
  gradients_of_products(pass, dy);
  const auto make = [&](const RowPiece& piece, std::int64_t s, const TensorView& into) {
    const auto local = static_cast<std::size_t>(s - pass.shards.own().begin);
    const std::vector<TensorView> gradients = product_gradients(pass, s);
    for (std::size_t p = 0; p < products_.size(); ++p) {
      const TensorView gradient = row_range(gradients[p], piece.all);
      ops::matmul(pass.context, gradient, pass.weights[parameters_of(p)][local], into,
                  {.accumulate = p == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd});
      if (const std::optional<Adapter> adapter = adapter_of(p)) {
        ops::matmul(
            pass.context,
            low(pass, piece, gradient, pass.weights[adapter->b][local], ops::Transpose::kNo),
            pass.weights[adapter->a][0], into, {.accumulate = ops::Accumulate::kAdd});
      }
    }
  };
  if (pass.shards.shards() == 1 && products_.size() == 1) {
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
  const ConstTensorView past = options_.residual == Switch::kOn ? dy : TensorView();
  if (norm_.kind() != NormKind::kNone) {
    norm_.backward(pass, wants, input().placement, pass.input.reshaped(dy.shape()),
                   statistics(pass), d_normed, past, dx,
                   {.all_shards = pass.workspace.at(Workspace::kNormAllShards),
                    .own_shards = pass.workspace.at(Workspace::kNormOwnShards)});
  } else if (wants_input(wants) && !dx.empty()) {
    ops::add_bias_residual(pass.context, d_normed, {}, past, dx);
  }
}

void Sublayer::backward(const LayerPass& pass, Wants wants) const {
  const TensorView dy = pass.output_gradient.reshaped(Shape{rows_of(pass), width()});
  std::optional<ShardSum> normed_gradient =
      wants_input(wants) ? begin_normed_gradient(pass, dy) : std::nullopt;
  if (wants_weights(wants)) {
    product_weight_gradients(pass);
  }
  end_normed_gradient(pass, normed_gradient);
  norm_backward(pass, wants, dy);
}

void Sublayer::product_weight_gradients(const LayerPass& pass) const {
  const std::vector<ParameterViews>& weight_gradients = pass.weight_gradients;
  const ConstTensorView dy = whole_gradient(pass, pass.output_gradient);
  const ConstTensorView x = normalized(pass);
  const grid::Range& own = pass.shards.own();
  const std::size_t output_weight = output_parameters();
  const auto weight_gradient = [&](const ConstTensorView& upper, const ConstTensorView& lower,
                                   const TensorView& gradient) {
    if (!gradient.empty()) {
      ops::matmul(pass.context, upper, lower, gradient,
                  {.transpose_a = ops::Transpose::kYes, .accumulate = pass.accumulate});
      // Messages of the input's gradient may be in flight.
      pass.engine.progress();
    }
  };
  std::vector<ops::ColumnSum> bias_sums;
  for (std::int64_t s = own.begin; s < own.end; ++s) {
    const auto local = static_cast<std::size_t>(s - own.begin);
    weight_gradient(dy, inner_of(pass, s).result, weight_gradients[output_weight][local]);
    const std::vector<TensorView> upper = product_gradients(pass, s);
    for (std::size_t p = 0; p < products_.size(); ++p) {
      const std::size_t weight = parameters_of(p);
      weight_gradient(upper[p], x, weight_gradients[weight][local]);
      if (options_.bias == Switch::kOn) {
        bias_sums.push_back({upper[p], weight_gradients[weight + 1][local]});
      }
    }
  }
  if (options_.bias == Switch::kOn) {
    bias_sums.push_back({dy, weight_gradients[output_weight + 1][0]});
  }
  ops::column_sums(pass.context, bias_sums, pass.accumulate);
  if (!adapted_.empty()) {
    adapter_gradients(pass, dy);
  }
}

}  // namespace strata::nn
