#include "huggingface_config.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/io/tokenizer.hpp"

#include "families.hpp"

namespace strata::exchange {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelType = "model_type";
constexpr const char* kArchitectures = "architectures";
constexpr const char* kTextConfig = "text_config";

/// The model_type of a config.json; empty without one.
std::string model_type_in(const nlohmann::json& config) {
  const nlohmann::json type = config.value(kModelType, nlohmann::json());
  return type.is_string() ? type.get<std::string>() : "";
}

/// The config.json of the text part alone: text_config, and what the whole says of all its parts,
/// as token ids. Null for a model that is no composite, or a text_config that is no object.
nlohmann::json text_part(const nlohmann::json& whole) {
  const Composite* const composite = find_composite(model_type_in(whole));
  if (composite == nullptr || !whole.value(kTextConfig, nlohmann::json()).is_object()) {
    return nullptr;
  }
  nlohmann::json part = whole.at(kTextConfig);
  for (const auto& [key, value] : whole.items()) {
    const bool names_class = key == kModelType || key == kArchitectures || key == "auto_map";
    if (is_common(key) && !names_class && !value.is_null()) {
      part[key] = value;
    }
  }
  part.emplace(kModelType, composite->family);
  return part;
}

/// What models of other families have, and what strata computes in its place.
struct ForeignKey {
  std::string_view key;
  std::string_view within;  ///< of the key's object; empty: any value but null
  std::string_view computed;
};

constexpr std::array kForeignKeys{
    ForeignKey{"rope_scaling", "mrope_section", "rotary positions of one number for each token"},
    ForeignKey{"rope_parameters", "mrope_section", "rotary positions of one number for each token"},
    ForeignKey{"num_local_experts", "", "MLPs without experts"},
    ForeignKey{"num_experts", "", "MLPs without experts"},
    ForeignKey{"n_routed_experts", "", "MLPs without experts"},
    ForeignKey{"vision_config", "", "texts, without images"},
    ForeignKey{"audio_config", "", "texts, without sounds"}};

/// A key of a model of no family, or of its text_config, as in "num_experts is 16, strata computes
/// MLPs without experts"; empty where none is known.
std::string foreign_key_text(const nlohmann::json& config) {
  const nlohmann::json text = config.value(kTextConfig, nlohmann::json());
  for (const ForeignKey& foreign : kForeignKeys) {
    for (const nlohmann::json* place : {&config, &text}) {
      const auto found = place->find(foreign.key);
      const bool is_there =
          found != place->end() && !found->is_null() &&
          (foreign.within.empty() || (found->is_object() && found->contains(foreign.within)));
      if (is_there) {
        return fmt::format("{}{} is {}, strata computes {}",
                           place == &config ? "" : fmt::format("{}.", kTextConfig), foreign.key,
                           printable(found->dump(), 80), foreign.computed);
      }
    }
  }
  return "";
}

/// A key whose value strata does not compute, and what it computes.
struct RefusedKey {
  std::string key;
  std::string computed;
};

/// Reads the keys of a family's row.
std::optional<RefusedKey> read_keys(const Family& family, const nlohmann::json& config,
                                    PublishedModel& model) {
  model = {.options = family.defaults, .family = std::string(family.model_type)};
  for (const ConfigKey& key : family.keys) {
    const auto found = config.find(key.name);
    const nlohmann::json* const value = found == config.end() ? nullptr : &*found;
    const Computed computed = key.read ? key.read(value, config, model) : std::nullopt;
    if (computed) {
      return RefusedKey{key.name, *computed};
    }
  }
  model.options = resolved(model.options);
  return std::nullopt;
}

/// Whether a config.json reads to a model that computes what these lines do.
bool reads_to(const std::vector<std::string>& lines, const Family& family,
              const nlohmann::json& config) {
  PublishedModel model;
  return !read_keys(family, config, model) && have_same_weights(layer_lines(model), lines);
}

/// The keys of a family's row with the values of a model, beside those that it came with.
nlohmann::json with_all_keys(const Family& family, const PublishedModel& model,
                             const nlohmann::json& given) {
  nlohmann::json config = given;
  config[kArchitectures] = nlohmann::json::array({family.architecture});
  config[kModelType] = family.model_type;
  for (const ConfigKey& key : family.keys) {
    const auto found = given.find(key.name);
    if (key.written != Written::kWhereGiven || found != given.end()) {
      const nlohmann::json value = key.write(model, found == given.end() ? nullptr : &*found);
      if (!value.is_discarded()) {
        config[key.name] = value;
      }
    }
  }
  return config;
}

/// Whether the row names the key.
bool has_key(const Family& family, const std::string& key) {
  return is_ignored(family, key) ||
         std::ranges::find(family.keys, key, &ConfigKey::name) != family.keys.end();
}

/// A model's config.json of a family, read again; nothing where the row refuses a key.
std::optional<PublishedModel> through(const Family& family, const PublishedModel& model) {
  PublishedModel read;
  const nlohmann::json config = with_all_keys(family, model, nlohmann::json::object());
  return read_keys(family, config, read) ? std::nullopt : std::optional(std::move(read));
}

}  // namespace

