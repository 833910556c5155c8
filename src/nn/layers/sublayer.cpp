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
  options.epsilon = take_epsilon(line);
  options.bias = line.take_enum("bias", Switch::kOn);
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
                   std::vector<InnerProduct> products, std::string output_name,
                   std::int64_t inner_width, std::int64_t inner_unit, const LayerTraits& traits)
    : Layer(site.name, site.input, site.input, traits),
      options_(options),
      norm_(options.norm, site.input.shape.back(), options.epsilon, options.bias),
      products_(std::move(products)),
      output_name_(std::move(output_name)),
      inner_width_(inner_width),
      inner_unit_(inner_unit),
      dropout_stream_(site.seed, RandomPurpose::kDropout, subject_of(site.name)) {
  const std::vector<std::string> adapted = split_words(options_.adapters.products, ",");
  for (std::size_t p = 0; p <= products_.size() && options_.adapters.rank > 0; ++p) {
    if (adapted.empty() || std::ranges::find(adapted, product_name(p)) != adapted.end()) {
      adapted_.push_back(p);
    }
  }
}

std::string Sublayer::adapter_text() const {
  return adapted_.empty() ? "" : fmt::format(" lora={}", options_.adapters.rank);
}

std::vector<ParameterSpec> Sublayer::parameters() const {
  std::vector<ParameterSpec> specs = norm_.parameters(parameter_name(name(), "norm"));
  const auto add = [&](const std::string& part, const ParameterSpec& weight) {
    const std::string product = parameter_name(name(), part);
    specs.push_back(weight);
    specs.back().name = parameter_name(product, "weight");
    specs.back().initializer = Initializer::kNormal;
    specs.back().fan_in = weight.shape[1];
    specs.back().fan_out = weight.shape[0];
    if (options_.bias == Switch::kOn) {
      specs.push_back({.name = parameter_name(product, "bias"),
                       .shape = {weight.shape[0]},
                       .initializer = Initializer::kZeros,
                       // After a sum over shards the bias is not split.
                       .split = weight.split == 0 ? 0 : kNotSplit,
                       .unit = weight.split == 0 ? weight.unit : 1});
    }
  };
  for (const InnerProduct& product : products_) {
    add(product.name, {.shape = {product.columns, width()},
                       .deviation = options_.deviation,
                       .split = 0,
                       .unit = product.unit});
  }
  add(output_name_, {.shape = {width(), inner_width_},
                     .deviation = options_.output_deviation,
                     .split = 1,
                     .unit = inner_unit_});
  for (const std::size_t p : adapted_) {
    const bool is_output = p == products_.size();
    const std::string product = parameter_name(name(), product_name(p));
    const std::int64_t inputs = is_output ? inner_width_ : width();
    const std::int64_t outputs = is_output ? width() : products_[p].columns;
    specs.push_back({.name = parameter_name(product, kAdapterA),
                     .shape = {options_.adapters.rank, inputs},
                     .initializer = Initializer::kFanIn,
                     .fan_in = inputs,
                     .fan_out = options_.adapters.rank,
                     .split = is_output ? 1 : kNotSplit,
                     .unit = is_output ? inner_unit_ : 1});
    specs.push_back({.name = parameter_name(product, kAdapterB),
                     .shape = {outputs, options_.adapters.rank},
                     .initializer = Initializer::kZeros,
                     .split = is_output ? kNotSplit : 0,
                     .unit = is_output ? 1 : products_[p].unit});
  }
  return specs;
}

const std::string& Sublayer::product_name(std::size_t product) const {
  return product == products_.size() ? output_name_ : products_[product].name;
}

std::optional<Sublayer::Adapter> Sublayer::adapter_of(std::size_t product) const {
  const auto found = std::ranges::find(adapted_, product);
  if (found == adapted_.end()) {
    return std::nullopt;
  }
  const auto position = static_cast<std::size_t>(found - adapted_.begin());
  const std::size_t a = parameters_of(products_.size() + 1) + 2 * position;
  return Adapter{
      .a = a,
      .b = a + 1,
      .first_element = static_cast<std::int64_t>(position) * options_.adapters.rank * width()};
}

std::size_t Sublayer::norm_parameters() const {
  return norm_.parameters("").size();
}

std::size_t Sublayer::parameters_of(std::size_t product) const {
  return norm_parameters() + product * (options_.bias == Switch::kOn ? 2 : 1);
}

std::size_t Sublayer::output_parameters() const {
  return parameters_of(products_.size());
}

