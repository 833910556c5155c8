#include <memory>
#include <optional>

#include "strata/core/error.hpp"
#include "strata/nn/convnet.hpp"

#include "resolve.hpp"

// The model that a config describes.
namespace strata::plan {

std::vector<std::string> layer_lines(const config::RunConfig& config, const io::DatasetInfo& data) {
  const nn::Preset preset = config.model.transformer.preset;
  if (!config.model.layers.empty() && preset != nn::Preset::kNone) {
    fail(ExitCode::kUsage,
         "model.preset is {} and there are {} model.layer lines; keep one of the two",
         name_of(preset), config.model.layers.size());
  }
  nn::TransformerOptions dimensions = config.model.transformer;
  dimensions.context = 0;
  dimensions.vocabulary = 0;
  dimensions.preset = nn::Preset::kNone;
  if (!nn::is_transformer(preset) && dimensions != nn::TransformerOptions{}) {
    fail(ExitCode::kUsage,
         "model.preset is {}, but sizes of a transformer are set (model.blocks, width, heads and "
         "so on), which only a transformer takes; set model.preset to gpt or llama, or leave them "
         "out",
         name_of(preset));
  }
  if (nn::is_convnet(preset)) {
    if (data.task != io::Task::kClassification || data.input_shape.rank() != 3) {
      fail(ExitCode::kUsage,
           "model.preset is {}, an image classifier, but {} has samples of {}; "
           "import images with \"strata data import --format=images\", cifar10 or idx",
           name_of(preset), data.path.string(), data.input_shape.text());
    }
    return nn::adapted_layers(nn::convnet_layers(preset, data.classes), config.lora.adapters);
  }
  return nn::adapted_layers(nn::is_transformer(preset)
                                ? nn::transformer_layers(nn::resolved(config.model.transformer))
                                : config.model.layers,
                            config.lora.adapters);
}

std::int64_t context_of(const config::RunConfig& config) {
  if (nn::is_transformer(config.model.transformer.preset)) {
    return nn::resolved(config.model.transformer).context;
  }
  if (config.model.transformer.context == 0) {
    fail(ExitCode::kUsage,
         "the data set holds tokens, but model.context is 0; set it to the tokens of a sample, "
         "such as 64");
  }
  return config.model.transformer.context;
}

namespace {

io::Dataset open_data(const config::RunConfig& config, const std::vector<io::MixtureSet>& sets,
                      const std::optional<io::MixtureRules>& rules) {
  io::Dataset data = sets.size() == 1 ? io::Dataset::open(sets.front().master)
                                      : io::Dataset::open_several(sets, rules);
  if (data.info().task == io::Task::kNextToken) {
    const bool dpo = config.train.objective == config::Objective::kDpo;
    if (data.info().pairs && !dpo) {
      fail(ExitCode::kUsage,
           "{} holds pairs of preferred and rejected answers; train on them with train.objective = "
           "dpo",
           data.info().path.string());
    }
    data.set_context(context_of(config), dpo ? io::Packing::kPairs : config.data.packing);
  }
  return data;
}

}  // namespace

io::Dataset open_train_data(const config::RunConfig& config) {
  return open_data(config, io::mixture_sets(config.data.train), config.data.mixture);
}

io::Dataset open_test_data(const config::RunConfig& config, const std::string& text) {
  const std::vector<io::MixtureSet> sets = io::mixture_sets(text);
  if (sets.front().weight) {
    fail(ExitCode::kUsage,
         "data.test = {} has weights, but test data are read once, one set after the other; leave "
         "them out",
         text);
  }
  return open_data(config, sets, std::nullopt);
}

io::DatasetInfo assumed_data(const config::RunConfig& config) {
  const nn::Preset preset = config.model.transformer.preset;
  if (nn::is_convnet(preset)) {
    const nn::PublishedImages images = nn::published_images(preset);
    return {.path = "(no data set)", .input_shape = images.shape, .classes = images.classes};
  }
  const bool named = preset != nn::Preset::kNone;
  const std::int64_t vocabulary = named ? nn::resolved(config.model.transformer).vocabulary
                                        : config.model.transformer.vocabulary;
  if (vocabulary == 0) {
    fail(ExitCode::kUsage,
         "data.train is empty; make a data set with \"strata data import\" and name its train.h5, "
         "or, to plan a language model without data, set model.vocabulary, or a preset");
  }
  const std::int64_t context = context_of(config);
  return {.path = "(no data set)",
          .task = io::Task::kNextToken,
          .samples = 0,
          .input_shape = {context},
          .input_dtype = DType::kInt64,
          .target_shape = {context},
          .classes = vocabulary};
}

nn::LossKind resolve_loss(const config::RunConfig& config, const io::DatasetInfo& data) {
  const bool classes = data.task != io::Task::kRegression;
  const nn::LossKind natural =
      classes ? nn::LossKind::kCrossEntropy : nn::LossKind::kMeanSquaredError;
  const std::optional<nn::LossKind> asked = config.model.loss;
  if (asked && asked != natural) {
    fail(ExitCode::kUsage,
         "model.loss is {}, but the data set {} has {} as targets, which needs {}", name_of(*asked),
         data.path.string(),
         data.task == io::Task::kNextToken ? "tokens"
         : classes                         ? "classes"
                                           : "values",
         name_of(natural));
  }
  return natural;
}

std::unique_ptr<nn::Model> make_model(const config::RunConfig& c, const io::DatasetInfo& data,
                                      const ModelGrid& grid) {
  const nn::TransformerOptions& named = c.model.transformer;
  if (nn::is_transformer(named.preset) && named.vocabulary != 0 &&
      named.vocabulary < data.classes) {
    fail(ExitCode::kUsage,
         "model.preset is {} with model.vocabulary = {}, but the data set has {} token ids; set "
         "model.vocabulary to at least {}",
         name_of(named.preset), named.vocabulary, data.classes, data.classes);
  }
  const nn::ModelOptions options{
      .layers = layer_lines(c, data),
      .loss = {.kind = resolve_loss(c, data),
               .terms = {.label_smoothing = c.train.label_smoothing, .z_loss = c.train.z_loss},
               .preference_beta =
                   c.train.objective == config::Objective::kDpo ? c.train.dpo_beta : 0.0,
               .per_sample = !data.mixture.empty()},
      .input_shape = data.input_shape,
      .outputs = data.task == io::Task::kRegression ? data.target_shape.count() : data.classes,
      .seed = c.run.seed,
      .step_microbatches = grid.step_microbatches,
      .lanes = grid.lanes,
      .sync_batch_norm = c.model.sync_batch_norm,
      .input_kind =
          data.task == io::Task::kNextToken ? nn::InputKind::kTokenIds : nn::InputKind::kNumbers,
      .shards = grid.shards,
      .token_rows = grid.token_rows};
  try {
    return std::make_unique<nn::Model>(options);
  } catch (const Error& error) {
    if (named.preset == nn::Preset::kNone) {
      throw;
    }
    if (nn::is_convnet(named.preset)) {
      fail(error.code(), "model.preset is {}, made for images of {}, and those of {} are {}; {}",
           name_of(named.preset), nn::published_images(named.preset).shape.text(),
           data.path.string(), data.input_shape.text(), error.what());
    }
    // The user did not write the line.
    fail(error.code(),
         "model.preset is {}, whose layers follow from model.width, model.heads, model.kv_heads "
         "and model.hidden; {}",
         name_of(named.preset), error.what());
  }
}

void apply_parameter_settings(const config::RunConfig& config, nn::Model& model) {
  std::vector<std::string> names;
  for (const nn::ParameterSpec& spec : model.parameters()) {
    if (spec.ownership == nn::Ownership::kOwned && spec.rule != nn::ParameterRule::kAverage) {
      names.push_back(spec.name);
    }
  }
  for (const optim::ParameterGroup& group : config.optimizer.options.groups) {
    group.names.require_matches("optimizer.groups", names);
  }
  if (model.has_adapters()) {
    model.train_adapters_and(nn::NamePatterns(config.lora.train));
  }
  if (!config.optimizer.frozen.empty()) {
    model.freeze(nn::NamePatterns(config.optimizer.frozen));
  }
}

}  // namespace strata::plan