std::string family_of(const PublishedModel& model, std::string_view came_as) {
  std::vector<const Family*> rows;
  for (const Family& family : families()) {
    rows.insert(family.model_type == came_as ? rows.begin() : rows.end(), &family);
  }
  const std::vector<std::string> lines = layer_lines(model);
  // The row that writes most of the lines, and the first line that it writes otherwise.
  struct Nearest {
    std::ptrdiff_t equal = -1;
    std::string family;
    std::string expected;
    std::string line;
  } nearest;
  for (const Family* family : rows) {
    const std::optional<PublishedModel> read = through(*family, model);
    if (!read) {
      continue;
    }
    const std::vector<std::string> others = layer_lines(*read);
    std::optional<std::size_t> first;
    std::ptrdiff_t equal = 0;
    for (std::size_t i = 0; i < lines.size() && i < others.size(); ++i) {
      if (have_same_weights({lines[i]}, {others[i]})) {
        ++equal;
      } else if (!first) {
        first = i;
      }
    }
    if (!first && lines.size() == others.size()) {
      return std::string(family->model_type);
    }
    if (first && equal > nearest.equal) {
      nearest = {equal, std::string(family->model_type), others[*first], lines[*first]};
    }
  }
  fail(ExitCode::kUsage,
       "the model is of none of the families {}: it has the layer \"{}\" where {} has \"{}\"; take "
       "it out with --format=safetensors",
       family_names(), nearest.line, nearest.family, nearest.expected);
}

