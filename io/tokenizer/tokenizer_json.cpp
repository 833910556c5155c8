#include "tokenizer/tokenizer_json.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"

#include "tokenizer/byte_characters.hpp"
#include "tokenizer/split_words.hpp"

namespace strata::io {
namespace {

using nlohmann::json;

constexpr std::string_view kSupported =
    "strata reads byte pairs with the words of GPT-2 or Llama 3; convert the text to ids with the "
    "program that wrote the file, and import them with --format=tokens-...";

/// The member of an object; null where it is absent or `object` is none.
const json& member(const json& object, const char* name) {
  static const json kNull;
  if (!object.is_object()) {
    return kNull;
  }
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

/// A value on one line of a message.
std::string shown(const json& value) {
  return printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string type_of(const json& part) {
  const json& type = member(part, "type");
  return type.is_string() ? type.get<std::string>() : "";
}

bool is_off(const json& value) {
  return value.is_null() || value == json("") || value == json(false) || value == json(0.0);
}

class Reader {
 public:
  Reader(const json& file, const std::filesystem::path& path) : file_(file), path_(path) {}

  BytePairTables read() {
    if (!member(file_, "model").is_object()) {
      refuse(
          "has no model; a Hugging Face tokenizer.json was expected (GPT-2's encoder.json is "
          "given with --tokenizer=gpt2 --encoder=... --merges=...)");
    }
    require_byte_pairs();
    tables_.pattern = pattern();
    tables_.order = MergeOrder::kListed;
    tables_.whole_words =
        member(model(), "ignore_merges") == json(true) ? WholeWords::kYes : WholeWords::kNo;
    read_tokens();
    require_bytes(tables_.tokens, path_);
    read_merges();
    read_post_processor(member(file_, "post_processor"));
    return std::move(tables_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ExitCode::kData, "{} {}", path_.string(),
         fmt::vformat(format, fmt::make_format_args(args...)));
  }

  [[nodiscard]] const json& model() const { return member(file_, "model"); }

  void require_byte_pairs() const {
    const std::string type = type_of(model());
    // Files of the first versions leave the type out.
    if (type != "BPE" && !(type.empty() && model().contains("merges"))) {
      refuse("has a model of type {}; {}", shown(member(model(), "type")), kSupported);
    }
    for (const char* name :
         {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
      if (!is_off(member(model(), name))) {
        refuse("has a model with {} {}; {}", name, shown(member(model(), name)), kSupported);
      }
    }
    const json& normalizer = member(file_, "normalizer");
    if (!normalizer.is_null()) {
      refuse("has the normalizer {}; {}", shown(normalizer), kSupported);
    }
    const json& decoder = member(file_, "decoder");
    if (!decoder.is_null() && type_of(decoder) != "ByteLevel") {
      refuse("has the decoder {}; {}", shown(decoder), kSupported);
    }
  }

  [[nodiscard]] SplitPattern pattern() const {
    const json& splitter = member(file_, "pre_tokenizer");
    const json& steps = member(splitter, "pretokenizers");
    const bool alone = type_of(splitter) == "ByteLevel";
    const bool both = type_of(splitter) == "Sequence" && steps.is_array() && steps.size() == 2 &&
                      type_of(steps[0]) == "Split" && type_of(steps[1]) == "ByteLevel";
    if (!alone && !both) {
      refuse("has the pre_tokenizer {}; {}", shown(splitter), kSupported);
    }
    const json& bytes = alone ? splitter : steps[1];
    const bool splits = member(bytes, "use_regex") != json(false);
    if (!is_off(member(bytes, "add_prefix_space"))) {
      refuse("has a pre_tokenizer ByteLevel with add_prefix_space; {}", kSupported);
    }
    if (splits != alone) {
      refuse("has a pre_tokenizer ByteLevel with use_regex {}; {}",
             alone ? "off and no Split before it" : "on and a Split before it", kSupported);
    }
    if (alone) {
      return SplitPattern::kGpt2;
    }
    const json& expression = member(member(steps[0], "pattern"), "Regex");
    if (member(steps[0], "behavior") != json("Isolated") || !is_off(member(steps[0], "invert"))) {
      refuse("has a pre_tokenizer Split with behavior {} and invert {}; {}",
             shown(member(steps[0], "behavior")), shown(member(steps[0], "invert")), kSupported);
    }
    if (expression == json(kGpt2Expression)) {
      return SplitPattern::kGpt2;
    }
    if (expression == json(kLlama3Expression)) {
      return SplitPattern::kLlama3;
    }
    refuse("has a pre_tokenizer Split with the pattern {}; {}", shown(member(steps[0], "pattern")),
           kSupported);
  }

  /// The texts of added tokens with their ids.
  [[nodiscard]] std::unordered_map<std::string, std::int64_t> added_tokens() const {
    std::unordered_map<std::string, std::int64_t> added;
    const json& list = member(file_, "added_tokens");
    if (!list.is_null() && !list.is_array()) {
      refuse("has added_tokens that are no list");
    }
    for (const json& token : list) {
      const json& content = member(token, "content");
      const auto id = integer_in(member(token, "id"));
      if (!content.is_string() || content == json("") || !id) {
        refuse("has the added token {}; a content and an id were expected", shown(token));
      }
      if (!added.emplace(content.get<std::string>(), *id).second) {
        refuse("adds the token {} twice", shown(content));
      }
    }
    return added;
  }

  void read_tokens() {
    const json& vocabulary = member(model(), "vocab");
    if (!vocabulary.is_object()) {
      refuse("has a model without the object vocab");
    }
    const auto added = added_tokens();
    std::size_t count = vocabulary.size();
    for (const auto& [text, id] : added) {
      count += vocabulary.contains(text) ? 0 : 1;
    }
    tables_.tokens.resize(count);
    for (const auto& [text, value] : vocabulary.items()) {
      const auto special = added.find(text);
      const auto id = integer_in(value);
      if (special != added.end() && special->second != id) {
        refuse("gives the token {} the ids {} and {}", shown(text), shown(value), special->second);
      }
      const auto bytes = special != added.end() ? text : characters_.bytes_of(text);
      if (!bytes || bytes->empty()) {
        refuse("has the token {}, which is not written in GPT-2's byte characters; {}", shown(text),
               kSupported);
      }
      ids_.emplace(text, put(id.value_or(-1), *bytes, text));
    }
    for (const auto& [text, id] : added) {
      tables_.special.push_back(vocabulary.contains(text) ? ids_.at(text) : put(id, text, text));
    }
    std::ranges::sort(tables_.special);
    std::unordered_set<std::string_view> distinct;
    for (const std::string& token : tables_.tokens) {
      if (!distinct.insert(token).second) {
        refuse("has two tokens with the bytes {}", quoted_text(token));
      }
    }
    for (const char* separator : {kGpt2Separator, "<|end_of_text|>"}) {
      const auto found = added.find(separator);
      if (tables_.separator < 0 && found != added.end()) {
        tables_.separator = found->second;
      }
    }
  }

  std::uint32_t put(std::int64_t id, const std::string& bytes, const std::string& text) {
    if (id < 0 || id >= std::ssize(tables_.tokens)) {
      refuse("gives the token {} the id {}; {} tokens have the ids 0 to {} without holes",
             shown(text), id, tables_.tokens.size(), tables_.tokens.size() - 1);
    }
    std::string& token = tables_.tokens[static_cast<std::size_t>(id)];
    if (!token.empty()) {
      refuse("gives the id {} to two tokens; one is {}", id, shown(text));
    }
    token = bytes;
    return static_cast<std::uint32_t>(id);
  }

  void read_merges() {
    const json& merges = member(model(), "merges");
    if (!merges.is_array()) {
      refuse("has a model without the list merges");
    }
    std::unordered_set<std::uint64_t> known;
    for (const json& merge : merges) {
      const auto [left, right] = parts_of(merge);
      const std::array<std::uint32_t, 2> ids{id_of(left, merge), id_of(right, merge)};
      static_cast<void>(id_of(left + right, merge));
      if (!known.insert(std::uint64_t{ids[0]} << 32U | ids[1]).second) {
        refuse("has merge {}, {}, twice", tables_.merges.size(), shown(merge));
      }
      tables_.merges.push_back(ids);
    }
  }

  /// Adds what a post_processor puts around a text.
  void read_post_processor(const json& processor) {
    const std::string type = type_of(processor);
    if (processor.is_null() || type == "ByteLevel") {
      return;  // ByteLevel changes offsets in the text alone
    }
    const json& steps = member(processor, "processors");
    if (type == "Sequence" && steps.is_array()) {
      for (const json& step : steps) {
        read_post_processor(step);
      }
      return;
    }
    if (type != "TemplateProcessing") {
      refuse(
          "has a post_processor of type {}; strata applies TemplateProcessing, ByteLevel and "
          "Sequence, or null for none; {}",
          shown(member(processor, "type")), kSupported);
    }
    read_template(processor);
  }

  /// A template of a single text: special tokens around the sequence A.
  void read_template(const json& processor) {
    const json& pieces = member(processor, "single");
    DocumentFrame frame;
    std::int64_t texts = 0;
    for (const json& piece : pieces.is_array() ? pieces : json::array()) {
      const json& special = member(member(piece, "SpecialToken"), "id");
      const json& ids = special.is_string() ? member(member(member(processor, "special_tokens"),
                                                            special.get<std::string>().c_str()),
                                                     "ids")
                                            : special;
      if (!special.is_string() && member(member(piece, "Sequence"), "id") == json("A")) {
        ++texts;
        continue;
      }
      if (!ids.is_array()) {
        refuse("has a template with {}; $A and special tokens with their ids were expected",
               shown(piece));
      }
      for (const json& id : ids) {
        const std::int64_t value = integer_in(id).value_or(-1);
        if (value < 0 || value >= std::ssize(tables_.tokens)) {
          refuse("has a template with the token {} of id {}; the ids are 0 to {}", shown(special),
                 shown(id), tables_.tokens.size() - 1);
        }
        if (std::ranges::find(tables_.special, static_cast<std::uint32_t>(value)) ==
            tables_.special.end()) {
          refuse(
              "has a template with the token {} of id {}, which is no special token of its "
              "added_tokens",
              shown(special), shown(id));
        }
        (texts > 0 ? frame.after : frame.before).push_back(static_cast<std::uint32_t>(value));
      }
    }
    if (texts != 1) {
      refuse("has the template {} for a single text; $A once was expected", shown(pieces));
    }
    DocumentFrame& all = tables_.frame;
    all.before.insert(all.before.begin(), frame.before.begin(), frame.before.end());
    all.after.insert(all.after.end(), frame.after.begin(), frame.after.end());
  }

  [[nodiscard]] std::pair<std::string, std::string> parts_of(const json& merge) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      refuse("has merge {}, {}; two tokens were expected", tables_.merges.size(), shown(merge));
    }
    return {text.substr(0, space), text.substr(space + 1)};
  }

  [[nodiscard]] std::uint32_t id_of(const std::string& text, const json& merge) const {
    const auto id = ids_.find(text);
    if (id == ids_.end()) {
      refuse("has merge {}, {}: {} is no token of its vocabulary", tables_.merges.size(),
             shown(merge), shown(text));
    }
    return id->second;
  }

  const json& file_;
  const std::filesystem::path& path_;
  ByteCharacters characters_;
  std::unordered_map<std::string, std::uint32_t> ids_;  ///< of the texts in the file
  BytePairTables tables_;
};

json splitter_json(SplitPattern pattern) {
  json bytes = {{"type", "ByteLevel"},
                {"add_prefix_space", false},
                {"trim_offsets", true},
                {"use_regex", pattern == SplitPattern::kGpt2}};
  if (pattern == SplitPattern::kGpt2) {
    return bytes;
  }
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kLlama3Expression}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", json::array({split, std::move(bytes)})}};
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

}  // namespace

BytePairTables parse_tokenizer_json(std::string_view text, const std::filesystem::path& path) {
  const std::optional<json> file = parse_json(text);
  if (!file) {
    fail(ExitCode::kData,
         "{} is not valid JSON; it may be truncated: copy the tokenizer.json again", path.string());
  }
  return Reader(*file, path).read();
}

std::string tokenizer_json(const BytePairTables& tables) {
  const ByteCharacters characters;
  std::vector<std::string> texts;
  json vocabulary = json::object();
  json added = json::array();
  for (std::size_t id = 0; id < tables.tokens.size(); ++id) {
    const std::string& token = tables.tokens[id];
    const bool special = std::ranges::binary_search(tables.special, id);
    texts.push_back(special ? token : characters.text_of(token));
    vocabulary[texts.back()] = id;
    if (special) {
      added.push_back({{"id", id},
                       {"content", token},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
  }
  json merges = json::array();
  for (const auto [left, right] : tables.merges) {
    merges.push_back(texts[left] + ' ' + texts[right]);
  }
  const json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", nullptr},
      {"pre_tokenizer", splitter_json(tables.pattern)},
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
  return file.dump(1, ' ', false, json::error_handler_t::replace) + '\n';
}

}  // namespace strata::io
