#include "strata/train/checkpointing.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/io/json.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/nn/layer_line.hpp"
#include "strata/ops/instruction_set.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"

namespace strata::train {
namespace {

/// The metadata key of the checksum of the data set's tokenizer.
constexpr const char* kTokenizer = "tokenizer_checksum";
/// The metadata key of the instruction set that the CPUs computed with.
constexpr const char* kInstructionSet = "instruction_set";

/// The metadata key of where imported weights come from.
constexpr const char* kImported = "imported";
/// The metadata key of the texts of files that were beside them.
constexpr const char* kTexts = "model_files";

/// The metadata key of parallel.sync.
constexpr const char* kSync = "sync";

/// The name of the setting in a checkpoint's identity.
constexpr const char* kFrozen = "optimizer.frozen";
constexpr const char* kTrained = "lora.train";

/// The metadata key of the record of the training data, which evaluation and generation use.
constexpr const char* kData = "data";

nlohmann::json json_of(const Shape& shape) {
  return std::vector<std::int64_t>(shape.extents().begin(), shape.extents().end());
}

nlohmann::json json_of(const io::DatasetInfo& info) {
  return {{"task", name_of(info.task)},
          {"samples", info.samples},
          {"input_shape", json_of(info.input_shape)},
          {"input_dtype", name_of(info.input_dtype)},
          {"target_shape", json_of(info.target_shape)},
          {"target_dtype", name_of(info.target_dtype)},
          {"classes", info.classes},
          {"class_names", info.class_names},
          {"column_names", info.column_names},
          {"mean", info.mean},
          {"deviation", info.deviation},
          {"tokenizer", name_of(info.tokenizer)},
          {"checksum", hash_text(info.checksum)}};
}

template <typename Enum>
Enum enum_at(const nlohmann::json& json, const char* key) {
  const auto value = enum_from_name<Enum>(json.at(key).get<std::string>());
  if (!value) {
    fail(ExitCode::kCheckpoint, "its {} is {}, expected one of {}", key, json.at(key).dump(),
         joined_names<Enum>());
  }
  return *value;
}

std::int64_t integer_of(const nlohmann::json& value, const char* key, std::int64_t least) {
  const auto integer = io::integer_in(value);
  if (integer.value_or(least - 1) < least) {
    fail(ExitCode::kCheckpoint, "its {} is {}, a whole number from {} was expected", key,
         value.dump(), least);
  }
  return *integer;
}

std::int64_t integer_at(const nlohmann::json& json, const char* key, std::int64_t least = 0) {
  return integer_of(json.at(key), key, least);
}

Shape shape_at(const nlohmann::json& json, const char* key) {
  std::vector<std::int64_t> extents;
  for (const nlohmann::json& extent : json.at(key)) {
    extents.push_back(integer_of(extent, key, 0));
  }
  if (extents.size() > Shape::kMaxRank) {
    fail(ExitCode::kCheckpoint, "its {} has {} dimensions, at most {} were expected", key,
         extents.size(), Shape::kMaxRank);
  }
  return Shape(extents);
}

std::uint64_t hash_from(const nlohmann::json& text) {
  return std::stoull(text.get<std::string>(), nullptr, 16);
}

/// A line of a model in the form that is compared: single spaces between words, switches as "on"
/// and "off".
std::string comparable(const std::string& line) {
  std::vector<std::string> words = split_words(line);
  for (std::string& word : words) {
    const std::size_t value = word.find('=') + 1;
    if (value > 0) {
      word = word.substr(0, value) +
             std::string(switch_spelling(std::string_view(word).substr(value)));
    }
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::vector<std::string> model_lines(const plan::Plan& plan) {
  std::vector<std::string> lines = plan::layer_lines(plan.config, plan.train_data);
  std::ranges::transform(lines, lines.begin(), comparable);
  return lines;
}

/// The settings, beside the model, that determine a run's results; they are fixed when a checkpoint
/// continues it.
nlohmann::ordered_json identity_of(const plan::Plan& plan) {
  const config::RunConfig& c = plan.config;
  nlohmann::ordered_json identity{
      {"run.seed", c.run.seed},
      {"batch.global", c.batch.global},
      {"numerics.dtype", name_of(c.numerics.dtype)},
      {"numerics.mode", name_of(c.numerics.mode)},
      {"optimizer.kind", name_of(c.optimizer.options.kind)},
      {kFrozen, nn::NamePatterns(c.optimizer.frozen).text()},
      {kTrained, nn::NamePatterns(c.lora.train).text()},
      {"data.normalise", name_of(io::resolved(c.data.normalise, plan.train_data.input_dtype))}};
  // The first difference is reported, so the context precedes the number of samples, which depends
  // on it.
  if (plan.train_data.task == io::Task::kNextToken) {
    identity["model.context"] = plan.train_data.input_shape[0];
    identity["data.sampling"] = name_of(c.data.sampling);
  }
  if (io::is_image(plan.train_data.input_shape)) {
    identity["data.flip"] = name_of(c.data.augmentation.flip);
    identity["data.crop_padding"] = c.data.augmentation.crop_padding;
    identity["data.cutout"] = c.data.augmentation.cutout;
  }
  if (nn::has_batch_norm(*plan.model)) {
    identity["model.sync_batch_norm"] = name_of(c.model.sync_batch_norm);
  }
  identity["the number of training samples"] = plan.train_data.samples;
  identity["the checksum of data.train"] = hash_text(plan.train_data.checksum);
  return identity;
}

std::vector<io::TensorInfo> tensors_of(const plan::Plan& plan) {
  std::vector<io::TensorInfo> tensors;
  const DType dtype = compute_dtype(plan.config.numerics.dtype);
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    if (spec.ownership == nn::Ownership::kBorrowed) {
      continue;
    }
    const auto add = [&](const std::string& name) { tensors.push_back({name, spec.shape, dtype}); };
    add(plan::weight_name(spec));
    for (const std::string& name : plan::replication_of(plan).state_tensors(plan, spec)) {
      add(name);
    }
  }
  return tensors;
}

std::string text_of(const io::TensorInfo& tensor) {
  return fmt::format("{} ({} {})", tensor.name, tensor.shape.text(), name_of(tensor.dtype));
}

[[noreturn]] void refuse_model(const io::Checkpoint& checkpoint, const std::string& difference) {
  fail(ExitCode::kCheckpoint,
       "{} is a checkpoint of another model: {}; use the config that it was made with, or another "
       "run.dir",
       checkpoint.directory().string(), difference);
}

/// Compares the tensors whose names begin with `prefix`.
void require_same_tensors(const plan::Plan& plan, const io::Checkpoint& checkpoint,
                          std::string_view prefix) {
  std::set<std::string> expected;
  for (const io::TensorInfo& tensor : tensors_of(plan)) {
    expected.insert(tensor.name);
    if (!tensor.name.starts_with(prefix)) {
      continue;
    }
    const io::TensorInfo* const found = checkpoint.find(tensor.name);
    if (found == nullptr) {
      refuse_model(checkpoint, fmt::format("it has no {}", text_of(tensor)));
    }
    if (!(*found == tensor)) {
      refuse_model(checkpoint, fmt::format("it has {} where the config has {}", text_of(*found),
                                           text_of(tensor)));
    }
  }
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.name.starts_with(prefix) && !expected.contains(tensor.name)) {
      refuse_model(checkpoint, fmt::format("it has {}, which the config lacks", text_of(tensor)));
    }
  }
}

/// An entry of a checkpoint's metadata; empty where there is none.
template <typename T>
T metadata_entry(const io::Checkpoint& checkpoint, const char* key) {
  const nlohmann::json& metadata = checkpoint.metadata();
  try {
    return metadata.contains(key) ? metadata.at(key).get<T>() : T();
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::kCheckpoint, "{} has no valid '{}' in its metadata ({}); use another checkpoint",
         checkpoint.directory().string(), key, error.what());
  }
}

