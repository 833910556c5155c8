#include "huggingface_config.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/nn/rotary_scaling.hpp"

namespace strata::exchange {
namespace {

namespace fs = std::filesystem;

/// A config.json and its problems.
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

PublishedModel gpt2_model(const ConfigReader& config) {
  PublishedModel model;
  nn::TransformerOptions& o = model.options;
  o.preset = nn::Preset::kGpt;
  o.blocks = config.count("n_layer", 12);
  o.width = config.count("n_embd", 768);
  o.heads = config.count("n_head", 12);
  o.context = config.count("n_positions", 1024);
  o.vocabulary = config.count("vocab_size", 50257);
  o.hidden = config.count("n_inner", 4 * o.width);
  o.tied = config.truth("tie_word_embeddings", true) ? Switch::kOn : Switch::kOff;
  // Of nanoGPT's models, as torch_to_safetensors.py writes it; Hugging Face's have biases.
  o.bias = config.truth("bias", true) ? Switch::kOn : Switch::kOff;
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
    const auto number_at = [&](const char* name) {
      return value->contains(name) && value->at(name).is_number() ? value->at(name).get<double>()
                                                                  : 0.0;
    };
    const char* const named = value->contains("rope_type") ? "rope_type" : "type";
    const nlohmann::json type = value->contains(named) ? value->at(named) : nlohmann::json();
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
nlohmann::json rotary_json(const ops::RotaryScaling& scaling) {
  if (scaling.kind == ops::RotaryScalingKind::kNone) {
    return nullptr;
  }
  nlohmann::json json{{"rope_type", name_of(scaling.kind)}, {"factor", scaling.factor}};
  if (scaling.kind == ops::RotaryScalingKind::kLlama3) {
    json["low_freq_factor"] = scaling.low;
    json["high_freq_factor"] = scaling.high;
    json["original_max_position_embeddings"] = static_cast<std::int64_t>(scaling.context);
  } else if (scaling.kind == ops::RotaryScalingKind::kYarn) {
    json["original_max_position_embeddings"] = static_cast<std::int64_t>(scaling.context);
    json["beta_fast"] = scaling.high;
    json["beta_slow"] = scaling.low;
    json["attention_factor"] = scaling.magnitude();
  }
  return json;
}

PublishedModel llama_model(const ConfigReader& config) {
  PublishedModel model;
  nn::TransformerOptions& o = model.options;
  o.preset = nn::Preset::kLlama;
  o.blocks = config.count("num_hidden_layers", 32);
  o.width = config.count("hidden_size", 4096);
  o.heads = config.count("num_attention_heads", 32);
  o.kv_heads = config.count("num_key_value_heads", o.heads);
  o.context = config.count("max_position_embeddings", 2048);
  o.vocabulary = config.count("vocab_size", 32000);
  o.hidden = config.count("intermediate_size", 11008);
  o.tied = config.truth("tie_word_embeddings", false) ? Switch::kOn : Switch::kOff;
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

PublishedModel read_huggingface_config(const fs::path& path) {
  const ConfigReader config(path);
  const auto architecture = enum_from_name<Architecture>(config.text("model_type", ""));
  if (!architecture) {
    config.refuse("model_type", "gpt2 and llama");
  }
  const bool gpt2 = *architecture == Architecture::kGpt2;
  if (config.find("quantization_config") != nullptr) {
    config.refuse("quantization_config", "with floating-point weights, null; convert the model");
  }
  PublishedModel model = gpt2 ? gpt2_model(config) : llama_model(config);
  const nn::TransformerOptions& o = model.options;
  if (o.blocks > kMostBlocks) {
    config.refuse(gpt2 ? "n_layer" : "num_hidden_layers", fmt::format("at most {}", kMostBlocks));
  }
  if (gpt2 && o.width % o.heads != 0) {
    config.refuse("n_head", "numbers that divide n_embd");
  }
  if (!gpt2 &&
      (o.width % o.heads != 0 || o.heads % o.kv_heads != 0 || o.width / o.heads % 2 != 0)) {
    config.refuse("num_attention_heads",
                  "numbers that divide hidden_size into even heads, and that num_key_value_heads "
                  "divides");
  }
  model.options = resolved(model.options);
  return model;
}

namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kGeneration = "generation_config.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kBegin = "bos_token_id";
constexpr const char* kEnd = "eos_token_id";
constexpr const char* kPad = "pad_token_id";

/// The object in one of the texts; an empty one without the text.
nlohmann::json object_in(const train::ModelTexts& texts, const char* name) {
  const auto text = texts.find(name);
  const auto json = text == texts.end() ? std::nullopt : io::parse_json(text->second);
  return json && json->is_object() ? *json : nlohmann::json::object();
}

/// The ids of eos_token_id: a number, a list or null; nothing for another value.
std::optional<std::vector<std::int64_t>> ends_in(const nlohmann::json& config) {
  const nlohmann::json value = config.value(kEnd, nlohmann::json());
  std::vector<std::int64_t> ids;
  for (const nlohmann::json& id : value.is_array() ? value : nlohmann::json::array({value})) {
    if (const auto integer = io::integer_in(id)) {
      ids.push_back(*integer);
    } else if (!value.is_null()) {
      return std::nullopt;
    }
  }
  return ids;
}

}  // namespace

train::ModelTexts read_model_texts(const fs::path& directory) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20U;
  train::ModelTexts texts;
  for (const std::string name : kModelTexts) {
    const fs::path path = fs::weakly_canonical(directory / name);
    const auto text = io::read_text(path, ExitCode::kData, kMostBytes);
    if (!text) {
      continue;
    }
    const auto refuse = [&](const std::string& why) {
      fail(ExitCode::kData, "{} {}; copy it again, or remove it", (directory / name).string(), why);
    };
    if (name.ends_with(".json")) {
      const auto json = io::parse_json(*text);
      if (!json || !json->is_object()) {
        refuse("is no JSON object");
      } else if (!ends_in(*json)) {
        refuse(fmt::format("has the {} {}, a token id or a list of them was expected", kEnd,
                           printable(json->at(kEnd).dump())));
      }
    } else if (utf8_prefix(*text).bytes != text->size()) {
      refuse("is no UTF-8");
    }
    texts.emplace(name, *text);
  }
  return texts;
}

std::set<std::int64_t> end_tokens(const io::Checkpoint& checkpoint,
                                  const io::Tokenizer& tokenizer) {
  const train::ModelTexts texts = train::model_texts(checkpoint);
  std::set<std::int64_t> ends{tokenizer.separator()};
  for (const char* name : {kConfig, kGeneration}) {
    const auto ids = ends_in(object_in(texts, name)).value_or(std::vector<std::int64_t>());
    ends.insert(ids.begin(), ids.end());
  }
  nlohmann::json token = object_in(texts, kTokenizerConfig).value("eos_token", nlohmann::json());
  if (token.is_object()) {
    token = token.value("content", nlohmann::json());
  }
  if (token.is_string() && tokenizer.kind() > io::TokenizerKind::kChars) {
    const std::vector<std::int64_t> ids = tokenizer.encode(token.get<std::string>());
    if (ids.size() == 1) {
      ends.insert(ids.front());
    }
  }
  return ends;
}

nlohmann::json huggingface_config(const PublishedModel& model, io::StoredType type,
                                  const DocumentEnds& ends, const train::ModelTexts& texts) {
  const nn::TransformerOptions& o = model.options;
  nlohmann::json json = object_in(texts, kConfig);
  if (architecture_of(model) == Architecture::kGpt2) {
    json.update({{"architectures", {"GPT2LMHeadModel"}},
                 {"model_type", "gpt2"},
                 {"n_layer", o.blocks},
                 {"n_embd", o.width},
                 {"n_head", o.heads},
                 {"n_inner", o.hidden},
                 {"n_positions", o.context},
                 {"n_ctx", o.context},
                 {"vocab_size", o.vocabulary},
                 {"activation_function", o.mlp == nn::MlpChoice::kRelu ? "relu" : "gelu_new"},
                 {"layer_norm_epsilon", model.epsilon}});
    // Settings of training, like those of generation: without any here, they stay.
    for (const char* key : {"embd_pdrop", "resid_pdrop"}) {
      if (o.dropout > 0.0 || !json.contains(key)) {
        json[key] = o.dropout;
      }
    }
    json.emplace("attn_pdrop", 0.0);
  } else {
    // No weight depends on it, and training may have had shorter samples.
    const auto positions = io::integer_in(json.value("max_position_embeddings", nlohmann::json()));
    json.update({{"architectures", {"LlamaForCausalLM"}},
                 {"model_type", "llama"},
                 {"num_hidden_layers", o.blocks},
                 {"hidden_size", o.width},
                 {"num_attention_heads", o.heads},
                 {"num_key_value_heads", o.kv_heads},
                 {"intermediate_size", o.hidden},
                 {"max_position_embeddings", std::max(o.context, positions.value_or(0))},
                 {"vocab_size", o.vocabulary},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", model.epsilon},
                 {"rope_theta", o.rotary_base},
                 {"rope_scaling", rotary_json(o.rotary_scaling)},
                 {"attention_bias", false},
                 {"mlp_bias", false}});
    if (json.contains("rope_parameters")) {
      nlohmann::json& newer = json["rope_parameters"] = rotary_json(o.rotary_scaling);
      newer.emplace("rope_type", "default");
      newer["rope_theta"] = o.rotary_base;
    }
  }
  json["tie_word_embeddings"] = o.tied == Switch::kOn;
  json["torch_dtype"] = name_of(type);
  if (json.contains("dtype")) {
    json["dtype"] = name_of(type);
  }
  for (const auto& [key, id] : {std::pair(kBegin, ends.begin), std::pair(kEnd, ends.end)}) {
    if (id >= 0 || texts.empty()) {
      json.emplace(key, id >= 0 ? nlohmann::json(id) : nlohmann::json());
    }
  }
  return json;
}

nlohmann::json generation_config(const nlohmann::json& config) {
  nlohmann::json generation{{"_from_model_config", true}};
  for (const char* key : {kBegin, kEnd, kPad}) {
    if (config.contains(key) && !config.at(key).is_null()) {
      generation[key] = config.at(key);
    }
  }
  return generation;
}

}  // namespace strata::exchange
