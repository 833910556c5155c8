#include "strata/nn/model.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>

#include <fmt/format.h>

#include "strata/core/text.hpp"
#include "strata/nn/adapters.hpp"

#include "layers/layer_kinds.hpp"
#include "model/layer_reader.hpp"

namespace strata::nn {
namespace {

bool is_trained(const ParameterSpec& spec) {
  return spec.ownership == Ownership::kOwned && spec.rule == ParameterRule::kTrained;
}

bool counts(const ParameterSpec& spec) {
  return spec.ownership == Ownership::kOwned && spec.rule != ParameterRule::kAverage;
}

std::vector<std::string> names_of(std::span<const ParameterSpec> specs) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : specs) {
    if (counts(spec)) {
      names.push_back(spec.name);
    }
  }
  return names;
}

/// The parameters of one layer.
std::span<const ParameterSpec> specs_of(const std::vector<ParameterSpec>& all, std::int64_t layer) {
  const auto first = std::ranges::lower_bound(all, layer, {}, &ParameterSpec::layer);
  const auto last = std::ranges::upper_bound(all, layer, {}, &ParameterSpec::layer);
  return {first, last};
}

/// Elements of the parameters that `is_counted` chooses.
template <typename Function>
std::int64_t elements_of(std::span<const ParameterSpec> specs, const Function& is_counted) {
  return std::accumulate(specs.begin(), specs.end(), std::int64_t{0},
                         [&](std::int64_t sum, const ParameterSpec& spec) {
                           return is_counted(spec) ? sum + spec.shape.count() : sum;
                         });
}

}  // namespace

Model::Model(const ModelOptions& options) : options_(options) {
  if (options.layers.empty()) {
    fail(ExitCode::kUsage,
         "the model has no layers; give [model] at least one line such as \"layer = dense 10\"");
  }
  layers_ =
      read_layers(options.layers,
                  {.input = {channels_last(options.input_shape)},
                   .input_kind = options.input_kind,
                   .seed = options.seed,
                   .shards = options.shards,
                   .token_rows = options.token_rows,
                   .microbatches = options.step_microbatches,
                   .lanes = options.lanes,
                   .sync_batch_norm = options.sync_batch_norm,
                   .vocabulary = options.input_kind == InputKind::kTokenIds ? options.outputs : 0});
  for (std::int64_t i = 0; i < layer_count(); ++i) {
    for (ParameterSpec& spec : layer(i).parameters()) {
      parameters_.push_back(std::move(spec));
      parameters_.back().layer = i;
    }
    LayerSources& sources = layers_[static_cast<std::size_t>(i)].sources;
    sources.input = root_of(sources.input);
    if (sources.added) {
      sources.added = root_of(*sources.added);
    }
  }
  check_output();
  check_parameter_names();
}

std::int64_t Model::root_of(std::int64_t tensor) const {
  while (tensor != kModelInput && layer(tensor).is_view()) {
    tensor = sources(tensor).input;
  }
  return tensor;
}

std::vector<std::int64_t> Model::boundary_tensors(std::int64_t layer) const {
  std::set<std::int64_t> tensors;
  const auto reads = [&](std::int64_t tensor) {
    if (tensor < layer) {
      tensors.insert(tensor);
    }
  };
  for (std::int64_t reader = layer; reader < layer_count(); ++reader) {
    reads(sources(reader).input);
    if (sources(reader).added) {
      reads(*sources(reader).added);
    }
  }
  reads(root_of(layer_count() - 1));
  return {tensors.begin(), tensors.end()};
}