/// The first difference in layer properties that the tensors do not show, such as activations;
/// empty for none. Where adapters are initialized `anew`, they are none.
std::string different_layer(const plan::Plan& plan, const io::Checkpoint& checkpoint,
                            const nn::NamePatterns& anew = {}) {
  const std::vector<std::string> lines = model_lines(plan);
  const bool adapts =
      std::ranges::any_of(plan.model->parameters(), [&](const nn::ParameterSpec& spec) {
        return nn::is_adapter(spec.name) && anew.matches(spec.name);
      });
  const auto same = [&](const std::string& here, const std::string& there) {
    if (adapts) {
      return nn::without_adapters(here) == nn::without_adapters(there);
    }
    return is_imported(checkpoint) ? nn::line_of_weights(here) == nn::line_of_weights(there)
                                   : here == there;
  };
  const auto stored = metadata_entry<std::vector<std::string>>(checkpoint, "layers");
  for (std::size_t i = 0; i < std::max(lines.size(), stored.size()); ++i) {
    const std::string here = i < lines.size() ? lines[i] : "nothing";
    const std::string there = i < stored.size() ? comparable(stored[i]) : "nothing";
    if (!same(here, there)) {
      return fmt::format("its layer {} is \"{}\" where the config has \"{}\"", i, there, here);
    }
  }
  return "";
}

