#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/plan/plan.hpp"

namespace strata::train {

/// The metadata key of the checksum of the data set's tokenizer.
inline constexpr const char* kTokenizer = "tokenizer_checksum";

/// The metadata key of the instruction set that the CPUs computed with.
inline constexpr const char* kInstructionSet = "instruction_set";

/// The metadata key of the version of oneDNN that the CPUs computed with.
inline constexpr const char* kOneDnn = "onednn";

/// The metadata key of the order in which gradient norms are added. Earlier versions, which added
/// block after block, stored none.
inline constexpr const char* kNormOrder = "gradient_norm";

/// The metadata key of parallel.sync.
inline constexpr const char* kSync = "sync";

/// The name of the setting in a checkpoint's identity.
inline constexpr const char* kFrozen = "optimizer.frozen";

inline constexpr const char* kTrained = "lora.train";

inline constexpr const char* kNormalise = "data.normalise";
inline constexpr const char* kTargets = "data.targets";
inline constexpr const char* kPacking = "data.packing";
inline constexpr const char* kMixture = "the mixture of data.train";
inline constexpr const char* kTrainSamples = "the number of training samples";
inline constexpr const char* kTrainChecksum = "the checksum of data.train";

/// The metadata key of the record of the training data, which evaluation and generation use.
inline constexpr const char* kData = "data";

/// The metadata key of the virtual grids that the run had before, by consent no longer: a list of
/// objects like `virtual_grid`, each with its last step.
inline constexpr const char* kFormerGrids = "former_virtual_grids";

/// A line of a model in the form that is compared: single spaces between words.
[[nodiscard]] std::string comparable(const std::string& line);

[[nodiscard]] std::vector<std::string> model_lines(const plan::Plan& plan);

/// The settings, beside the model, that determine a run's results; they are fixed when a checkpoint
/// continues it.
[[nodiscard]] nlohmann::ordered_json identity_of(const plan::Plan& plan);

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

}  // namespace strata::train