void Model::check_output() const {
  for (std::int64_t i = 0; i + 1 < layer_count(); ++i) {
    if (layer(i).output().is_logits) {
      fail(ExitCode::kUsage,
           "layer {} of {}, \"{}\", makes logits, but is not the last; remove the layers behind it",
           i + 1, layer_count(), options_.layers[static_cast<std::size_t>(i)]);
    }
  }
  const Port& port = output();
  const bool tokens = options_.input_kind == InputKind::kTokenIds;
  if (port.placement != Placement::kReplicated &&
      options_.loss.kind == LossKind::kMeanSquaredError) {
    fail(ExitCode::kUsage,
         "the last layer \"{}\" leaves its outputs split, but {} needs them whole; leave "
         "parallel= out, or put a dense layer with parallel=row behind it",
         options_.layers.back(), name_of(options_.loss.kind));
  }
  if (tokens) {
    if (port.shape.rank() != 2 || port.placement == Placement::kTokens ||
        port.shape.back() < options_.outputs) {
      fail(ExitCode::kUsage,
           "the last layer \"{}\" gives {} for a sample, but a language model needs one logit for "
           "each of the data set's {} ids at every token; end the model with \"layer = head\"",
           options_.layers.back(), shape_text(port), options_.outputs);
    }
    return;
  }
  if (port.shape != Shape{options_.outputs}) {
    fail(ExitCode::kUsage,
         "the last layer \"{}\" gives {} for a sample, but {} with this data set needs {}; end the "
         "model with \"layer = dense {}\"{}",
         options_.layers.back(), shape_text(port), name_of(options_.loss.kind), options_.outputs,
         options_.outputs,
         port.shape.rank() > 1 ? ", and put \"layer = flatten\" before the first dense layer" : "");
  }
}

void Model::check_parameter_names() const {
  std::set<std::string> names;
  for (const ParameterSpec& spec : parameters_) {
    if (spec.ownership == Ownership::kOwned && !names.insert(spec.name).second) {
      fail(ExitCode::kUsage,
           "two parameters of the model would be called \"{}\"; give one of its layers another "
           "name with name=",
           spec.name);
    }
  }
}

void Model::freeze(const NamePatterns& names) {
  constexpr const char* kSetting = "optimizer.frozen";
  const std::vector<std::string> all = names_of(parameters_);
  names.require_matches(kSetting, all);
  for (ParameterSpec& spec : parameters_) {
    if (spec.rule == ParameterRule::kTrained && names.matches(spec.name)) {
      spec.rule = ParameterRule::kFrozen;
    }
  }
  if (trainable_count() == 0) {
    fail(ExitCode::kUsage,
         "{} = \"{}\" freezes all {} parameters of the model, so there is nothing to train; leave "
         "some out",
         kSetting, names.text(), all.size());
  }
}

bool Model::has_adapters() const {
  return std::ranges::any_of(parameters_, is_adapter, &ParameterSpec::name);
}

bool Model::trains_only_adapters() const {
  return has_adapters() && std::ranges::all_of(parameters_, [](const ParameterSpec& spec) {
           return spec.rule == ParameterRule::kFrozen || is_adapter(spec.name);
         });
}

void Model::train_adapters_and(const NamePatterns& names) {
  names.require_matches("lora.train", names_of(parameters_));
  for (ParameterSpec& spec : parameters_) {
    if (spec.rule == ParameterRule::kTrained && !is_adapter(spec.name) &&
        !names.matches(spec.name)) {
      spec.rule = ParameterRule::kFrozen;
    }
  }
}

bool Model::is_frozen(std::int64_t layer) const {
  const std::span<const ParameterSpec> specs = specs_of(parameters_, layer);
  return !specs.empty() && std::ranges::all_of(specs, [](const ParameterSpec& spec) {
    return spec.rule == ParameterRule::kFrozen;
  });
}

std::int64_t Model::first_changing_layer() const {
  const auto first = std::ranges::find_if(
      parameters_, [](const ParameterSpec& spec) { return spec.rule != ParameterRule::kFrozen; });
  return first == parameters_.begin() || first == parameters_.end() ? 0 : first->layer;
}

std::int64_t Model::parameter_count() const {
  return elements_of(parameters_, counts);
}

std::int64_t Model::trainable_count() const {
  return elements_of(parameters_, is_trained);
}

bool Model::joins_lanes() const {
  return any_layer(all_layers(), [](const Layer& layer) { return layer.joined() != nullptr; });
}

bool Model::reads_document_starts(const grid::Range& layers) const {
  return any_layer(layers, [](const Layer& layer) { return layer.reads_document_starts(); });
}

