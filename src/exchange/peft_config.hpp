#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace strata::exchange {

/// The files of a directory of PEFT's. Source: huggingface/peft, utils/constants.py.
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";
inline constexpr const char* kPeftConfig = "adapter_config.json";

/// The name of a module's matrix, as in
/// "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight".
/// Source: huggingface/peft, utils/save_and_load.py.
[[nodiscard]] std::string peft_name(std::string_view module, std::string_view matrix);

/// Whether an entry of target_modules names a module: all of its name, or the end behind a dot.
[[nodiscard]] bool is_target(std::string_view module, std::string_view target);

/// What an adapter_config.json says about adapters of matrices.
/// Source: huggingface/peft, tuners/lora/config.py.
struct PeftConfig {
  std::int64_t rank = 0;
  double alpha = 0.0;                ///< scale times rank, also with use_rslora
  double dropout = 0.0;              ///< of the adapters' inputs in training
  bool inputs_first = false;         ///< fan_in_fan_out
  std::vector<std::string> targets;  ///< empty where an expression or none is given
  std::string text;                  ///< of the file
};

/// Reads the adapter_config.json of a directory. Throws: Error(kData) naming the first key with a
/// value that strata does not compute.
[[nodiscard]] PeftConfig read_peft_config(const std::filesystem::path& directory);

/// The config of a text. `name` is for messages. Throws: as read_peft_config().
[[nodiscard]] PeftConfig parse_peft_config(const std::string& text, const std::string& name);

}  // namespace strata::exchange
