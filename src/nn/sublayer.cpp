#include "sublayer.hpp"

#include "strata/ops/convert.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"

namespace strata::nn {

// Where saved() lists what. The products' results follow, then the extras, each for all own shards.
struct Sublayer::SavedIndex {
  static constexpr std::size_t kStatistics = 0;
  static constexpr std::size_t kNormed = 2;
  static constexpr std::size_t kMask = 3;
  static constexpr std::size_t kResult = 4;
  static constexpr std::size_t kProducts = 5;
};

// Where gradients() lists what. The products' follow.
struct Sublayer::GradientIndex {
  static constexpr std::size_t kWhole = 0;
  static constexpr std::size_t kNormed = 1;
  static constexpr std::size_t kProducts = 2;
};

// Where workspace() lists what. The accumulators follow.
struct Sublayer::WorkspaceIndex {
  static constexpr std::size_t kNorm = 0;
  static constexpr std::size_t kResultGradient = 2;
  static constexpr std::size_t kReceived = 3;
  static constexpr std::size_t kAccumulators = 4;
};

SublayerOptions take_sublayer_options(LayerLine& line) {
  SublayerOptions options;
  options.norm = line.take_enum("norm", NormKind::kLayerNorm);
  options.epsilon = take_epsilon(line);
  options.bias = line.take_enum("bias", Bias::kYes);
  options.residual = line.take_enum("residual", Residual::kYes);
  options.dropout = line.take_option_number("dropout", 0.0);
  if (!(options.dropout >= 0.0 && options.dropout < 1.0)) {
    line.refuse(fmt::format("dropout is {}, it must be at least 0 and below 1", options.dropout));
  }
  options.deviation = line.take_option_number("deviation", options.deviation);
  options.output_deviation = line.take_option_number("output_deviation", options.deviation);
  return options;
}

Sublayer::Sublayer(const LayerSite& site, const SublayerOptions& options,
                   std::vector<InnerProduct> products, std::string output_name,
                   std::int64_t inner_width)
    : Layer(site.name, site.input, site.input),
      options_(options),
      norm_(options.norm, site.input.shape.back(), options.epsilon, options.bias),
      products_(std::move(products)),
      output_name_(std::move(output_name)),
      inner_width_(inner_width),
      dropout_stream_(site.seed, RandomPurpose::kDropout, subject_of(site.name)) {}

std::vector<ParameterSpec> Sublayer::parameters() const {
  std::vector<ParameterSpec> specs = norm_.parameters(name() + ".norm");
  const auto add = [&](const std::string& part, const Shape& shape, std::int64_t split,
                       std::int64_t bias_split, double deviation) {
    specs.push_back({.name = name() + "." + part + ".weight",
                     .shape = shape,
                     .initializer = Initializer::kNormal,
                     .deviation = deviation,
                     .fan_in = shape[1],
                     .fan_out = shape[0],
                     .split = split});
    if (options_.bias == Bias::kYes) {
      specs.push_back({.name = name() + "." + part + ".bias",
                       .shape = {shape[0]},
                       .initializer = Initializer::kZeros,
                       .split = bias_split});
    }
  };
  for (const InnerProduct& product : products_) {
    add(product.name, {product.columns, width()}, 0, 0, options_.deviation);
  }
  add(output_name_, {width(), inner_width_}, 1, kNotSplit, options_.output_deviation);
  return specs;
}

std::size_t Sublayer::norm_parameters() const {
  return norm_.parameters("").size();
}

std::size_t Sublayer::parameters_of(std::size_t product) const {
  return norm_parameters() + product * (options_.bias == Bias::kYes ? 2 : 1);
}

std::size_t Sublayer::output_parameters() const {
  return parameters_of(products_.size());
}

TensorView Sublayer::bias_of(std::span<const ParameterViews> views, std::size_t weight,
                             std::size_t local) const {
  return options_.bias == Bias::kYes ? views[weight + 1][local] : TensorView();
}

std::vector<TensorSpec> Sublayer::extras(const PassShape& /*pass*/) const {
  return {};
}

std::int64_t Sublayer::whole_rows(const PassShape& pass) const {
  return rows_at(input(), pass.microbatch);
}

std::vector<SavedSpec> Sublayer::saved(const PassShape& pass) const {
  const std::int64_t rows = local_rows(input(), pass);
  const std::int64_t whole = whole_rows(pass);
  const auto keep_unless = [&](Recompute least) {
    return pass.recompute >= least ? Keep::kRemade : Keep::kKept;
  };
  std::vector<SavedSpec> specs;
  for (const TensorSpec& spec : norm_.statistics(rows, pass.dtype)) {
    specs.push_back({spec, keep_unless(Recompute::kFull)});
  }
  const bool copies = norm_.kind() != NormKind::kNone || is_split_by_tokens();
  specs.push_back(
      {{{copies ? whole : 0, width()}, pass.dtype}, keep_unless(Recompute::kSelective)});
  // A byte an element, and dear to make again.
  specs.push_back({{{options_.dropout > 0.0 ? rows : 0, width()}, DType::kUint8}, Keep::kKept});
  const auto split = [&](std::int64_t columns) {
    const Port port{{whole / pass.microbatch, columns}, Placement::kFeatures};
    return TensorSpec{local_shape(port, pass), pass.dtype};
  };
  const Keep result = pass.recompute == Recompute::kSelective ? result_under_selective()
                                                              : keep_unless(Recompute::kFull);
  specs.push_back({split(inner_width_), result});
  for (const InnerProduct& product : products_) {
    specs.push_back({split(product.columns), keep_unless(Recompute::kFull)});
  }
  for (std::int64_t s = 0; s < pass.shards.own.count(); ++s) {
    for (const TensorSpec& extra : extras(pass)) {
      specs.push_back({extra, keep_unless(Recompute::kFull)});
    }
  }
  return specs;
}

std::vector<TensorSpec> Sublayer::gradients(const PassShape& pass) const {
  const bool copies = is_split_by_tokens() || options_.dropout > 0.0;
  std::vector<TensorSpec> specs{{{copies ? whole_rows(pass) : 0, width()}, pass.dtype},
                                {{local_rows(input(), pass), width()}, pass.dtype}};
  for (const InnerProduct& product : products_) {
    const Port port{{whole_rows(pass) / pass.microbatch, product.columns}, Placement::kFeatures};
    specs.push_back({local_shape(port, pass), pass.dtype});
  }
  return specs;
}

bool Sublayer::sums_shards(const PassShape& pass) const {
  return pass.shards.count > 1 || products_.size() > 1 || options_.dropout > 0.0;
}

std::vector<TensorSpec> Sublayer::workspace(const PassShape& pass) const {
  std::vector<TensorSpec> specs = norm_.workspace(pass);
  const std::int64_t whole = whole_rows(pass);
  const Port result{{whole / pass.microbatch, inner_width_}, Placement::kFeatures};
  specs.push_back({local_shape(result, pass), pass.dtype});
  const DType dtype = compute_dtype(pass.dtype);
  specs.push_back(
      {{comm::ShardGroup::receive_elements(pass.shards.count, pass.shards.own, whole, width())},
       dtype});
  const std::int64_t count =
      sums_shards(pass) ? comm::ShardGroup::accumulators(pass.shards.count, pass.shards.own) : 0;
  for (std::int64_t a = 0; a < count; ++a) {
    specs.push_back({{whole, width()}, dtype});
  }
  return specs;
}

LayerCost Sublayer::cost() const {
  const double rows = static_cast<double>(rows_at(input(), 1));
  std::int64_t columns = inner_width_;
  for (const InnerProduct& product : products_) {
    columns += product.columns;
  }
  const double products = 2.0 * static_cast<double>(width()) * static_cast<double>(columns);
  LayerCost cost;
  cost.forward_flops = rows * (products + inner_flops());
  // The inner part's backward pass does its forward work again, and then the two gradients.
  cost.backward_flops = rows * (2.0 * products + 2.5 * inner_flops());
  cost.elements_moved =
      rows * (10.0 * static_cast<double>(width()) + 4.0 * static_cast<double>(columns));
  return cost;
}

LayerTraffic Sublayer::traffic(const PassShape& pass) const {
  const auto elements = static_cast<double>(whole_rows(pass)) * static_cast<double>(width());
  const double sum_bytes = elements * static_cast<double>(size_bytes(compute_dtype(pass.dtype)));
  const double bytes = elements * static_cast<double>(size_bytes(pass.dtype));
  LayerTraffic traffic;
  for (int direction = 0; direction < 2; ++direction) {
    traffic += exchange_of(pass, sum_bytes);
    traffic += exchange_of(pass, is_split_by_tokens() ? bytes : sum_bytes);
  }
  if (is_split_by_tokens()) {
    if (pass.recompute != Recompute::kNone) {
      traffic += exchange_of(pass, bytes);
    }
    traffic += norm_.traffic(pass, input().placement);
  }
  return traffic;
}

std::int64_t Sublayer::rows_of(const LayerPass& pass) const {
  return pass.input.count() / width();
}

std::int64_t Sublayer::whole_rows(const LayerPass& pass) const {
  return is_split_by_tokens() ? pass.saved[SavedIndex::kNormed].count() / width() : rows_of(pass);
}

std::vector<TensorView> Sublayer::statistics(const LayerPass& pass) const {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < SavedIndex::kNormed; ++i) {
    const TensorView& statistic = pass.saved[SavedIndex::kStatistics + i];
    views.push_back(statistic.empty() ? statistic : statistic.flat_slice(0, rows_of(pass)));
  }
  return views;
}