bool Model::reads_positions(const grid::Range& layers) const {
  return any_layer(layers, [](const Layer& layer) { return layer.reads_positions(); });
}

bool has_batch_norm(const Model& model) {
  return std::any_of(
      model.parameters().begin(), model.parameters().end(),
      [](const ParameterSpec& spec) { return spec.rule == ParameterRule::kAverage; });
}

namespace {

/// The index of the layer with this name, or of the first in a block of this name; else
/// layer_count().
std::int64_t layer_named(const Model& model, const std::string& name) {
  std::int64_t number = 0;
  const auto is_meant = [&](const std::string& other) {
    return other == name || other.rfind(name + ".", 0) == 0;
  };
  while (number < model.layer_count() && !is_meant(model.layer(number).name())) {
    ++number;
  }
  return number;
}

}  // namespace

grid::StageSplit split_model(const Model& model, std::span<const double> costs, std::int64_t parts,
                             const std::string& how) {
  if (parts > model.layer_count()) {
    fail(ExitCode::kUsage,
         "parallel.pipeline is {}, but the model has {} layers; a stage holds at least one, so use "
         "at most {} stages",
         parts, model.layer_count(), model.layer_count());
  }
  if (how == "auto") {
    return grid::balanced_split(costs, parts);
  }
  std::vector<std::int64_t> first_layers;
  for (const std::string& word : split_words(how, ", ")) {
    std::int64_t number = 0;
    if (!parse_int64(word, number)) {
      number = layer_named(model, word);
    }
    if (number < 0 || number >= model.layer_count()) {
      fail(ExitCode::kUsage,
           "parallel.split names the layer \"{}\"; give a name from the model table or a number "
           "below {}",
           word, model.layer_count());
    }
    first_layers.push_back(number);
  }
  const bool ascends = std::is_sorted(first_layers.begin(), first_layers.end(),
                                      std::less_equal<>());  // refuses equal neighbours too
  if (static_cast<std::int64_t>(first_layers.size()) != parts || first_layers.front() != 0 ||
      (!ascends && parts > 1)) {
    fail(ExitCode::kUsage,
         "parallel.split = \"{}\" must list the first layer of each of the {} stages or chunks, "
         "ascending and beginning with layer 0, or be \"auto\"",
         how, parts);
  }
  return grid::explicit_split(costs, first_layers);
}

std::string model_table(const Model& model, const grid::StageSplit& split,
                        std::span<const std::int64_t> stages) {
  std::vector<std::vector<std::string>> rows{
      {"#", "layer", "name", "output", "parameters", "stage"}};
  const bool has_frozen = model.trainable_count() != model.parameter_count();
  if (has_frozen) {
    rows.front().insert(rows.front().end() - 1, "trainable");
  }
  const bool has_chunks =
      !stages.empty() && *std::ranges::max_element(stages) + 1 < std::ssize(stages);
  std::size_t part = 0;
  for (std::int64_t i = 0; i < model.layer_count(); ++i) {
    while (i >= split.stages[part].end) {
      ++part;
    }
    const Layer& layer = model.layer(i);
    const std::span<const ParameterSpec> specs = specs_of(model.parameters(), i);
    rows.push_back(
        {std::to_string(i), layer.text(), layer.name(), shape_text(layer.output()),
         count_text(elements_of(specs, counts)),
         std::to_string(stages.empty() ? static_cast<std::int64_t>(part) : stages[part])});
    if (has_frozen) {
      rows.back().insert(rows.back().end() - 1, count_text(elements_of(specs, is_trained)));
    }
  }
  return table_text(rows) +
         fmt::format(
             "{} parameters{}; input {}; {} {}{}, the slowest at {:.2f} x the mean cost",
             count_text(model.parameter_count()),
             has_frozen ? fmt::format(", {} of them trainable", count_text(model.trainable_count()))
                        : "",
             model.input_shape().text(), split.stages.size(), has_chunks ? "chunk" : "stage",
             split.stages.size() == 1 ? "" : "s", split.imbalance);
}

}  // namespace strata::nn
