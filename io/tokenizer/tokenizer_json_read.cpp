#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"

#include "tokenizer/added_tokens.hpp"
#include "tokenizer/byte_characters.hpp"
#include "tokenizer/character_rules.hpp"
#include "tokenizer/split_words.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace strata::io {
namespace {

using nlohmann::json;

/// The list [[token, score], ...] as an object of ids.
json ids_in(const json& list) {
  json ids = json::object();
  for (const json& token : list) {
    ids[token[0].get<std::string>()] = ids.size();
  }
  return ids;
}

class TokenizerReader {
 public:
  TokenizerReader(const json& file, const std::filesystem::path& path)
      : file_(file), path_(path), has_bytes_(has_bytes()) {}

  BytePairTables read() {
    if (!member(file_, "model").is_object()) {
      refuse(
          "has no model; a Hugging Face tokenizer.json was expected (GPT-2's encoder.json is "
          "given with --tokenizer=gpt2 --encoder=... --merges=...)");
    }
    if (!has_bytes_) {
      return read_characters();
    }
    require_byte_pairs();
    tables_.normalizer = normalizer(member(file_, "normalizer"));
    tables_.splits = splits();
    tables_.order = MergeOrder::kListed;
    tables_.whole_words =
        member(model(), "ignore_merges") == json(true) ? WholeWords::kYes : WholeWords::kNo;
    read_tokens(member(model(), "vocab"));
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

  /// Whether tokens are of bytes; else they are of characters.
  [[nodiscard]] bool has_bytes() const {
    const auto names = [](const json& part) {
      return part.dump(-1, ' ', false, json::error_handler_t::replace).find("\"ByteLevel\"") !=
             std::string::npos;
    };
    return names(member(file_, "pre_tokenizer")) || names(member(file_, "decoder"));
  }

  [[nodiscard]] bool is_byte_pairs() const {
    const std::string type = type_of(model());
    // Files of the first versions leave the type out.
    return type == "BPE" || (type.empty() && model().contains("merges"));
  }

  void require_off(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (!is_off(member(model(), name))) {
        refuse("has a model with {} {}; {}", name, shown(member(model(), name)), kSupported);
      }
    }
  }

  BytePairTables read_characters() {
    const bool is_unigram = type_of(model()) == "Unigram";
    if (!is_unigram && !is_byte_pairs()) {
      refuse("has a model of type {}; {}", shown(member(model(), "type")), kSupported);
    }
    require_off({"dropout", "continuing_subword_prefix", "end_of_word_suffix"});
    if (is_unigram) {
      read_scores();
      read_tokens(ids_in(member(model(), "vocab")));
    } else {
      read_tokens(member(model(), "vocab"));
      read_merges();
    }
    json rules = json::object();
    for (const char* part : {"normalizer", "pre_tokenizer", "decoder"}) {
      rules[part] = member(file_, part);
    }
    for (const char* flag : {"byte_fallback", "fuse_unk", "ignore_merges"}) {
      const json& value = member(model(), flag);
      if (!value.is_null() && !value.is_boolean()) {
        refuse("has a model with {} {}; true or false was expected", flag, shown(value));
      }
      rules["model"][flag] = value == json(true);
    }
    rules["model"]["unk_id"] = is_unigram ? member(model(), "unk_id") : unknown_id();
    set_rules(rules, path_.string(), tables_);
    read_post_processor(member(file_, "post_processor"));
    return std::move(tables_);
  }

  /// Of a unigram model, whose vocabulary is a list by id.
  void read_scores() {
    const json& vocabulary = member(model(), "vocab");
    if (!vocabulary.is_array() || vocabulary.empty()) {
      refuse("has a model Unigram without the list vocab");
    }
    std::unordered_set<std::string> distinct;
    for (const json& token : vocabulary) {
      if (!token.is_array() || token.size() != 2 || !token[0].is_string() ||
          !token[1].is_number()) {
        refuse("has token {}, {}; a text and its score were expected", tables_.scores.size(),
               shown(token));
      }
      if (!distinct.insert(token[0].get<std::string>()).second) {
        refuse("has the token {} twice", shown(token[0]));
      }
      tables_.scores.push_back(token[1].get<double>());
    }
  }

  /// The id of the unk_token of byte pairs; null without one.
  [[nodiscard]] json unknown_id() const {
    const json& token = member(model(), "unk_token");
    if (is_off(token)) {
      return nullptr;
    }
    const auto id = token.is_string() ? ids_.find(token.get<std::string>()) : ids_.end();
    if (id == ids_.end()) {
      refuse("has the unk_token {}, which is no token of its vocabulary", shown(token));
    }
    return id->second;
  }

  void require_byte_pairs() const {
    if (!is_byte_pairs()) {
      refuse("has a model of type {}; {}", shown(member(model(), "type")), kSupported);
    }
    require_off({"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"});
    const json& decoder = member(file_, "decoder");
    if (!decoder.is_null() && type_of(decoder) != "ByteLevel") {
      refuse("has the decoder {}; {}", shown(decoder), kSupported);
    }
  }