ConstTensorView Sublayer::normed(const LayerPass& pass) const {
  const TensorView& made = pass.saved[SavedIndex::kNormed];
  const std::int64_t rows = whole_rows(pass);
  return made.empty()
             ? pass.input.reshaped(Shape{rows, width()})
             : ConstTensorView(made.flat_slice(0, rows * width()).reshaped(Shape{rows, width()}));
}

Sublayer::Inner Sublayer::inner_of(const LayerPass& pass, std::int64_t shard) const {
  const std::int64_t rows = whole_rows(pass);
  const grid::Range& own = pass.shards.own();
  const auto block = [&](const TensorView& tensor, std::int64_t columns) {
    return shard_block(tensor, rows, columns, pass.shards.shards(), own, shard);
  };
  Inner inner{.pass = pass,
              .rows = rows,
              .shard = shard,
              .result = block(pass.saved[SavedIndex::kResult], inner_width_)};
  for (std::size_t p = 0; p < products_.size(); ++p) {
    inner.products.push_back(block(pass.saved[SavedIndex::kProducts + p], products_[p].columns));
  }
  const std::size_t first = SavedIndex::kProducts + products_.size();
  const std::size_t count = (pass.saved.size() - first) / static_cast<std::size_t>(own.count());
  for (std::size_t e = 0; e < count; ++e) {
    inner.extras.push_back(
        pass.saved[first + static_cast<std::size_t>(shard - own.begin) * count + e]);
  }
  return inner;
}