void require_same_layers(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  if (const std::string difference = different_layer(plan, checkpoint); !difference.empty()) {
    refuse_model(checkpoint, difference);
  }
}

/// Compares the tokenizers of a language model.
void require_same_tokenizer(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  if (plan.train_data.task != io::Task::kNextToken) {
    return;
  }
  const nlohmann::json stored = metadata_entry<nlohmann::json>(checkpoint, kTokenizer);
  if (is_imported(checkpoint) && stored == nlohmann::json(hash_text(0))) {
    return;  // no tokenizer was given; the user answers for the data set
  }
  if (stored != nlohmann::json(hash_text(plan.train_data.tokenizer_checksum))) {
    fail(ExitCode::kData,
         "{} learned from ids of another tokenizer than the one that {} was made with, so that "
         "they mean different text; use a data set made with that tokenizer, or another run.dir",
         checkpoint.directory().string(), plan.train_data.path.string());
  }
}

}  // namespace

std::filesystem::path checkpoint_root(const config::RunConfig& config) {
  return std::filesystem::path(config.run.dir) / "checkpoints";
}

std::filesystem::path unsaved_marker(const config::RunConfig& config) {
  return std::filesystem::path(config.run.dir) / "unsaved";
}

void require_space(const plan::Plan& plan, Log& log) {
  try {
    io::delete_leftovers(checkpoint_root(plan.config));
  } catch (const Error& failed) {
    log.warn("{}", failed.what());
  }
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(plan.config.run.dir, error);
  const std::int64_t bytes = checkpoint_bytes(plan);
  if (error) {
    return;
  }
  const auto free = static_cast<std::int64_t>(space.available);
  const std::string fact = fmt::format("a checkpoint of this run takes {} and {} has {} free",
                                       bytes_text(bytes), plan.config.run.dir, bytes_text(free));
  if (free < bytes) {
    fail(ExitCode::kCheckpoint, "{}; free some space or choose another run.dir", fact);
  }
  if (free < 2 * bytes && io::list_checkpoints(checkpoint_root(plan.config)).empty()) {
    log.warn(
        "{}: a save writes the new checkpoint before the old one is deleted, so the second "
        "save will fail; free some space",
        fact);
  }
}

bool is_imported(const io::Checkpoint& checkpoint) {
  return checkpoint.metadata().contains(kImported);
}

plan::VirtualGrid virtual_grid_of(const io::Checkpoint& checkpoint) {
  if (is_imported(checkpoint)) {
    return {};
  }
  try {
    const nlohmann::json& grid = checkpoint.metadata().at("virtual_grid");
    const nlohmann::json ranks = checkpoint.metadata().value("grid", nlohmann::json::object());
    const auto ranks_of = [&](const char* key) {
      return ranks.contains(key) ? integer_at(ranks, key) : 0;
    };
    return {.lanes = integer_at(grid, "lanes", 1),
            .shards = integer_at(grid, "shards", 1),
            .microbatch = integer_at(grid, "microbatch", 1),
            .loss_pieces = grid.contains("loss_pieces") ? integer_at(grid, "loss_pieces", 1) : 1,
            .parts = grid.contains(plan::kPartsKey) ? integer_at(grid, plan::kPartsKey, 1) : 0,
            .pipeline = ranks_of("pipeline"),
            .tensor = ranks_of("tensor")};
  } catch (const std::exception& error) {
    fail(ExitCode::kCheckpoint,
         "{} has no valid record of its virtual grid ({}); use another checkpoint",
         checkpoint.directory().string(), error.what());
  }
}