TensorView Sublayer::bias_of(std::span<const ParameterViews> views, std::size_t weight,
                             std::size_t local) const {
  return options_.bias == Switch::kOn ? views[weight + 1][local] : TensorView();
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
  const Keep result = pass.recompute == Recompute::kSelective ? result_under_selective()
                                                              : keep_unless(Recompute::kFull);
  const auto [mean, rstd] = norm_.statistics(rows, pass.dtype);
  const bool copies = norm_.kind() != NormKind::kNone || is_split_by_tokens();
  const TensorSpec normed{{copies ? whole : 0, width()}, pass.dtype};
  // The mask is kept: it takes one byte an element and is slow to recompute.
  const TensorSpec mask{{options_.dropout > 0.0 ? rows : 0, width()}, DType::kUint8};
  std::vector<SavedSpec> specs =
      slot_list<Saved, SavedSpec>({{Saved::kMean, {mean, keep_unless(Recompute::kFull)}},
                                   {Saved::kRstd, {rstd, keep_unless(Recompute::kFull)}},
                                   {Saved::kNormed, {normed, keep_unless(Recompute::kSelective)}},
                                   {Saved::kMask, {mask, Keep::kKept}},
                                   {Saved::kResult, {split(inner_width_, inner_unit_), result}}});
  for (const InnerProduct& product : products_) {
    specs.push_back({split(product.columns, product.unit), keep_unless(Recompute::kFull)});
  }
  for (std::int64_t s = pass.shards.own.begin; s < pass.shards.own.end; ++s) {
    for (const TensorSpec& extra : extras(pass, s)) {
      specs.push_back({extra, keep_unless(Recompute::kFull)});
    }
  }
  return specs;
}

std::vector<TensorSpec> Sublayer::gradients(const PassShape& pass) const {
  const bool copies = is_split_by_tokens() || options_.dropout > 0.0;
  std::vector<TensorSpec> specs = slot_list<Gradient, TensorSpec>(
      {{Gradient::kWhole, {{copies ? whole_rows(pass) : 0, width()}, pass.dtype}},
       {Gradient::kNormed, {{local_rows(input(), pass), width()}, pass.dtype}}});
  for (const InnerProduct& product : products_) {
    const Port port{
        {whole_rows(pass) / pass.microbatch, product.columns}, Placement::kFeatures, product.unit};
    specs.push_back({local_shape(port, pass), pass.dtype});
  }
  return specs;
}

bool Sublayer::sums_shards(const PassShape& pass) const {
  return pass.shards.count > 1 || products_.size() > 1 || options_.dropout > 0.0;
}

std::vector<TensorSpec> Sublayer::workspace(const PassShape& pass) const {
  const auto [all_shards, own_shards] = norm_.workspace(pass);
  const ShardParts<TensorSpec> parts = shard_parts(pass, adapter_elements());
  const std::int64_t whole = whole_rows(pass);
  const Port result{{whole / pass.microbatch, inner_width_}, Placement::kFeatures, inner_unit_};
  // A product that applies GELU's gradient writes the gradient of the product before it directly.
  const Shape result_gradient = applies_gelu() ? Shape{0} : local_shape(result, pass);
  std::vector<TensorSpec> specs = slot_list<Workspace, TensorSpec>(
      {{Workspace::kNormAllShards, all_shards},
       {Workspace::kNormOwnShards, own_shards},
       {Workspace::kResultGradient, {result_gradient, pass.dtype}},
       {Workspace::kLow, {{adapted_.empty() ? 0 : whole, options_.adapters.rank}, pass.dtype}},
       {Workspace::kAdapterAllShards, parts.all_shards},
       {Workspace::kAdapterOwnShards, parts.own_shards}});
  const std::vector<TensorSpec> sum =
      ShardSum::workspace(pass, sums_shards(pass) ? whole : 0, width());
  specs.insert(specs.end(), sum.begin(), sum.end());
  return specs;
}

LayerCost Sublayer::cost() const {
  const double rows = static_cast<double>(rows_at(input(), 1));
  std::int64_t columns = inner_width_;
  for (const InnerProduct& product : products_) {
    columns += product.columns;
  }
  double products = 2.0 * static_cast<double>(width()) * static_cast<double>(columns);
  for (const std::size_t p : adapted_) {
    products += 2.0 * static_cast<double>(options_.adapters.rank) *
                static_cast<double>(width() +
                                    (p == products_.size() ? inner_width_ : products_[p].columns));
  }
  LayerCost cost;
  cost.forward_flops = rows * (products + inner_flops());
  // The inner part's backward pass recomputes its forward pass, then computes two gradients.
  cost.backward_flops = rows * (2.0 * products + 2.5 * inner_flops());
  cost.weight_flops = rows * products;
  cost.elements_moved =
      rows * (10.0 * static_cast<double>(width()) + 4.0 * static_cast<double>(columns));
  return cost;
}

}  // namespace strata::nn