std::vector<TensorView> Sublayer::product_gradients(const LayerPass& pass,
                                                    std::int64_t shard) const {
  std::vector<TensorView> views;
  for (std::size_t p = 0; p < products_.size(); ++p) {
    views.push_back(shard_block(pass.gradients[GradientIndex::kProducts + p], whole_rows(pass),
                                products_[p].columns, pass.shards.shards(), pass.shards.own(),
                                shard));
  }
  return views;
}

std::vector<TensorView> Sublayer::accumulators(const LayerPass& pass) const {
  const std::int64_t rows = whole_rows(pass);
  std::vector<TensorView> views;
  for (const TensorView& accumulator : pass.workspace.subspan(WorkspaceIndex::kAccumulators)) {
    views.push_back(accumulator.flat_slice(0, rows * width()).reshaped(Shape{rows, width()}));
  }
  return views;
}

void Sublayer::make_normed(const LayerPass& pass) const {
  const TensorView& made = pass.saved[SavedIndex::kNormed];
  if (made.empty()) {
    return;
  }
  const std::int64_t rows = rows_of(pass);
  const grid::Range own =
      is_split_by_tokens() ? pass.shards.own_rows(whole_rows(pass)) : grid::Range{0, rows};
  const TensorView local =
      made.flat_slice(own.begin * width(), rows * width()).reshaped(Shape{rows, width()});
  const ConstTensorView x = pass.input.reshaped(Shape{rows, width()});
  if (norm_.kind() == NormKind::kNone) {
    ops::copy(pass.context, x, local);
  } else {
    norm_.forward(pass.context, pass.weights, x, local, statistics(pass));
  }
  if (is_split_by_tokens()) {
    pass.shards.all_gather_rows(made);
  }
}

void Sublayer::make_products(const LayerPass& pass) const {
  const ConstTensorView x = normed(pass);
  for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
    const auto local = static_cast<std::size_t>(s - pass.shards.own().begin);
    const Inner inner = inner_of(pass, s);
    for (std::size_t p = 0; p < products_.size(); ++p) {
      const std::size_t weight = parameters_of(p);
      ops::matmul(
          pass.context, x, pass.weights[weight][local], inner.products[p],
          {.transpose_b = ops::Transpose::kYes, .bias = bias_of(pass.weights, weight, local)});
    }
    inner_forward(inner);
  }
}