std::optional<io::DatasetInfo> data_of(const io::Checkpoint& checkpoint) {
  const nlohmann::json& metadata = checkpoint.metadata();
  if (!metadata.contains(kData)) {
    return std::nullopt;
  }
  try {
    const nlohmann::json& data = metadata.at(kData);
    io::DatasetInfo info{.path = checkpoint.master(),
                         .task = enum_at<io::Task>(data, "task"),
                         .samples = integer_at(data, "samples"),
                         .input_shape = shape_at(data, "input_shape"),
                         .input_dtype = enum_at<DType>(data, "input_dtype"),
                         .target_shape = shape_at(data, "target_shape"),
                         .target_dtype = enum_at<DType>(data, "target_dtype"),
                         .classes = integer_at(data, "classes"),
                         .class_names = data.at("class_names"),
                         .column_names = data.value("column_names", std::vector<std::string>()),
                         .tokenizer = enum_at<io::TokenizerKind>(data, "tokenizer"),
                         .mean = data.at("mean"),
                         .deviation = data.at("deviation"),
                         .checksum = hash_from(data.at("checksum"))};
    if (metadata.contains(kTokenizer)) {
      info.tokenizer_checksum = hash_from(metadata.at(kTokenizer));
    }
    return info;
  } catch (const std::exception& error) {
    fail(ExitCode::kCheckpoint,
         "{} has no valid record of its training data ({}); use another checkpoint",
         checkpoint.directory().string(), error.what());
  }
}

void require_same_model(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  require_same_tensors(plan, checkpoint, plan::kWeightPrefix);
  require_same_layers(plan, checkpoint);
  require_same_tokenizer(plan, checkpoint);
}

nn::NamePatterns initialized_anew(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  std::string names = plan.config.checkpoint.init_except;
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    if (nn::is_adapter(spec.name) && checkpoint.find(plan::weight_name(spec)) == nullptr) {
      names += "," + spec.name;
    }
  }
  return nn::NamePatterns(names);
}

void require_initial(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  const nn::NamePatterns except = initialized_anew(plan, checkpoint);
  std::vector<std::string> names;
  std::set<std::string> model;
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    if (spec.ownership == nn::Ownership::kOwned) {
      names.push_back(spec.name);
      model.insert(spec.name);
    }
  }
  std::vector<io::TensorInfo> file;
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.name.starts_with(plan::kWeightPrefix)) {
      names.push_back(tensor.name.substr(std::string_view(plan::kWeightPrefix).size()));
      file.push_back({names.back(), tensor.shape});
    }
  }
  except.require_matches("checkpoint.init_except", names);
  const auto refuse = [&](const std::string& difference, const std::string& name,
                          const char* effect) {
    fail(
        ExitCode::kCheckpoint,
        "checkpoint.init: {} does not fit the model: {}; give a checkpoint of such a model, or add "
        "{} to checkpoint.init_except, to {}",
        checkpoint.directory().string(), difference, name, effect);
  };
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    const io::TensorInfo* const found = checkpoint.find(plan::weight_name(spec));
    if (spec.ownership != nn::Ownership::kOwned || except.matches(spec.name) ||
        (found != nullptr && found->shape == spec.shape)) {
      continue;
    }
    refuse(found == nullptr
               ? fmt::format("it has no {}, which is {} in the model", spec.name, spec.shape.text())
               : fmt::format("its {} is {}, that of the model {}", spec.name, found->shape.text(),
                             spec.shape.text()),
           spec.name, "initialize it anew");
  }
  for (const io::TensorInfo& tensor : file) {
    if (!except.matches(tensor.name) && !model.contains(tensor.name)) {
      if (nn::is_adapter(tensor.name)) {
        fail(ExitCode::kCheckpoint,
             "checkpoint.init: {} has adapters, as {} ({}), which the model lacks; set lora.rank, "
             "lora.alpha and lora.products as its run did, or merge the adapters with strata "
             "checkpoint export --format=huggingface and import that",
             checkpoint.directory().string(), tensor.name, tensor.shape.text());
      }
      refuse(fmt::format("it has {} ({}), which the model lacks", tensor.name, tensor.shape.text()),
             tensor.name, "leave it out");
    }
  }
  const std::string tokenizer = metadata_entry<std::string>(checkpoint, kTokenizer);
  const bool known = !tokenizer.empty() && tokenizer != hash_text(0);
  if (plan.train_data.task == io::Task::kNextToken && known &&
      tokenizer != hash_text(plan.train_data.tokenizer_checksum) &&
      !except.matches(plan.model->parameters().front().name)) {
    fail(ExitCode::kData,
         "checkpoint.init: {} learned from ids of another tokenizer than the one that {} was made "
         "with, so that they mean different text; make the data set with the checkpoint's "
         "tokenizer, or initialize the embedding and the head anew with checkpoint.init_except",
         checkpoint.directory().string(), plan.train_data.path.string());
  }
}

ModelTexts model_texts(const io::Checkpoint& checkpoint) {
  return metadata_entry<ModelTexts>(checkpoint, kTexts);
}

ModelTexts initial_texts(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  return initialized_anew(plan, checkpoint).matches(plan.model->parameters().front().name)
             ? ModelTexts()
             : model_texts(checkpoint);
}

