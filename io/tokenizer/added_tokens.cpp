#include "tokenizer/added_tokens.hpp"

#include <algorithm>
#include <array>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"
#include "strata/io/tokenizer.hpp"

#include "files/input_stream.hpp"
#include "tokenizer/byte_characters.hpp"

namespace strata::io {
namespace {

using nlohmann::json;

/// The flags with their names in the files.
constexpr std::array<std::pair<const char*, bool AddedToken::*>, 5> kFlags{
    {{"single_word", &AddedToken::single_word},
     {"lstrip", &AddedToken::lstrip},
     {"rstrip", &AddedToken::rstrip},
     {"normalized", &AddedToken::normalized},
     {"special", &AddedToken::special}}};

/// A token as the files write it, with the flags that they leave out as in `token`.
AddedToken token_of(const json& value, std::int64_t id, AddedToken token, const std::string& name) {
  constexpr std::int64_t kMostIds = std::int64_t{1} << 24U;
  const json content = value.is_object() ? value.value("content", json()) : json();
  if (!content.is_string() || content == json("") || id < 0 || id >= kMostIds) {
    fail(ExitCode::kData, "{} has the added token {}; a content and an id were expected", name,
         shown(value));
  }
  token.id = static_cast<std::uint32_t>(id);
  token.text = content.get<std::string>();
  for (const auto& [flag, member] : kFlags) {
    const json set = value.value(flag, json(token.*member));
    if (!set.is_boolean()) {
      fail(ExitCode::kData, "{} has the added token {} with {} {}; true or false was expected",
           name, shown(content), flag, shown(set));
    }
    token.*member = set.get<bool>();
  }
  return token;
}

void sort_by_id(std::vector<AddedToken>& tokens, const std::string& name) {
  std::ranges::stable_sort(tokens, {}, &AddedToken::id);
  std::unordered_set<std::string_view> texts;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && tokens[i - 1].id == tokens[i].id) {
      fail(ExitCode::kData, "{} gives the id {} to two tokens; one is {}", name, tokens[i].id,
           quoted_text(tokens[i].text));
    }
    if (!texts.insert(tokens[i].text).second) {
      fail(ExitCode::kData, "{} adds the token {} twice", name, quoted_text(tokens[i].text));
    }
  }
}

/// The texts to which a tokenizer_config.json or special_tokens_map.json gives a role.
void add_roles(const json& config, std::unordered_set<std::string>& roles) {
  for (const auto& [key, value] : config.items()) {
    if (key == "additional_special_tokens") {
      for (const json& token : value) {
        roles.insert(token_text(token));
      }
    } else if (key.ends_with("_token")) {
      roles.insert(token_text(value));
    }
  }
}

}  // namespace

std::string token_text(const json& value) {
  const json text = value.is_object() ? value.value("content", json()) : value;
  return text.is_string() ? text.get<std::string>() : "";
}

const AddedToken* find_added(std::span<const AddedToken> tokens, std::size_t id) {
  const auto token = std::ranges::lower_bound(tokens, id, {}, &AddedToken::id);
  return token != tokens.end() && token->id == id ? &*token : nullptr;
}

std::string shown(const json& value) {
  return printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

json added_tokens_json(std::span<const AddedToken> tokens) {
  json list = json::array();
  for (const AddedToken& token : tokens) {
    list.push_back({{"id", token.id}, {"content", token.text}});
    for (const auto& [flag, member] : kFlags) {
      list.back()[flag] = token.*member;
    }
  }
  return list;
}

std::vector<AddedToken> added_tokens_of(const json& list, const std::string& name) {
  if (!list.is_null() && !list.is_array()) {
    fail(ExitCode::kData, "{} has added_tokens that are no list", name);
  }
  std::vector<AddedToken> tokens;
  for (const json& token : list) {
    const json id = token.is_object() ? token.value("id", json()) : json();
    tokens.push_back(token_of(token, integer_in(id).value_or(-1), {}, name));
  }
  sort_by_id(tokens, name);
  return tokens;
}

json object_beside(const std::filesystem::path& file, const char* name) {
  const std::filesystem::path path = file.parent_path() / name;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return nullptr;
  }
  std::optional<json> object = parse_json(InputStream(path).read_whole(kMostTokenizerBytes));
  if (!object || !object->is_object()) {
    fail(ExitCode::kData, "{} is no JSON object; copy it again, or remove it", path.string());
  }
  return *std::move(object);
}

std::vector<AddedToken> added_tokens_beside(const std::filesystem::path& file) {
  constexpr const char* kConfig = "tokenizer_config.json";
  constexpr const char* kAdded = "added_tokens.json";
  const auto token_in = [&](const char* name, const json& value, std::int64_t id, bool special) {
    return token_of(value, id, {.id = 0, .text = "", .special = special, .normalized = !special},
                    (file.parent_path() / name).string());
  };
  const json config = object_beside(file, kConfig);
  std::vector<AddedToken> tokens;
  const json decoder = config.is_null() ? json() : config.value("added_tokens_decoder", json());
  for (const auto& [key, value] : decoder.items()) {
    std::int64_t id = -1;
    const bool special = value.is_object() && value.value("special", json(false)) == json(true);
    tokens.push_back(token_in(kConfig, value, parse_int64(key, id) ? id : -1, special));
  }
  const json added = object_beside(file, kAdded);
  std::unordered_set<std::string> roles;
  add_roles(config, roles);
  add_roles(object_beside(file, "special_tokens_map.json"), roles);
  for (const auto& [text, id] : added.items()) {
    const AddedToken token =
        token_in(kAdded, {{"content", text}}, integer_in(id).value_or(-1), roles.contains(text));
    // The other file says more about it.
    if (std::ranges::none_of(tokens, [&](const AddedToken& other) {
          return other.id == token.id && other.text == token.text;
        })) {
      tokens.push_back(token);
    }
  }
  sort_by_id(tokens, file.parent_path().string());
  return tokens;
}

void add_tokens(std::span<const AddedToken> more, const AddedTo& vocabulary,
                std::vector<AddedToken>& tokens) {
  const std::int64_t most = 2 * (vocabulary.ids + std::ssize(more));
  for (const AddedToken& token : more) {
    const auto known = std::ranges::find(tokens, token.text, &AddedToken::text);
    const std::int64_t id =
        known != tokens.end() ? std::int64_t{known->id} : vocabulary.id_of(token.text);
    const std::string there = token.id < vocabulary.ids ? vocabulary.text_of(token.id) : "";
    if ((id >= 0 && id != token.id) || (!there.empty() && there != token.text)) {
      fail(
          ExitCode::kData,
          "the files beside {} give the token {} the id {}, and it gives {}; use files that belong "
          "together",
          vocabulary.name, quoted_text(token.text), token.id,
          id >= 0 ? fmt::format("the token the id {}", id)
                  : fmt::format("the id to {}", quoted_text(there)));
    }
    if (token.id >= most) {
      fail(ExitCode::kData,
           "the files beside {} give the token {} the id {}; ids below {} were expected",
           vocabulary.name, quoted_text(token.text), token.id, most);
    }
    if (known == tokens.end()) {
      tokens.push_back(token);
    }
  }
  std::ranges::sort(tokens, {}, &AddedToken::id);
}

std::int64_t ids_with(std::span<const AddedToken> tokens, std::int64_t ids) {
  return tokens.empty() ? ids : std::max(ids, std::int64_t{tokens.back().id} + 1);
}

}  // namespace strata::io