void Sublayer::make_output(const LayerPass& pass) const {
  const std::size_t weight = output_parameters();
  const std::int64_t rows = rows_of(pass);
  const TensorView y = pass.output.reshaped(Shape{rows, width()});
  const ConstTensorView x = pass.input.reshaped(Shape{rows, width()});
  const bool adds = options_.residual == Residual::kYes;
  const TensorView bias = bias_of(pass.weights, weight, 0);
  const bool drops = options_.dropout > 0.0 && pass.mode == Mode::kTraining;
  if (pass.shards.shards() == 1 && !drops) {
    if (adds) {
      ops::copy(pass.context, x, y);
    }
    ops::matmul(pass.context, inner_of(pass, 0).result, pass.weights[weight][0], y,
                {.transpose_b = ops::Transpose::kYes,
                 .accumulate = adds ? ops::Accumulate::kAdd : ops::Accumulate::kOverwrite,
                 .bias = bias});
    return;
  }
  const std::vector<TensorView> sums = accumulators(pass);
  pass.shards.partial_sums(pass.context, sums, [&](std::int64_t s, const TensorView& into) {
    const auto local = static_cast<std::size_t>(s - pass.shards.own().begin);
    ops::matmul(pass.context, inner_of(pass, s).result, pass.weights[weight][local], into,
                {.transpose_b = ops::Transpose::kYes});
  });
  const TensorView& received = pass.workspace[WorkspaceIndex::kReceived];
  grid::Range own{0, rows};
  if (is_split_by_tokens()) {
    pass.shards.reduce_scatter(pass.context, sums, received);
    own = pass.shards.own_rows(whole_rows(pass));
  } else {
    pass.shards.all_reduce(pass.context, sums, received);
  }
  const TensorView sum =
      sums.front().flat_slice(own.begin * width(), rows * width()).reshaped(Shape{rows, width()});
  if (!drops) {
    ops::add_bias_residual(pass.context, sum, bias, adds ? x : ConstTensorView(), y);
    return;
  }
  ops::add_bias_residual(pass.context, sum, bias, {}, y);
  const std::int64_t first_row = pass.first_sample * rows_at(input(), 1) + own.begin;
  ops::dropout_forward(pass.context, y, options_.dropout, dropout_stream_, first_row, y,
                       pass.saved[SavedIndex::kMask]);
  if (adds) {
    ops::add_bias_residual(pass.context, y, {}, x, y);
  }
}

void Sublayer::forward(const LayerPass& pass) const {
  make_normed(pass);
  make_products(pass);
  make_output(pass);
}

void Sublayer::remake(const LayerPass& pass) const {
  make_normed(pass);
  if (pass.recompute == Recompute::kFull) {
    make_products(pass);
    return;
  }
  if (result_under_selective() == Keep::kRemade) {
    for (std::int64_t s = pass.shards.own().begin; s < pass.shards.own().end; ++s) {
      inner_forward(inner_of(pass, s));
    }
  }
}

ConstTensorView Sublayer::whole_gradient(const LayerPass& pass,
                                         const ConstTensorView& output_gradient) const {
  const TensorView& whole = pass.gradients[GradientIndex::kWhole];
  return whole.empty() ? output_gradient.reshaped(Shape{rows_of(pass), width()})
                       : ConstTensorView(whole);
}

void Sublayer::backward_input(const LayerPass& pass, const TensorView& output_gradient,
                              const TensorView& input_gradient) const {
  const std::int64_t rows = rows_of(pass);
  const TensorView dy = output_gradient.reshaped(Shape{rows, width()});
  const TensorView& whole = pass.gradients[GradientIndex::kWhole];
  if (!whole.empty()) {
    const std::int64_t first =
        is_split_by_tokens() ? pass.shards.own_rows(whole_rows(pass)).begin : 0;
    const TensorView own =
        whole.flat_slice(first * width(), rows * width()).reshaped(Shape{rows, width()});
    if (options_.dropout > 0.0) {
      ops::dropout_backward(pass.context, dy, pass.saved[SavedIndex::kMask], options_.dropout, own);
    } else {
      ops::copy(pass.context, dy, own);
    }
    if (is_split_by_tokens()) {
      pass.shards.all_gather_rows(whole);
    }
  }
  normed_gradient_of_products(pass, whole_gradient(pass, dy));
  const TensorView& d_normed = pass.gradients[GradientIndex::kNormed];
  if (input_gradient.empty()) {
    return;
  }
  const TensorView dx = input_gradient.reshaped(Shape{rows, width()});
  const bool adds = options_.residual == Residual::kYes;
  if (norm_.kind() == NormKind::kNone) {
    ops::add_bias_residual(pass.context, d_normed, {},
                           adds ? ConstTensorView(dy) : ConstTensorView(), dx);
    return;
  }
  if (adds) {
    ops::copy(pass.context, dy, dx);
  }
  norm_.backward_input(pass.context, pass.weights, pass.input.reshaped(Shape{rows, width()}),
                       statistics(pass), d_normed, dx,
                       adds ? ops::Accumulate::kAdd : ops::Accumulate::kOverwrite);
}

