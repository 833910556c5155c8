#include "huggingface_config.hpp"

#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/nn/rotary_scaling.hpp"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

/// A config.json and what is wrong with it.
class ConfigReader {
 public:
  explicit ConfigReader(const fs::path& path) : path_(path.string()) {
    constexpr std::size_t kMostBytes = std::size_t{1} << 20U;
    const auto text = io::read_text(fs::weakly_canonical(path), ExitCode::kData, kMostBytes);
    if (!text) {
      fail(ExitCode::kData, "{} is missing; a model of Hugging Face is a directory with it", path_);
    }
    const auto parsed = io::parse_json(*text, io::RepeatedKeys::kRefused);
    if (!parsed || !parsed->is_object()) {
      fail(ExitCode::kData, "{} is no JSON object, or has a key twice; copy it again", path_);
    }
    json_ = *parsed;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const {
    fail(ExitCode::kData, "{}: {} is {}, strata computes {}", path_, key,
         json_.contains(key) ? printable(json_.at(key).dump()) : "missing", expected);
  }

  /// The value of a key that is there and not null.
  [[nodiscard]] const nlohmann::json* find(const std::string& key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  [[nodiscard]] std::int64_t count(const std::string& key,
                                   std::optional<std::int64_t> otherwise = {}) const {
    constexpr std::int64_t kMost = (std::int64_t{1} << 31U) - 1;
    const nlohmann::json* value = find(key);
    if (value == nullptr && otherwise) {
      return *otherwise;
    }
    const std::int64_t found =
        value == nullptr ? 0 : io::integer_in(*value).value_or(std::int64_t{0});
    if (found < 1 || found > kMost) {
      refuse(key, fmt::format("models with a whole number from 1 to {}", kMost));
    }
    return found;
  }

  [[nodiscard]] double number(const std::string& key, double otherwise) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) {
      return otherwise;
    }
    if (!value->is_number() || !(value->get<double>() > 0.0)) {
      refuse(key, "with a number above 0");
    }
    return value->get<double>();
  }

  [[nodiscard]] bool truth(const std::string& key, bool otherwise) const {
    const nlohmann::json* value = find(key);
    if (value != nullptr && !value->is_boolean()) {
      refuse(key, "with true or false");
    }
    return value == nullptr ? otherwise : value->get<bool>();
  }

  [[nodiscard]] std::string text(const std::string& key, const std::string& otherwise) const {
    const nlohmann::json* value = find(key);
    if (value != nullptr && !value->is_string()) {
      refuse(key, "with a text");
    }
    return value == nullptr ? otherwise : value->get<std::string>();
  }

  /// Refuses another value than the only one that strata computes.
  void only(const std::string& key, bool expected) const {
    if (truth(key, expected) != expected) {
      refuse(key, expected ? "with true" : "with false");
    }
  }

 private:
  std::string path_;
  nlohmann::json json_;
};

constexpr std::int64_t kMostBlocks = 10'000;

nn::PublishedModel gpt2_model(const ConfigReader& config) {
  nn::PublishedModel model;
  nn::TransformerOptions& o = model.options;
  o.preset = nn::Preset::kGpt;
  o.blocks = config.count("n_layer", 12);
  o.width = config.count("n_embd", 768);
  o.heads = config.count("n_head", 12);
  o.context = config.count("n_positions", 1024);
  o.vocabulary = config.count("vocab_size", 50257);
  o.hidden = config.count("n_inner", 4 * o.width);
  o.tied = config.truth("tie_word_embeddings", true) ? nn::Choice::kYes : nn::Choice::kNo;
  model.epsilon = config.number("layer_norm_epsilon", 1e-5);
  const std::string activation = config.text("activation_function", "gelu_new");
  if (activation == "relu") {
    o.mlp = nn::MlpChoice::kRelu;
  } else if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    config.refuse("activation_function",
                  "gelu_new, gelu_pytorch_tanh (both the tanh form) or relu");
  }
  config.only("scale_attn_weights", true);
  config.only("scale_attn_by_inverse_layer_idx", false);
  config.only("add_cross_attention", false);
  return model;
}

/// Reads `rope_theta` and `rope_scaling`, or `rope_parameters`, which newer files have for both.
void read_rotary(const ConfigReader& config, nn::TransformerOptions& options) {
  options.rotary_base = config.number("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* value = config.find(key);
    if (value == nullptr) {
      continue;
    }
    const auto text_at = [&](const char* name) {
      return value->contains(name) && value->at(name).is_string()
                 ? value->at(name).get<std::string>()
                 : std::string();
    };
    const auto number_at = [&](const char* name) {
      return value->contains(name) && value->at(name).is_number() ? value->at(name).get<double>()
                                                                  : 0.0;
    };
    const std::string type = text_at(value->contains("rope_type") ? "rope_type" : "type");
    std::string scaling;
    if (type == "default") {
      scaling = "none";
    } else if (type == "linear") {
      scaling = fmt::format("linear:{}", number_at("factor"));
    } else if (type == "llama3") {
      scaling =
          fmt::format("llama3:{}:{}:{}:{}", number_at("factor"), number_at("low_freq_factor"),
                      number_at("high_freq_factor"), number_at("original_max_position_embeddings"));
    }
    const std::optional<ops::RotaryScaling> read = nn::parse_rotary_scaling(scaling);
    const double base =
        value->contains("rope_theta") ? number_at("rope_theta") : options.rotary_base;
    const double partial =
        value->contains("partial_rotary_factor") ? number_at("partial_rotary_factor") : 1.0;
    if (!read || !(base > 0.0) || partial != 1.0) {
      config.refuse(key,
                    "rotary positions of the types default, linear (factor) and llama3 (factor, "
                    "low_freq_factor, high_freq_factor, original_max_position_embeddings), of "
                    "whole heads, with rope_theta above 0");
    }
    options.rotary_scaling = *read;
    options.rotary_base = base;
  }
}

