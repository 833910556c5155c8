#include "layers/sublayer.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/text.hpp"

namespace strata::nn {

SublayerOptions take_sublayer_options(LayerLine& line, const LayerSite& site,
                                      std::initializer_list<std::string_view> products) {
  SublayerOptions options;
  options.norm = line.take_enum("norm", NormKind::kLayerNorm);
  options.post_norm = line.take_enum("post_norm", NormKind::kNone);
  options.bias = line.take_enum("bias", Switch::kOn);
  options.norms = {.epsilon = take_epsilon(line), .bias = options.bias};
  options.norms.unit_offset = take_unit_offset(
      line, options.norm == NormKind::kRmsNorm || options.post_norm == NormKind::kRmsNorm);
  options.residual = line.take_enum("residual", Switch::kOn);
  options.dropout = line.take_option_probability("dropout", 0.0);
  options.deviation = line.take_option_number("deviation", options.deviation);
  options.output_deviation = line.take_option_number("output_deviation", options.deviation);
  AdapterOptions& adapters = options.adapters;
  adapters.rank = line.take_option_count("lora", 0, 0);
  adapters.alpha = line.take_option_number("lora_alpha", static_cast<double>(adapters.rank));
  adapters.products = line.take_option("lora_products", "");
  if (const std::int64_t width = site.input.shape.back(); adapters.rank > width) {
    line.refuse(fmt::format("the rank of its adapters is {}, above the width {}; lower lora.rank",
                            adapters.rank, width));
  }
  if (adapters.rank > 0 && !(adapters.alpha > 0.0)) {
    line.refuse(fmt::format("lora_alpha is {}, it must be above 0", adapters.alpha));
  }
  for (const std::string& product : split_words(adapters.products, ",")) {
    if (std::ranges::find(products, product) == products.end()) {
      line.refuse(fmt::format("lora_products names \"{}\"; its products are {}", product,
                              fmt::join(products, ", ")));
    }
  }
  return options;
}

Sublayer::Sublayer(const LayerSite& site, const SublayerOptions& options,
                   const std::vector<InnerProduct>& products, const std::string& output_name,
                   std::int64_t inner_width, std::int64_t inner_unit, const LayerTraits& traits,
                   std::vector<ParameterSpec> own, const SharedHeads& shared_heads)
    : Layer(site.name, site.input, site.input, traits),
      options_(options),
      norm_(options.norm, site.input.shape.back(), options.norms),
      post_norm_(NormKind::kNone, 1, {}),
      inner_unit_(inner_unit),
      own_(std::move(own)),
      shared_rows_(shared_heads, site.shards),
      dropout_stream_(site.seed, RandomPurpose::kDropout, subject_of(site.name)) {
  auto next = static_cast<std::size_t>(norm_.parameter_count());
  const auto add = [&](ProjectionOptions projection) {
    projections_.emplace_back(std::move(projection), next);
    next += projections_.back().has_bias() ? 2 : 1;
  };
  for (const InnerProduct& product : products) {
    add({.name = product.name,
         .inputs = width(),
         .outputs = product.outputs,
         .unit = product.unit,
         .bias = product.bias.value_or(options.bias),
         .deviation = options.deviation});
  }
  add({.name = output_name,
       .inputs = inner_width,
       .outputs = width(),
       .split = ProjectionSplit::kInputs,
       .unit = inner_unit,
       .bias = options.bias,
       .deviation = options.output_deviation});
  own_first_ = next;
  next += own_.size();
  post_norm_ = NormPart(options.post_norm, width(), options.norms, next);
  next += static_cast<std::size_t>(post_norm_.parameter_count());
  const std::vector<std::string> adapted = split_words(options_.adapters.products, ",");
  for (Projection& projection : projections_) {
    if (options_.adapters.rank > 0 &&
        (adapted.empty() || std::ranges::find(adapted, projection.name()) != adapted.end())) {
      projection.adapt(options_.adapters, next, adapter_elements_);
      next += 2;
      adapter_elements_ += projection.shared_elements();
    }
  }
  const std::vector<ParameterSpec> specs = computed_parameters();
  for (const Projection& product : this->products()) {
    for (const std::size_t parameter : product.parameters_of_outputs()) {
      shared_rows_.add(parameter, specs[parameter], shared_heads.product_rows, shared_heads.unit);
    }
  }
  for (std::size_t i = 0; i < shared_heads.own_rows.size(); ++i) {
    shared_rows_.add(own_first_ + i, specs[own_first_ + i], shared_heads.own_rows[i], 1);
  }
}

std::string Sublayer::adapter_text() const {
  return is_adapted() ? fmt::format(" lora={}", options_.adapters.rank) : "";
}

std::vector<ParameterSpec> Sublayer::parameters() const {
  std::vector<ParameterSpec> specs = computed_parameters();
  shared_rows_.to_stored(specs);
  return specs;
}

std::vector<ParameterSpec> Sublayer::computed_parameters() const {
  std::vector<ParameterSpec> specs = norm_.parameters(parameter_name(name(), "norm"));
  const auto append = [&](const std::vector<ParameterSpec>& more) {
    specs.insert(specs.end(), more.begin(), more.end());
  };
  for (const Projection& projection : projections_) {
    append(projection.parameters(name()));
  }
  append(own_);
  append(post_norm_.parameters(parameter_name(name(), "post_norm")));
  for (const Projection& projection : projections_) {
    append(projection.adapter_parameters(name()));
  }
  return specs;
}

std::int64_t Sublayer::own_elements() const {
  std::int64_t elements = 0;
  for (const ParameterSpec& parameter : own_) {
    elements += parameter.shape.count();
  }
  return elements;
}

std::vector<TensorSpec> Sublayer::extras(const PassShape& /*pass*/, std::int64_t /*shard*/) const {
  return {};
}

std::int64_t Sublayer::whole_rows(const PassShape& pass) const {
  return rows_at(input(), pass.microbatch);
}

std::vector<SavedSpec> Sublayer::saved(const PassShape& pass) const {
  const std::int64_t rows = local_rows(input(), pass);
  const std::int64_t whole = whole_rows(pass);
  const auto keep_unless = [&](Recompute least) {
    return pass.recompute >= least ? Keep::kRecomputed : Keep::kKept;
  };
  const auto split = [&](std::int64_t columns, std::int64_t unit) {
    const Port port{{whole / pass.microbatch, columns}, Placement::kFeatures, unit};
    return TensorSpec{local_shape(port, pass), pass.dtype};
  };
  const std::int64_t projected = has_post_norm() ? rows : 0;
  const auto [post_mean, post_rstd] = post_norm_.statistics(rows, pass.dtype);
  const Keep result = pass.recompute == Recompute::kSelective ? result_under_selective()
                                                              : keep_unless(Recompute::kFull);
  const auto [mean, rstd] = norm_.statistics(rows, pass.dtype);
  const bool copies = norm_.kind() != NormKind::kNone || is_split_by_tokens();
  const std::int64_t summed = pass.shards.count > 1 ? whole : 0;
  const TensorSpec sums{{summed, row_sums()}, compute_dtype(pass.dtype)};
  const TensorSpec normed{{copies ? whole : 0, width()}, pass.dtype};
  // The mask is kept: it takes one byte an element and is slow to recompute.
  const TensorSpec mask{{options_.dropout > 0.0 ? rows : 0, width()}, DType::kUint8};
  std::vector<SavedSpec> specs =
      slot_list<Saved, SavedSpec>({{Saved::kMean, {mean, keep_unless(Recompute::kFull)}},
                                   {Saved::kRstd, {rstd, keep_unless(Recompute::kFull)}},
                                   {Saved::kNormed, {normed, keep_unless(Recompute::kSelective)}},
                                   {Saved::kMask, {mask, Keep::kKept}},
                                   {Saved::kPostMean, {post_mean, Keep::kKept}},
                                   {Saved::kPostRstd, {post_rstd, Keep::kKept}},
                                   // To recompute it would take another sum over shards.
                                   {Saved::kProjected, {{{projected, width()}, pass.dtype}}},
                                   {Saved::kSums, {sums, keep_unless(Recompute::kFull)}},
                                   {Saved::kResult, {split(inner_width(), inner_unit_), result}}});
  for (const Projection& product : products()) {
    specs.push_back({split(product.outputs(), product.unit()), keep_unless(Recompute::kFull)});
  }
  for (std::int64_t s = pass.shards.own.begin; s < pass.shards.own.end; ++s) {
    for (const TensorSpec& extra : extras(pass, s)) {
      specs.push_back({extra, keep_unless(Recompute::kFull)});
    }
  }
  return specs;
}

std::vector<TensorSpec> Sublayer::gradients(const PassShape& pass) const {
  const bool drops = options_.dropout > 0.0;
  const std::int64_t rows = local_rows(input(), pass);
  const bool copies = is_split_by_tokens() || (drops && !has_post_norm());
  std::vector<TensorSpec> specs = slot_list<Gradient, TensorSpec>(
      {{Gradient::kDropped, {{has_post_norm() && drops ? rows : 0, width()}, pass.dtype}},
       {Gradient::kProjected, {{has_post_norm() ? rows : 0, width()}, pass.dtype}},
       {Gradient::kWhole, {{copies ? whole_rows(pass) : 0, width()}, pass.dtype}},
       {Gradient::kNormed, {{rows, width()}, pass.dtype}},
       {Gradient::kOwn,
        {{(divides_own() ? 1 : pass.shards.own.count()) * own_elements()},
         compute_dtype(pass.dtype)}}});
  for (const Projection& product : products()) {
    const Port port{{whole_rows(pass) / pass.microbatch, product.outputs()},
                    Placement::kFeatures,
                    product.unit()};
    specs.push_back({local_shape(port, pass), pass.dtype});
  }
  return specs;
}

bool Sublayer::sums_shards(const PassShape& pass) const {
  return pass.shards.count > 1 || products().size() > 1 || options_.dropout > 0.0;
}

std::vector<TensorSpec> Sublayer::workspace(const PassShape& pass) const {
  const auto [all_shards, own_shards] = norm_.workspace(pass);
  const auto [post_all_shards, post_own_shards] = post_norm_.workspace(pass);
  const ShardParts<TensorSpec> parts = shard_parts(pass, adapter_elements_);
  const std::int64_t whole = whole_rows(pass);
  const ShardParts<TensorSpec> terms = shard_parts(pass, whole * row_sums());
  const Port result{{whole / pass.microbatch, inner_width()}, Placement::kFeatures, inner_unit_};
  // A product that applies GELU's gradient writes the gradient of the product before it directly.
  const Shape result_gradient = applies_gelu() ? Shape{0} : local_shape(result, pass);
  std::vector<TensorSpec> specs = slot_list<Workspace, TensorSpec>(
      {{Workspace::kNormAllShards, all_shards},
       {Workspace::kNormOwnShards, own_shards},
       {Workspace::kPostAllShards, post_all_shards},
       {Workspace::kPostOwnShards, post_own_shards},
       {Workspace::kResultGradient, {result_gradient, pass.dtype}},
       {Workspace::kLow, {{is_adapted() ? whole : 0, options_.adapters.rank}, pass.dtype}},
       {Workspace::kAdapterAllShards, parts.all_shards},
       {Workspace::kAdapterOwnShards, parts.own_shards},
       {Workspace::kOwnAllShards, shard_parts(pass, divides_own() ? 0 : own_elements()).all_shards},
       {Workspace::kTermsAllShards, terms.all_shards},
       {Workspace::kTermsOwnShards, terms.own_shards}});
  const std::vector<TensorSpec> shared = shared_rows_.workspace(pass);
  specs.insert(specs.end(), shared.begin(), shared.end());
  const std::vector<TensorSpec> sum =
      ShardSum::workspace(pass, sums_shards(pass) ? whole : 0, width());
  specs.insert(specs.end(), sum.begin(), sum.end());
  return specs;
}

}  // namespace strata::nn
