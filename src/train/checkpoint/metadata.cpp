#include "checkpoint/metadata.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/config/options.hpp"
#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/ini_lines.hpp"
#include "strata/core/text.hpp"
#include "strata/io/json.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/ops/instruction_set.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/checkpointing.hpp"

namespace strata::train {
namespace {

/// The metadata key of where imported weights come from.
constexpr const char* kImported = "imported";

/// The key of DatasetInfo::chat_template in the record of the training data.
constexpr const char* kChatTemplate = "chat_template";

/// The metadata key of the texts of files that were beside them.
constexpr const char* kTexts = "model_files";

nlohmann::json json_of(const Shape& shape) {
  return std::vector<std::int64_t>(shape.extents().begin(), shape.extents().end());
}

nlohmann::json json_of(const plan::VirtualGrid& grid) {
  return {{"lanes", grid.lanes},
          {"shards", grid.shards},
          {"microbatch", grid.microbatch},
          {"loss_pieces", grid.loss_pieces}};
}

// JSON has no NaN: a column without "missing" refuses missing numbers.
nlohmann::json json_of(const std::vector<io::TableColumn>& table) {
  nlohmann::json columns = nlohmann::json::array();
  for (const io::TableColumn& column : table) {
    nlohmann::json& entry = columns.emplace_back();
    entry["name"] = column.name;
    if (!column.categories.empty()) {
      entry["categories"] = column.categories;
    }
    if (!std::isnan(column.missing)) {
      entry["missing"] = column.missing;
    }
  }
  return columns;
}

std::vector<io::TableColumn> table_of(const nlohmann::json& columns) {
  std::vector<io::TableColumn> table;
  for (const nlohmann::json& entry : columns) {
    io::TableColumn& column = table.emplace_back();
    column.name = entry.at("name");
    column.categories = entry.value("categories", column.categories);
    column.missing = entry.value("missing", column.missing);
  }
  return table;
}

nlohmann::json json_of(const io::DatasetInfo& info) {
  nlohmann::json json{{"task", name_of(info.task)},
                      {"samples", info.samples},
                      {"input_shape", json_of(info.input_shape)},
                      {"input_dtype", name_of(info.input_dtype)},
                      {"target_shape", json_of(info.target_shape)},
                      {"target_dtype", name_of(info.target_dtype)},
                      {"classes", info.classes},
                      {"class_names", info.class_names},
                      {"column_names", info.column_names},
                      {"table", json_of(info.table)},
                      {"mean", info.mean},
                      {"deviation", info.deviation},
                      {"target_mean", info.target_mean},
                      {"target_deviation", info.target_deviation},
                      {"tokenizer", name_of(info.tokenizer)},
                      {"checksum", hash_text(info.checksum)}};
  if (!info.chat_template.empty()) {
    json[kChatTemplate] = info.chat_template;
  }
  return json;
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

}  // namespace

std::string comparable(const std::string& line) {
  return fmt::format("{}", fmt::join(split_words(line), " "));
}

std::vector<std::string> model_lines(const plan::Plan& plan) {
  std::vector<std::string> lines = plan::layer_lines(plan.config, plan.train_data);
  std::ranges::transform(lines, lines.begin(), comparable);
  return lines;
}

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
      {kNormalise, name_of(io::resolved(c.data.normalise, plan.train_data))}};
  // The first difference is reported, so the context precedes the number of samples, which depends
  // on it.
  if (plan.train_data.task == io::Task::kNextToken) {
    identity["model.context"] = plan.train_data.input_shape[0];
    identity["data.sampling"] = name_of(c.data.sampling);
    identity[kPacking] = name_of(c.data.packing);
  }
  if (plan.train_data.task == io::Task::kNextToken || !plan.train_data.mixture.empty()) {
    identity[kMixture] = plan.train_data.mixture;
  }
  if (plan.train_data.task == io::Task::kRegression) {
    identity[kTargets] = name_of(c.data.targets);
  }
  if (io::is_image(plan.train_data.input_shape)) {
    identity["data.flip"] = name_of(c.data.augmentation.flip);
    identity["data.crop_padding"] = c.data.augmentation.crop_padding;
    identity["data.cutout"] = c.data.augmentation.cutout;
  }
  if (nn::has_batch_norm(*plan.model)) {
    identity["model.sync_batch_norm"] = name_of(c.model.sync_batch_norm);
  }
  identity[kTrainSamples] = plan.train_data.samples;
  identity[kTrainChecksum] = hash_text(plan.train_data.checksum);
  return identity;
}

bool is_imported(const io::Checkpoint& checkpoint) {
  return checkpoint.metadata().contains(kImported);
}

namespace {

plan::VirtualGrid grid_in(const nlohmann::json& grid) {
  return {.lanes = integer_at(grid, "lanes", 1),
          .shards = integer_at(grid, "shards", 1),
          .microbatch = integer_at(grid, "microbatch", 1),
          .loss_pieces = grid.contains("loss_pieces") ? integer_at(grid, "loss_pieces", 1) : 1,
          .parts = grid.contains(plan::kPartsKey) ? integer_at(grid, plan::kPartsKey, 1) : 0};
}

[[noreturn]] void refuse_grid(const io::Checkpoint& checkpoint, const std::exception& error) {
  fail(ExitCode::kCheckpoint,
       "{} has no valid record of its virtual grid ({}); use another checkpoint",
       checkpoint.directory().string(), error.what());
}

}  // namespace

