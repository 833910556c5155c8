#include "tokenizer/tokenizer_json.hpp"

#include <cctype>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"

#include "tokenizer/added_tokens.hpp"
#include "tokenizer/byte_characters.hpp"
#include "tokenizer/split_words.hpp"

namespace strata::io {
namespace {

using nlohmann::json;

json splits_json(const std::vector<SplitStep>& splits) {
  json list = json::array();
  for (const SplitStep& step : splits) {
    list.push_back({{"type", "Split"},
                    {"pattern", {{"Regex", step.expression}}},
                    {"behavior", step.kept == Kept::kAll ? "Isolated" : "Removed"},
                    {"invert", step.kept == Kept::kMatches}});
  }
  return list;
}

json splitter_json(const std::vector<SplitStep>& splits) {
  const bool gpt2 = splits == BytePairTables().splits;
  json bytes = {{"type", "ByteLevel"},
                {"add_prefix_space", false},
                {"trim_offsets", true},
                {"use_regex", gpt2}};
  if (gpt2) {
    return bytes;
  }
  json list = splits_json(splits);
  list.push_back(std::move(bytes));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(list)}};
}

/// The post_processor that puts the frame around a text.
json template_json(const BytePairTables& tables) {
  if (tables.frame.empty()) {
    return nullptr;
  }
  json special = json::object();
  json single = json::array();
  const auto add = [&](const std::vector<std::uint32_t>& ids) {
    for (const std::uint32_t id : ids) {
      const std::string& token = tables.tokens[id];
      special[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
      single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    }
  };
  add(tables.frame.before);
  const auto text = [](const char* name, int type) {
    return json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  single.push_back(text("A", 0));
  add(tables.frame.after);
  json pair = single;
  pair.push_back(text("B", 1));
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(special)}};
}

/// The model of tokens of characters.
json model_json(const BytePairTables& tables, const json& flags,
                const std::vector<std::string>& texts, json vocabulary, json merges) {
  const json& unknown = flags.at("unk_id");
  json model = {{"byte_fallback", flags.at("byte_fallback")}};
  if (!tables.scores.empty()) {
    json list = json::array();
    for (std::size_t id = 0; id < tables.scores.size(); ++id) {
      list.push_back({texts[id], tables.scores[id]});
    }
    model.update({{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", std::move(list)}});
    return model;
  }
  model.update(
      {{"type", "BPE"},
       {"dropout", nullptr},
       {"unk_token", unknown.is_null() ? json() : json(texts.at(unknown.get<std::size_t>()))},
       {"continuing_subword_prefix", nullptr},
       {"end_of_word_suffix", nullptr},
       {"fuse_unk", flags.at("fuse_unk")},
       {"ignore_merges", flags.at("ignore_merges")},
       {"vocab", std::move(vocabulary)},
       {"merges", std::move(merges)}});
  return model;
}

}  // namespace

const json& member(const json& object, const char* name) {
  static const json kNull;
  if (!object.is_object()) {
    return kNull;
  }
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::string type_of(const json& part) {
  const json& type = member(part, "type");
  return type.is_string() ? type.get<std::string>() : "";
}

bool is_off(const json& value) {
  return value.is_null() || value == json("") || value == json(false) || value == json(0.0);
}

std::string expression_of(std::string_view text) {
  std::string expression;
  for (const char character : text) {
    const bool literal = static_cast<unsigned char>(character) >= 0x80 || character <= ' ' ||
                         std::isalnum(static_cast<unsigned char>(character)) != 0;
    expression += literal ? std::string(1, character) : std::string{'\\', character};
  }
  return expression;
}

SplitStep split_of(const json& step, const std::string& name) {
  const json& pattern = member(step, "pattern");
  const json& behavior = member(step, "behavior");
  const bool text = member(pattern, "String").is_string();
  const json& expression = member(pattern, text ? "String" : "Regex");
  const bool inverted = !is_off(member(step, "invert"));
  if (!expression.is_string() || (behavior != json("Isolated") && behavior != json("Removed"))) {
    fail(ExitCode::kData,
         "{} has a pre_tokenizer Split with the pattern {} and the behavior {}; strata reads a "
         "Regex or a String that is Isolated or Removed",
         name, shown(pattern), shown(behavior));
  }
  SplitStep split{expression.get<std::string>(), behavior == json("Isolated") ? Kept::kAll
                                                 : inverted                   ? Kept::kMatches
                                                                              : Kept::kRest};
  if (text) {
    split.expression = expression_of(expression.get<std::string>());
  }
  try {
    const Expression compiled(split.expression);
  } catch (const Error& refusal) {
    fail(ExitCode::kData, "{} has a pre_tokenizer Split that strata cannot apply: {}", name,
         refusal.what());
  }
  return split;
}

std::string text_of(const std::vector<SplitStep>& splits) {
  for (const auto& [name, expression] : kPublishedExpressions) {
    if (splits == std::vector<SplitStep>{{std::string(expression)}}) {
      return std::string(name);
    }
  }
  return splits_json(splits).dump();
}

std::vector<SplitStep> splits_of(const std::string& text, const std::string& name) {
  for (const auto& [published, expression] : kPublishedExpressions) {
    if (published == text) {
      return {{std::string(expression)}};
    }
  }
  const json steps = parse_json(text).value_or(json());
  if (!steps.is_array() || steps.empty()) {
    fail(ExitCode::kData, "{} splits text by \"{}\"; a list of Split was expected", name,
         printable(text));
  }
  std::vector<SplitStep> splits;
  for (const json& step : steps) {
    splits.push_back(split_of(step, name));
  }
  return splits;
}

std::string tokenizer_json(const BytePairTables& tables) {
  const ByteCharacters characters;
  std::vector<std::string> texts;
  json vocabulary = json::object();
  for (std::size_t id = 0; id < tables.tokens.size(); ++id) {
    const std::string& token = tables.tokens[id];
    const bool added = is_added(tables.added, id);
    texts.push_back(added || tables.characters ? token : characters.text_of(token));
    if (!token.empty()) {
      vocabulary[texts.back()] = id;
    }
  }
  json merges = json::array();
  for (const auto [left, right] : tables.merges) {
    // Tokens of characters may hold a space.
    merges.push_back(tables.characters ? json{texts[left], texts[right]}
                                       : json(texts[left] + ' ' + texts[right]));
  }
  json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens_json(tables.added)},
      {"normalizer", tables.normalizer == Normalizer::kNfc ? json{{"type", "NFC"}} : json()},
      {"pre_tokenizer", splitter_json(tables.splits)},
      {"post_processor", template_json(tables)},
      {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", tables.whole_words == WholeWords::kYes},
        {"vocab", std::move(vocabulary)},
        {"merges", std::move(merges)}}}};
  if (tables.characters) {
    json rules = json::parse(tables.characters->text);
    json& model = file["model"];
    model = model_json(tables, rules.at("model"), texts, std::move(model["vocab"]),
                       std::move(model["merges"]));
    rules.erase("model");
    file.update(rules);
  }
  return file.dump(1, ' ', false, json::error_handler_t::replace) + '\n';
}

}  // namespace strata::io