NamesOfCheckpoint initial_names(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  NamesOfCheckpoint names{.data = data_of(checkpoint).value_or(plan.train_data), .advice = ""};
  const std::vector<nn::ParameterSpec>& parameters = plan.model->parameters();
  if (parameters.empty()) {
    return names;
  }
  const nn::NamePatterns except = initialized_anew(plan, checkpoint);
  const auto is_anew = [&](std::int64_t layer) {
    return std::ranges::any_of(parameters, [&](const nn::ParameterSpec& spec) {
      return spec.layer == layer && !nn::is_adapter(spec.name) && except.matches(spec.name);
    });
  };
  const io::DatasetInfo& ours = plan.train_data;
  std::vector<std::string>& columns = names.data.column_names;
  const bool tables = !columns.empty() && !ours.column_names.empty();
  const bool first = is_anew(parameters.front().layer);
  const bool last = is_anew(parameters.back().layer);
  if (tables) {
    const std::string label = last ? ours.column_names.back() : columns.back();
    columns = first ? ours.column_names : columns;
    columns.back() = label;
  }
  if (last) {
    names.data.class_names = ours.class_names;
  }
  const auto pattern_of = [](const std::string& name) {
    return name.substr(0, name.rfind('.')) + ".*";
  };
  names.advice = fmt::format(
      "give data with the names that checkpoint.init learned, or initialize the layer that they "
      "belong to anew with checkpoint.init_except: {} for columns, {} for classes",
      pattern_of(parameters.front().name), pattern_of(parameters.back().name));
  return names;
}

std::string initial_text(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  const nn::NamePatterns except = initialized_anew(plan, checkpoint);
  std::vector<std::string> anew;
  bool adapters = false;
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    if (spec.ownership == nn::Ownership::kOwned && except.matches(spec.name)) {
      if (nn::is_adapter(spec.name)) {
        adapters = true;
      } else {
        anew.push_back(spec.name);
      }
    }
  }
  if (adapters) {
    anew.emplace_back("adapters");
  }
  std::string text =
      fmt::format("starting from the weights of {}{}", checkpoint.directory().string(),
                  anew.empty() ? "" : fmt::format("; initialized anew: {}", fmt::join(anew, ", ")));
  if (const std::string difference = different_layer(plan, checkpoint, except);
      !difference.empty()) {
    text += "; " + difference;
  }
  return text;
}

namespace {

config::Sync sync_of(const io::Checkpoint& checkpoint) {
  return enum_from_name<config::Sync>(metadata_entry<std::string>(checkpoint, kSync))
      .value_or(config::Sync::kStep);  // earlier versions had no other
}

/// What makes the optimizer state useless; empty for nothing.
std::string sync_change(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  const std::string there =
      plan::replication_of(sync_of(checkpoint)).name(virtual_grid_of(checkpoint).parts);
  const std::string here = plan::replication_of(plan).name(plan.parts);
  return there == here ? ""
                       : fmt::format("{} is of a run with parallel.sync = {}, here it is {}",
                                     checkpoint.directory().string(), there, here);
}

}  // namespace

void require_continues(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  require_same_model(plan, checkpoint);
  if (is_imported(checkpoint)) {
    return;
  }
  const auto stored = metadata_entry<nlohmann::json::object_t>(checkpoint, "identity");
  const nlohmann::ordered_json identity = identity_of(plan);
  for (const auto& [key, value] : identity.items()) {
    const auto found = stored.find(key);
    nlohmann::json there = found != stored.end() ? found->second
                           : key == kFrozen || key == kTrained
                               ? nlohmann::json("")  // of earlier versions
                               : nlohmann::json();
    if (there.is_string()) {
      there = switch_spelling(there.get<std::string>());
    }
    if (there != nlohmann::json(value)) {
      fail(ExitCode::kUsage,
           "{} holds another run: there {} is {}, here it is {}; set it back, or choose another "
           "run.dir",
           checkpoint.directory().string(), key, there.dump(), value.dump());
    }
  }
  if (const std::string change = sync_change(plan, checkpoint); !change.empty()) {
    if (plan.config.checkpoint.drop_state == config::Switch::kOff) {
      fail(ExitCode::kUsage,
           "{}: its optimizer state does not fit and would be dropped{}; set it back, or, to go on "
           "from the weights alone, set checkpoint.drop_state to on",
           change, plan::replication_of(sync_of(checkpoint)).state_text());
    }
    return;
  }
  for (const std::string_view prefix :
       {plan::kStatePrefix, plan::kPartPrefix, plan::kOuterPrefix}) {
    require_same_tensors(plan, checkpoint, prefix);
  }
}