plan::VirtualGrid virtual_grid_of(const io::Checkpoint& checkpoint) {
  if (is_imported(checkpoint)) {
    return {};
  }
  try {
    plan::VirtualGrid grid = grid_in(checkpoint.metadata().at("virtual_grid"));
    const nlohmann::json ranks = checkpoint.metadata().value("grid", nlohmann::json::object());
    const auto ranks_of = [&](const char* key) {
      return ranks.contains(key) ? integer_at(ranks, key) : 0;
    };
    grid.pipeline = ranks_of("pipeline");
    grid.tensor = ranks_of("tensor");
    return grid;
  } catch (const std::exception& error) {
    refuse_grid(checkpoint, error);
  }
}

void keep_settings(const io::Checkpoint& checkpoint, config::RunConfig& config,
                   std::map<std::string, config::Origin>& origins) {
  constexpr std::array<std::string_view, 6> kKept{"optimizer.kind",  "optimizer.learning_rate",
                                                  "optimizer.decay", "schedule.warmup_steps",
                                                  "data.normalise",  "data.targets"};
  const auto stored = checkpoint.metadata().value("config", nlohmann::json());
  for (const IniLine& line :
       ini_lines(stored.is_string() ? stored.get<std::string>() : std::string())) {
    const auto option = std::ranges::find(config::option_table(), line.key, &config::Option::key);
    if (std::ranges::count(kKept, line.key) > 0 && !origins.contains(line.key) &&
        option->get(config) != line.value) {
      option->set(config, line.value);
      origins[line.key] = config::Origin::kDerived;
    }
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
                         .table = table_of(data.value("table", nlohmann::json::array())),
                         .tokenizer = enum_at<io::TokenizerKind>(data, "tokenizer"),
                         .chat_template = data.value(kChatTemplate, std::string()),
                         .mean = data.at("mean"),
                         .deviation = data.at("deviation"),
                         .target_mean = data.value("target_mean", std::vector<double>()),
                         .target_deviation = data.value("target_deviation", std::vector<double>()),
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

nlohmann::json former_grids(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
  auto former = metadata_entry<nlohmann::json::array_t>(checkpoint, kFormerGrids);
  if (plan.former) {
    former.push_back(json_of(*plan.former));
    former.back()["last_step"] = checkpoint.step();
  }
  return former;
}

std::string former_grids_text(const io::Checkpoint& checkpoint) {
  std::string text;
  for (const nlohmann::json& grid :
       metadata_entry<nlohmann::json::array_t>(checkpoint, kFormerGrids)) {
    try {
      text += fmt::format("until step {}: {}\n", integer_at(grid, "last_step"),
                          plan::virtual_grid_text(grid_in(grid)));
    } catch (const std::exception& error) {
      refuse_grid(checkpoint, error);
    }
  }
  return text;
}

io::Normalise normalise_of(const io::Checkpoint& checkpoint, const io::DatasetInfo& data) {
  const auto identity = metadata_entry<nlohmann::json::object_t>(checkpoint, "identity");
  const auto found = identity.find(kNormalise);
  return io::resolved(
      found == identity.end() ? io::Normalise::kAuto : enum_at<io::Normalise>(identity, kNormalise),
      data);
}

ModelTexts model_texts(const io::Checkpoint& checkpoint) {
  return metadata_entry<ModelTexts>(checkpoint, kTexts);
}

nlohmann::json identity_in_parts(const plan::Plan& plan) {
  nlohmann::json identity = identity_of(plan);
  identity["numerics.lanes"] = plan.config.numerics.lanes;
  identity["numerics.shards"] = plan.config.numerics.shards;
  identity["batch.micro"] = plan.config.batch.micro;
  identity["the model's layers"] = model_lines(plan);
  return identity;
}

nlohmann::json checkpoint_metadata(const plan::Plan& plan, const RunRecord& run,
                                   std::int64_t step) {
  nlohmann::json metadata{
      {"step", step},
      {"samples", step * plan.config.batch.global},
      {"virtual_grid", json_of(plan::virtual_grid_of(plan))},
      {kNormOrder, "tree"},
      {kSync, name_of(plan.config.parallel.sync)},
      {"grid", {{"pipeline", plan.grid.pipeline}, {"tensor", plan.grid.tensor}}},
      {"layers", model_lines(plan)},
      {"identity", identity_of(plan)},
      {plan::kOnlyAdapters, plan.model->trains_only_adapters()},
      {kData, json_of(plan.train_data)},
      {"config", run.config_text}};
  if (!run.former_grids.empty()) {
    metadata[kFormerGrids] = run.former_grids;
  }
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
    metadata[kOneDnn] = ops::onednn_version();
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
  if (!std::ranges::equal(lines, lines, {}, nn::without_adapters)) {
    metadata[plan::kOnlyAdapters] = true;
  }
  return metadata;
}

}  // namespace strata::train
