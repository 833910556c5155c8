#include "peft_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"

namespace strata::exchange {
namespace {

/// Keys that say nothing about what adapters compute once they are trained.
constexpr std::array<std::string_view, 10> kPeftNotes{"base_model_name_or_path",
                                                      "revision",
                                                      "auto_mapping",
                                                      "peft_version",
                                                      "inference_mode",
                                                      "megatron_core",
                                                      "qalora_group_size",
                                                      "runtime_config",
                                                      "eva_config",
                                                      "ensure_weight_tying"};

/// A key's value and what was expected of it.
struct PeftRule {
  const char* key;
  bool (*fits)(const nlohmann::json& value);
  const char* expected;
};

/// Whether a value is the one of a method that is not used.
bool is_unset(const nlohmann::json& value) {
  return value.is_null() || value == nlohmann::json(false) || value == nlohmann::json(0) ||
         value == nlohmann::json("") || ((value.is_object() || value.is_array()) && value.empty());
}

/// The others change the weights of the base model.
bool keeps_base(const nlohmann::json& value) {
  return value.is_null() || value.is_boolean() || value == nlohmann::json("gaussian") ||
         value == nlohmann::json("eva") || value == nlohmann::json("orthogonal");
}

bool is_positive(const nlohmann::json& value) {
  return value.is_number() && value.get<double>() > 0.0 && std::isfinite(value.get<double>());
}

const std::array<PeftRule, 13> kPeftRules{
    {{"peft_type", [](const nlohmann::json& value) { return value == nlohmann::json("LORA"); },
      "LORA"},
     {"task_type",
      [](const nlohmann::json& value) {
        return value.is_null() || value == nlohmann::json("CAUSAL_LM");
      },
      "CAUSAL_LM, a model of language"},
     {"r",
      [](const nlohmann::json& value) {
        constexpr std::int64_t kMost = std::int64_t{1} << 20U;
        const std::int64_t rank = io::integer_in(value).value_or(0);
        return rank >= 1 && rank <= kMost;
      },
      "a whole number from 1 to 1048576"},
     {"lora_alpha", is_positive, "a number above 0"},
     {"lora_dropout",
      [](const nlohmann::json& value) {
        return is_unset(value) || (is_positive(value) && value.get<double>() < 1.0);
      },
      "a number from 0 to below 1"},
     {"use_rslora",
      [](const nlohmann::json& value) { return value.is_null() || value.is_boolean(); },
      "true or false"},
     {"fan_in_fan_out",
      [](const nlohmann::json& value) { return value.is_null() || value.is_boolean(); },
      "true or false"},
     {"target_modules",
      [](const nlohmann::json& value) {
        return value.is_null() || value.is_string() ||
               (value.is_array() && std::ranges::all_of(value, [](const nlohmann::json& module) {
                  return module.is_string();
                }));
      },
      "names of modules"},
     {"bias",
      [](const nlohmann::json& value) {
        return is_unset(value) || value == nlohmann::json("none");
      },
      "none: biases of the base model"},
     {"init_lora_weights", keeps_base,
      "true, false, gaussian, eva or orthogonal, which keep the weights of the base model; convert "
      "the adapters to LoRA with PEFT's path_initial_model_for_weight_conversion"},
     {"rank_pattern", is_unset, "{}: one rank for all modules"},
     {"alpha_pattern", is_unset, "{}: one alpha for all modules"},
     {"use_dora", is_unset, "false: plain low-rank adapters"}}};

}  // namespace

std::string peft_name(std::string_view module, std::string_view matrix) {
  return fmt::format("base_model.model.{}.{}.weight", module, matrix);
}

bool is_target(std::string_view module, std::string_view target) {
  return module == target || (module.ends_with(target) && module.size() > target.size() &&
                              module[module.size() - target.size() - 1] == '.');
}

PeftConfig parse_peft_config(const std::string& text, const std::string& name) {
  const auto config = io::parse_json(text, io::RepeatedKeys::kRefused);
  if (!config || !config->is_object()) {
    fail(ExitCode::kData, "{} is no JSON object, or has a key twice; copy it again", name);
  }
  const auto value_of = [&](const char* key) { return config->value(key, nlohmann::json()); };
  const auto shown = [](const nlohmann::json& value) {
    return printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  };
  for (const PeftRule& rule : kPeftRules) {
    if (const nlohmann::json value = value_of(rule.key); !rule.fits(value)) {
      fail(ExitCode::kData, "{}: {} is {}, strata reads {}", name, rule.key,
           config->contains(rule.key) ? shown(value) : "missing", rule.expected);
    }
  }
  for (const auto& [key, value] : config->items()) {
    const auto is_ruled = [&ruled = key](const PeftRule& rule) { return ruled == rule.key; };
    if (std::ranges::find(kPeftNotes, key) == kPeftNotes.end() &&
        std::ranges::none_of(kPeftRules, is_ruled) && !is_unset(value)) {
      fail(ExitCode::kData,
           "{}: {} is {}, which strata does not compute; merge the adapters into the weights with "
           "PEFT (merge_and_unload) and import those",
           name, printable(key), shown(value));
    }
  }
  PeftConfig result;
  result.rank = io::integer_of(value_of("r"));
  result.alpha = value_of("lora_alpha").get<double>();
  if (value_of("use_rslora") == nlohmann::json(true)) {
    // The scale is alpha / sqrt(rank). Source: Kalajdzievski, "A rank stabilization scaling factor
    // for fine-tuning with LoRA", arXiv 2312.03732.
    result.alpha *= std::sqrt(static_cast<double>(result.rank));
  }
  result.inputs_first = value_of("fan_in_fan_out") == nlohmann::json(true);
  if (const nlohmann::json targets = value_of("target_modules"); targets.is_array()) {
    result.targets = targets.get<std::vector<std::string>>();
  }
  if (const nlohmann::json dropout = value_of("lora_dropout"); dropout.is_number()) {
    result.dropout = dropout.get<double>();
  }
  result.text = text;
  return result;
}

PeftConfig read_peft_config(const std::filesystem::path& directory) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20U;
  const auto path = directory / kPeftConfig;
  const auto text =
      io::read_text(std::filesystem::weakly_canonical(path), ExitCode::kData, kMostBytes);
  std::error_code error;
  if (!text) {
    fail(ExitCode::kData, "{} is missing; adapters of PEFT are a directory with it and {}",
         path.string(), kPeftWeights);
  }
  if (!std::filesystem::exists(directory / kPeftWeights, error) &&
      std::filesystem::exists(directory / "adapter_model.bin", error)) {
    fail(ExitCode::kData,
         "{} holds adapter_model.bin, a file of torch.save(); save the adapters with PEFT's "
         "save_pretrained(safe_serialization=True), which writes {}",
         directory.string(), kPeftWeights);
  }
  return parse_peft_config(*text, path.string());
}

}  // namespace strata::exchange