void Sublayer::normed_gradient_of_products(const LayerPass& pass, const ConstTensorView& dy) const {
  const grid::Range& own = pass.shards.own();
  for (std::int64_t s = own.begin; s < own.end; ++s) {
    const auto local = static_cast<std::size_t>(s - own.begin);
    const TensorView d_result =
        shard_block(pass.workspace[WorkspaceIndex::kResultGradient], whole_rows(pass), inner_width_,
                    pass.shards.shards(), own, s);
    ops::matmul(pass.context, dy, pass.weights[output_parameters()][local], d_result);
    inner_backward(inner_of(pass, s), d_result, product_gradients(pass, s));
  }
  const auto product = [&](std::int64_t s, std::size_t p, const TensorView& into,
                           ops::Accumulate accumulate) {
    const auto local = static_cast<std::size_t>(s - own.begin);
    ops::matmul(pass.context, product_gradients(pass, s)[p], pass.weights[parameters_of(p)][local],
                into, {.accumulate = accumulate});
  };
  const TensorView& d_normed = pass.gradients[GradientIndex::kNormed];
  if (pass.shards.shards() == 1 && products_.size() == 1) {
    product(0, 0, d_normed, ops::Accumulate::kOverwrite);
    return;
  }
  const std::vector<TensorView> sums = accumulators(pass);
  pass.shards.partial_sums(pass.context, sums, [&](std::int64_t s, const TensorView& into) {
    for (std::size_t p = 0; p < products_.size(); ++p) {
      product(s, p, into, p == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd);
    }
  });
  const TensorView& received = pass.workspace[WorkspaceIndex::kReceived];
  grid::Range rows{0, whole_rows(pass)};
  if (is_split_by_tokens()) {
    pass.shards.reduce_scatter(pass.context, sums, received);
    rows = pass.shards.own_rows(whole_rows(pass));
  } else {
    pass.shards.all_reduce(pass.context, sums, received);
  }
  ops::convert(pass.context, sums.front().flat_slice(rows.begin * width(), rows.count() * width()),
               d_normed);
}

void Sublayer::backward_weight(const LayerPass& pass, const TensorView& output_gradient,
                               std::span<const ParameterViews> weight_gradients,
                               ops::Accumulate accumulate) const {
  const ConstTensorView dy = whole_gradient(pass, output_gradient);
  const ConstTensorView x = normed(pass);
  const grid::Range& own = pass.shards.own();
  const std::size_t output_weight = output_parameters();
  const auto weight_gradient = [&](const ConstTensorView& upper, const ConstTensorView& lower,
                                   const TensorView& gradient) {
    ops::matmul(pass.context, upper, lower, gradient,
                {.transpose_a = ops::Transpose::kYes, .accumulate = accumulate});
  };
  for (std::int64_t s = own.begin; s < own.end; ++s) {
    const auto local = static_cast<std::size_t>(s - own.begin);
    weight_gradient(dy, inner_of(pass, s).result, weight_gradients[output_weight][local]);
    const std::vector<TensorView> upper = product_gradients(pass, s);
    for (std::size_t p = 0; p < products_.size(); ++p) {
      const std::size_t weight = parameters_of(p);
      weight_gradient(upper[p], x, weight_gradients[weight][local]);
      if (options_.bias == Bias::kYes) {
        ops::column_sum(pass.context, upper[p], weight_gradients[weight + 1][local], accumulate);
      }
    }
  }
  if (options_.bias == Bias::kYes) {
    ops::column_sum(pass.context, dy, weight_gradients[output_weight + 1][0], accumulate);
  }
  if (norm_.kind() != NormKind::kNone) {
    norm_.backward_weight(
        pass, input().placement, pass.input.reshaped(Shape{rows_of(pass), width()}),
        statistics(pass), pass.gradients[GradientIndex::kNormed],
        pass.workspace.subspan(WorkspaceIndex::kNorm, 2), weight_gradients, accumulate);
  }
}

}  // namespace strata::nn