/// `rope_scaling` of a config.json.
nlohmann::ordered_json rotary_json(const ops::RotaryScaling& scaling) {
  if (scaling.kind == ops::RotaryScalingKind::kNone) {
    return nullptr;
  }
  nlohmann::ordered_json json{{"rope_type", name_of(scaling.kind)}, {"factor", scaling.factor}};
  if (scaling.kind == ops::RotaryScalingKind::kLlama3) {
    json["low_freq_factor"] = scaling.low;
    json["high_freq_factor"] = scaling.high;
    json["original_max_position_embeddings"] = static_cast<std::int64_t>(scaling.context);
  }
  return json;
}

nn::PublishedModel llama_model(const ConfigReader& config) {
  nn::PublishedModel model;
  nn::TransformerOptions& o = model.options;
  o.preset = nn::Preset::kLlama;
  o.blocks = config.count("num_hidden_layers", 32);
  o.width = config.count("hidden_size", 4096);
  o.heads = config.count("num_attention_heads", 32);
  o.kv_heads = config.count("num_key_value_heads", o.heads);
  o.context = config.count("max_position_embeddings", 2048);
  o.vocabulary = config.count("vocab_size", 32000);
  o.hidden = config.count("intermediate_size", 11008);
  o.tied = config.truth("tie_word_embeddings", false) ? nn::Choice::kYes : nn::Choice::kNo;
  model.epsilon = config.number("rms_norm_eps", 1e-6);
  if (config.text("hidden_act", "silu") != "silu") {
    config.refuse("hidden_act", "silu");
  }
  if (config.count("head_dim", o.width / o.heads) != o.width / o.heads) {
    config.refuse("head_dim",
                  fmt::format("{}, hidden_size over num_attention_heads", o.width / o.heads));
  }
  config.only("attention_bias", false);
  config.only("mlp_bias", false);
  if (config.number("partial_rotary_factor", 1.0) != 1.0) {
    config.refuse("partial_rotary_factor", "rotary positions of whole heads, 1");
  }
  if (config.find("sliding_window") != nullptr) {
    config.refuse("sliding_window", "attention to all earlier tokens, null");
  }
  read_rotary(config, o);
  return model;
}

}  // namespace

nn::PublishedModel read_huggingface_config(const fs::path& path) {
  const ConfigReader config(path);
  const std::string type = config.text("model_type", "");
  if (type != "gpt2" && type != "llama") {
    config.refuse("model_type", "gpt2 and llama");
  }
  if (config.find("quantization_config") != nullptr) {
    config.refuse("quantization_config", "with floating-point weights, null; convert the model");
  }
  nn::PublishedModel model = type == "gpt2" ? gpt2_model(config) : llama_model(config);
  if (model.options.blocks > kMostBlocks) {
    config.refuse(type == "gpt2" ? "n_layer" : "num_hidden_layers",
                  fmt::format("at most {}", kMostBlocks));
  }
  const nn::TransformerOptions& o = model.options;
  if (o.width % o.heads != 0 ||
      (type == "llama" && (o.heads % o.kv_heads != 0 || o.width / o.heads % 2 != 0))) {
    config.refuse(type == "gpt2" ? "n_head" : "num_attention_heads",
                  type == "gpt2" ? "numbers that divide n_embd"
                                 : "numbers that divide hidden_size into even heads, and that "
                                   "num_key_value_heads divides");
  }
  model.options = nn::resolved(model.options);
  return model;
}

void set_ends(const DocumentEnds& ends, nlohmann::ordered_json& json) {
  const auto id = [](std::int64_t token) {
    return token >= 0 ? nlohmann::ordered_json(token) : nlohmann::ordered_json();
  };
  json["bos_token_id"] = id(ends.begin);
  json["eos_token_id"] = id(ends.end);
}

nlohmann::ordered_json huggingface_config(const nn::PublishedModel& model, io::StoredType type,
                                          const DocumentEnds& ends) {
  const nn::TransformerOptions& o = model.options;
  nlohmann::ordered_json json;
  const bool tied = o.tied == nn::Choice::kYes;
  if (architecture_of(model) == nn::Architecture::kGpt2) {
    json = {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"n_layer", o.blocks},
            {"n_embd", o.width},
            {"n_head", o.heads},
            {"n_inner", o.hidden},
            {"n_positions", o.context},
            {"n_ctx", o.context},
            {"vocab_size", o.vocabulary},
            {"activation_function", o.mlp == nn::MlpChoice::kRelu ? "relu" : "gelu_new"},
            {"layer_norm_epsilon", model.epsilon},
            {"embd_pdrop", o.dropout},
            {"resid_pdrop", o.dropout},
            {"attn_pdrop", 0.0}};
  } else {
    json = {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"num_hidden_layers", o.blocks},
            {"hidden_size", o.width},
            {"num_attention_heads", o.heads},
            {"num_key_value_heads", o.kv_heads},
            {"intermediate_size", o.hidden},
            {"max_position_embeddings", o.context},
            {"vocab_size", o.vocabulary},
            {"hidden_act", "silu"},
            {"rms_norm_eps", model.epsilon},
            {"rope_theta", o.rotary_base},
            {"rope_scaling", rotary_json(o.rotary_scaling)},
            {"attention_bias", false},
            {"mlp_bias", false}};
  }
  json["tie_word_embeddings"] = tied;
  json["torch_dtype"] = name_of(type);
  set_ends(ends, json);
  return json;
}

}  // namespace strata::train