nlohmann::json identity_in_parts(const plan::Plan& plan) {
  nlohmann::json identity = identity_of(plan);
  identity["numerics.lanes"] = plan.config.numerics.lanes;
  identity["numerics.shards"] = plan.config.numerics.shards;
  identity["batch.micro"] = plan.config.batch.micro;
  identity["the model's layers"] = model_lines(plan);
  return identity;
}

bool has_state(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  return !is_imported(checkpoint) && sync_change(plan, checkpoint).empty();
}

std::int64_t checkpoint_bytes(const plan::Plan& plan) {
  std::int64_t bytes = 0;
  for (const io::TensorInfo& tensor : tensors_of(plan)) {
    bytes += tensor.shape.count() * size_bytes(tensor.dtype);
  }
  return bytes;
}

std::string instruction_set_change(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  const std::string stored = metadata_entry<std::string>(checkpoint, kInstructionSet);
  if (stored.empty() || plan.device != device::DeviceKind::kCpu) {
    return "";
  }
  const DType dtype = plan.config.numerics.dtype;
  const ops::InstructionSet here = ops::used_instruction_set();
  const auto there = enum_from_name<ops::InstructionSet>(stored);
  if (there && ops::same_bits(*there, here, dtype)) {
    return "";
  }
  return fmt::format(
      "{} was made under numerics.isa = {} and the run goes on under {}, which gives other bits in "
      "{}: from here on its numbers are not those of a run that stays under {}",
      checkpoint.directory().string(), stored, name_of(here), name_of(dtype), stored);
}

nlohmann::json checkpoint_metadata(const plan::Plan& plan, const RunRecord& run,
                                   std::int64_t step) {
  nlohmann::json metadata{
      {"step", step},
      {"samples", step * plan.config.batch.global},
      {"virtual_grid",
       {{"lanes", plan.config.numerics.lanes},
        {"shards", plan.config.numerics.shards},
        {"microbatch", plan.config.batch.micro},
        {"loss_pieces", plan.config.numerics.loss_pieces}}},
      {kSync, name_of(plan.config.parallel.sync)},
      {"grid", {{"pipeline", plan.grid.pipeline}, {"tensor", plan.grid.tensor}}},
      {"layers", model_lines(plan)},
      {"identity", identity_of(plan)},
      {plan::kOnlyAdapters, plan.model->trains_only_adapters()},
      {kData, json_of(plan.train_data)},
      {"config", run.config_text}};
  if (run.further) {
    metadata.merge_patch(run.further());
  }
  if (!run.texts.empty()) {
    metadata[kTexts] = run.texts;
  }
  if (plan.train_data.task == io::Task::kNextToken) {
    metadata[kTokenizer] = hash_text(plan.train_data.tokenizer_checksum);
  }
  if (plan.device == device::DeviceKind::kCpu) {
    metadata[kInstructionSet] = name_of(ops::used_instruction_set());
  }
  return metadata;
}

nlohmann::json imported_metadata(const std::vector<std::string>& layers,
                                 const io::DatasetInfo& data, const std::string& source,
                                 const ModelTexts& texts) {
  std::vector<std::string> lines(layers.size());
  std::ranges::transform(layers, lines.begin(), comparable);
  nlohmann::json metadata{
      {"step", 0},       {"samples", 0},         {kImported, source},
      {"layers", lines}, {kData, json_of(data)}, {kTokenizer, hash_text(data.tokenizer_checksum)}};
  if (!texts.empty()) {
    metadata[kTexts] = texts;
  }
  return metadata;
}

std::string prune_warning(const plan::Plan& plan, std::int64_t step, std::int64_t best_step) {
  try {
    io::prune_checkpoints(checkpoint_root(plan.config), step, plan.config.checkpoint.keep,
                          plan.config.checkpoint.keep_every, best_step);
  } catch (const Error& error) {
    return fmt::format("an expired checkpoint could not be deleted: {}", error.what());
  }
  return "";
}

void tidy_checkpoints(const plan::Plan& plan, comm::Communicator& world, std::int64_t step,
                      std::int64_t best_step, Log& log) {
  const std::string warning = world.rank() == 0 ? prune_warning(plan, step, best_step) : "";
  if (!warning.empty()) {
    log.warn("{}", warning);
  }
}

}  // namespace strata::train