PublishedModel read_huggingface_config(const fs::path& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20U;
  const auto text = io::read_text(fs::weakly_canonical(path), ExitCode::kData, kMostBytes);
  if (!text) {
    fail(ExitCode::kData, "{} is missing; a model of Hugging Face is a directory with it",
         path.string());
  }
  const auto config = io::parse_json(*text, io::RepeatedKeys::kRefused);
  if (!config || !config->is_object()) {
    fail(ExitCode::kData, "{} is no JSON object, or has a key twice; copy it again", path.string());
  }
  const std::string type = model_type_in(*config);
  const Composite* const composite = find_composite(type);
  const nlohmann::json part = text_part(*config);
  const bool is_part = !part.is_null();
  const nlohmann::json& keys = is_part ? part : *config;
  const auto value_of = [](const nlohmann::json& object, const std::string& key) {
    return object.contains(key) ? printable(object.at(key).dump()) : "missing";
  };
  // A key of the text part under the name that it has in the file.
  const auto in_file = [&](const std::string& key) {
    const bool is_outside = !is_part || (config->contains(key) && part.contains(key) &&
                                         config->at(key) == part.at(key));
    return is_outside ? printable(key) : fmt::format("{}.{}", kTextConfig, printable(key));
  };
  const auto refuse = [&](const std::string& key, const nlohmann::json& object,
                          const std::string& name, std::string_view computed) {
    fail(ExitCode::kData, "{}: {} is {}, strata computes {}", path.string(), name,
         value_of(object, key), computed);
  };
  const auto refuse_unknown = [&](const std::string& name, const nlohmann::json& value,
                                  std::string_view of) {
    fail(ExitCode::kData,
         "{}: {} is {}, a key that strata does not know of {}; if it says nothing about weights or "
         "logits, remove it",
         path.string(), name, printable(value.dump()), of);
  };
  if (composite != nullptr) {
    for (const auto& [key, value] : config->items()) {
      if (!is_common(key) && !is_ignored(*composite, key)) {
        refuse_unknown(printable(key), value, type);
      }
    }
    if (!is_part) {
      fail(ExitCode::kData, "{}: {} is {}, an object that describes the text part was expected",
           path.string(), kTextConfig, value_of(*config, kTextConfig));
    }
    if (model_type_in(part) != composite->family) {
      refuse(kModelType, part, in_file(kModelType), composite->family);
    }
  }
  const Family* const family = find_family(model_type_in(keys));
  if (family == nullptr) {
    const std::string known =
        fmt::format("{}, and the text part of {}", family_names(), composite_names());
    const std::string foreign = foreign_key_text(*config);
    fail(ExitCode::kData, "{}: {}{} is {}, strata computes {}", path.string(),
         foreign.empty() ? "" : foreign + "; ", kModelType, value_of(*config, kModelType), known);
  }
  PublishedModel model;
  if (const auto refused = read_keys(*family, keys, model)) {
    refuse(refused->key, keys, in_file(refused->key), refused->computed);
  }
  for (const auto& [key, value] : keys.items()) {
    if (!has_key(*family, key)) {
      refuse_unknown(in_file(key), value, family->model_type);
    }
  }
  model.part_of = is_part ? type : "";
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
    auto text = io::read_text(path, ExitCode::kData, kMostBytes);
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
      } else {
        const nlohmann::json part = name == kConfig ? text_part(*json) : nlohmann::json();
        const nlohmann::json& described = part.is_null() ? *json : part;
        if (!ends_in(described)) {
          refuse(fmt::format("has the {} {}, a token id or a list of them was expected", kEnd,
                             printable(described.at(kEnd).dump())));
        }
        if (!part.is_null()) {
          text = part.dump(2);
        }
      }
    } else if (utf8_prefix(*text).bytes != text->size()) {
      refuse("is no UTF-8");
    }
    texts.emplace(name, *text);
  }
  return texts;
}

std::string came_as(const train::ModelTexts& texts) {
  return model_type_in(object_in(texts, kConfig));
}

std::set<std::int64_t> end_tokens(const io::Checkpoint& checkpoint,
                                  const io::Tokenizer& tokenizer) {
  const train::ModelTexts texts = train::model_texts(checkpoint);
  std::set<std::int64_t> ends{tokenizer.separator()};
  for (const char* name : {kConfig, kGeneration}) {
    const auto ids = ends_in(object_in(texts, name)).value_or(std::vector<std::int64_t>());
    ends.insert(ids.begin(), ids.end());
  }
  const std::string end =
      io::token_text(object_in(texts, kTokenizerConfig).value("eos_token", nlohmann::json()));
  if (tokenizer.kind() > io::TokenizerKind::kChars) {
    const std::vector<std::int64_t> ids = tokenizer.encode(end);
    if (ids.size() == 1) {
      ends.insert(ids.front());
    }
  }
  return ends;
}

io::PublishedTemplate learned_template(const io::Checkpoint& checkpoint) {
  const std::optional<io::DatasetInfo> data = train::data_of(checkpoint);
  return data && !data->chat_template.empty()
             ? io::PublishedTemplate{.name = data->chat_template, .file = {}, .difference = {}}
             : io::published_template(train::model_texts(checkpoint));
}

nlohmann::json huggingface_config(const PublishedModel& model, io::StoredType type,
                                  const DocumentEnds& ends, const train::ModelTexts& texts) {
  const Family& family = row_of(model);
  nlohmann::json given = object_in(texts, kConfig);
  if (const std::string other = model_type_in(given);
      !other.empty() && other != family.model_type) {
    const nlohmann::json all = given;
    for (const auto& [key, value] : all.items()) {
      if (!has_key(family, key)) {
        given.erase(key);
      }
    }
  }
  const std::vector<std::string> lines = layer_lines(model);
  nlohmann::json json = with_all_keys(family, model, given);
  for (const ConfigKey& key : family.keys) {
    if (key.written == Written::kWhereNeeded) {
      nlohmann::json without = json;
      if (given.contains(key.name)) {
        without[key.name] = given.at(key.name);
      } else {
        without.erase(key.name);
      }
      json = reads_to(lines, family, without) ? std::move(without) : json;
    }
  }
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
