#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "strata/core/enum_names.hpp"
#include "strata/exchange/published_model.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/prompts.hpp"
#include "strata/io/tensor_files.hpp"
#include "strata/io/tokenizer.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/train/checkpointing.hpp"

/// Weights of other programs as checkpoints, and back. Formats: docs/models.md.
namespace strata::exchange {

enum class ModelFormat {
  kHuggingface,  ///< config.json and safetensors, of family_names()
  kLlmc,         ///< gpt2_124M.bin of llm.c
  kSafetensors,  ///< strata's own names, only written
  kOnnx          ///< a graph with its weights, of vectors or images, only written
};

constexpr auto enum_names(ModelFormat) {
  return names_in_order("huggingface", "llmc", "safetensors", "onnx");
}

/// Rows of a stored matrix, and where they lie in an adapter's.
struct AdapterPiece {
  const io::StoredTensor* stored = nullptr;
  std::int64_t first = 0;   ///< row of the stored matrix
  grid::Range rows;         ///< of the parameter
  std::int64_t column = 0;  ///< of the parameter, where the stored columns begin
};

/// A matrix of an adapter, as "blocks.0.mlp.up.lora_a"; zero where no piece lies.
struct AdapterParameter {
  std::string name;
  Shape shape;
  std::vector<AdapterPiece> pieces;
};

/// Low-rank adapters in files of PEFT.
struct ForeignAdapters {
  nn::AdapterOptions options;
  io::TensorFiles files;
  std::vector<AdapterParameter> parameters;
  std::int64_t stacked = 1;  ///< the most different A of a product
  std::string config;        ///< the text of adapter_config.json
  double dropout = 0.0;      ///< lora_dropout, which strata's adapters do not have
};

/// Opens the adapters of a directory for a model. Modules that share a product and have different
/// A, as q_proj and v_proj, become one adapter of all A below each other, each B in the columns of
/// its A, and zeros elsewhere: rank and alpha of all products are then so many times PEFT's.
/// Throws: Error(kData) naming the key of adapter_config.json or the tensor that strata does not
/// compute, or that does not fit the model.
[[nodiscard]] ForeignAdapters open_adapters(const std::filesystem::path& directory,
                                            const PublishedModel& model);

/// Tensors of the other parts of a model whose text part is imported.
struct LeftOut {
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
  std::set<std::string, std::less<>> parts;  ///< names, as "vision_tower"
};

/// A model in files of another program: its tensors have the expected names and shapes.
struct ForeignModel {
  ModelFormat format = ModelFormat::kHuggingface;
  PublishedModel model;
  io::TensorFiles files;
  std::vector<PublishedTensor> tensors;
  std::vector<const io::StoredTensor*> stored;  ///< of each of `tensors`
  train::ModelTexts texts = {};                 ///< of Hugging Face's files beside the weights
  std::optional<ForeignAdapters> adapters = {};
  LeftOut left_out = {};
};

/// The tokens that end a text of a checkpoint's model: the tokenizer's separator and, of a model of
/// Hugging Face's, eos_token_id of its config.json and generation_config.json and eos_token of its
/// tokenizer_config.json. Throws: Error(kCheckpoint).
[[nodiscard]] std::set<std::int64_t> end_tokens(const io::Checkpoint& checkpoint,
                                                const io::Tokenizer& tokenizer);

/// The template of dialogues that a checkpoint's model learned: the one of its training data, else
/// that of a model of Hugging Face's. Throws: Error(kCheckpoint).
[[nodiscard]] io::PublishedTemplate learned_template(const io::Checkpoint& checkpoint);

/// Opens a model; a format that is not given is found out.
/// Throws: Error(kData) naming the file and the first tensor or key of config.json that differs.
[[nodiscard]] ForeignModel open_model(const std::filesystem::path& path,
                                      std::optional<ModelFormat> format);

/// The dtype that holds all weights of a model: float64 where one has it, else float32.
[[nodiscard]] DType dtype_of(const ForeignModel& model);

/// Writes a checkpoint of step 0 below `root`, one parameter after the other, so that a model needs
/// little memory. Throws: Error(kCheckpoint).
void import_model(const ForeignModel& model, const std::filesystem::path& root, DType dtype,
                  const nlohmann::json& metadata, const io::Tokenizer* tokenizer);

/// Calls `fill` with a hidden directory beside `output` and renames that to `output`, so that a
/// kill leaves the whole or nothing under this name. A lock beside it keeps other processes out.
/// Throws: Error(kUsage) where `output` exists and is not empty, or another process fills it.
void fill_new_directory(const std::filesystem::path& output,
                        const std::function<void(const std::filesystem::path&)>& fill);

/// What becomes of adapters in an export.
enum class AdapterExport {
  kMerged,  ///< added to the weights of their products
  kApart    ///< they alone, in PEFT's form; with kHuggingface
};

constexpr auto enum_names(AdapterExport) {
  return names_in_order("merged", "apart");
}

struct ExportOptions {
  ModelFormat format = ModelFormat::kHuggingface;
  std::optional<io::StoredType> type;  ///< nothing: as in the checkpoint
  std::int64_t shard_bytes = std::int64_t{5} << 30U;
  AdapterExport adapters = AdapterExport::kMerged;
  /// Checks the written files before they appear under their name; may throw.
  std::function<void(const std::filesystem::path&)> check = [](const auto&) {};
};

/// What an export wrote.
struct ExportedModel {
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
  std::vector<std::string> files;
};

/// Writes the weights of a checkpoint into a new directory: reads the files back, compares the
/// checksum of every tensor, then renames the directory to `output`.
/// Throws: Error(kUsage) where the format cannot hold the model or `output` exists; Error(kData)
/// where a file cannot be written or reads back otherwise; Error(kCheckpoint).
ExportedModel export_model(const io::Checkpoint& checkpoint, const std::filesystem::path& output,
                           const ExportOptions& options);

}  // namespace strata::exchange