  [[nodiscard]] Normalizer normalizer(const json& value) const {
    const json& steps = member(value, "normalizers");
    if (value.is_null() || (type_of(value) == "Sequence" && steps == json::array())) {
      return Normalizer::kNone;
    }
    if (type_of(value) == "Sequence" && steps.is_array() && steps.size() == 1) {
      return normalizer(steps[0]);
    }
    if (type_of(value) != "NFC") {
      refuse("has the normalizer {}; strata applies NFC, or null for none; {}", shown(value),
             kSupported);
    }
    return Normalizer::kNfc;
  }

  [[nodiscard]] std::vector<SplitStep> splits() const {
    const json& splitter = member(file_, "pre_tokenizer");
    const json& list = member(splitter, "pretokenizers");
    std::vector<SplitStep> splits;
    bool bytes = false;
    for (const json& step :
         type_of(splitter) == "Sequence" && list.is_array() ? list : json::array({splitter})) {
      const std::string type = type_of(step);
      if (bytes) {
        refuse("has the pre_tokenizer {} after ByteLevel; {}", shown(step), kSupported);
      }
      bytes = type == "ByteLevel";
      if (bytes && !is_off(member(step, "add_prefix_space"))) {
        refuse("has a pre_tokenizer ByteLevel with add_prefix_space; {}", kSupported);
      }
      if (type == "Split") {
        splits.push_back(split_of(step, path_.string()));
      } else if (type == "Digits") {
        splits.push_back({is_off(member(step, "individual_digits")) ? "\\p{N}+" : "\\p{N}"});
      } else if (!bytes) {
        refuse("has the pre_tokenizer {}; {}", shown(step), kSupported);
      } else if (member(step, "use_regex") != json(false)) {
        splits.push_back({std::string(kGpt2Expression)});
      }
    }
    if (!bytes || splits.empty()) {
      refuse("has the pre_tokenizer {}, without {}; {}", shown(splitter),
             bytes ? "an expression that splits text" : "ByteLevel", kSupported);
    }
    return splits;
  }

  void read_tokens(const json& vocabulary) {
    if (!vocabulary.is_object()) {
      refuse("has a model without the object vocab");
    }
    tables_.added = added_tokens_of(member(file_, "added_tokens"), path_.string());
    std::unordered_map<std::string_view, std::int64_t> added;
    std::int64_t count = 0;  // one more than the largest id
    std::int64_t tokens = std::ssize(vocabulary);
    for (const AddedToken& token : tables_.added) {
      added.emplace(token.text, token.id);
      count = std::max(count, std::int64_t{token.id} + 1);
      tokens += vocabulary.contains(token.text) ? 0 : 1;
    }
    for (const auto& [text, value] : vocabulary.items()) {
      count = std::max(count, std::min(integer_in(value).value_or(-1), 2 * tokens) + 1);
    }
    if (count > 2 * tokens) {
      refuse("gives {} tokens ids of up to {} and more; ids below {} were expected", tokens,
             count - 1, 2 * tokens);
    }
    tables_.tokens.resize(static_cast<std::size_t>(count));
    for (const auto& [text, value] : vocabulary.items()) {
      const auto special = added.find(text);
      const auto id = integer_in(value);
      if (special != added.end() && special->second != id) {
        refuse("gives the token {} the ids {} and {}", shown(text), shown(value), special->second);
      }
      const auto bytes = special != added.end() || !has_bytes_ ? text : characters_.bytes_of(text);
      if (!bytes || bytes->empty()) {
        refuse("has the token {}, which is {}; {}", shown(text),
               has_bytes_ ? "not written in GPT-2's byte characters" : "empty", kSupported);
      }
      ids_.emplace(text, put(id.value_or(-1), *bytes, text));
    }
    for (const AddedToken& token : tables_.added) {
      if (!vocabulary.contains(token.text)) {
        put(token.id, token.text, token.text);
      }
    }
    std::unordered_set<std::string_view> distinct;
    for (std::size_t id = 0; id < tables_.tokens.size(); ++id) {
      const std::string& token = tables_.tokens[id];
      if (!is_added(tables_.added, id) && !token.empty() && !distinct.insert(token).second) {
        refuse("has two tokens with the bytes {}", quoted_text(token));
      }
    }
  }

  std::uint32_t put(std::int64_t id, const std::string& bytes, const std::string& text) {
    if (id < 0 || id >= std::ssize(tables_.tokens)) {
      refuse("gives the token {} the id {}; a whole number from 0 to {} was expected", shown(text),
             id, tables_.tokens.size() - 1);
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
        if (!is_added(tables_.added, static_cast<std::size_t>(value))) {
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
  bool has_bytes_;
  ByteCharacters characters_;
  std::unordered_map<std::string, std::uint32_t> ids_;  ///< of the texts in the file
  BytePairTables tables_;
};

}  // namespace

BytePairTables parse_tokenizer_json(std::string_view text, const std::filesystem::path& path) {
  const std::optional<json> file = parse_json(text);
  if (!file) {
    fail(ExitCode::kData,
         "{} is not valid JSON; it may be truncated: copy the tokenizer.json again", path.string());
  }
  return TokenizerReader(*file, path).read();
}

}  // namespace strata::io
