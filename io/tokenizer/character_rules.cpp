#include "tokenizer/character_rules.hpp"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"

#include "tokenizer/rank_file.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace strata::io {
namespace {

using nlohmann::json;
using Kind = TextChange::Kind;

/// The text of a member; nothing where it is none.
std::optional<std::string> text_in(const json& object, const char* name) {
  const json& text = member(object, name);
  return text.is_string() ? std::optional(text.get<std::string>()) : std::nullopt;
}

/// The steps of a component, which may be a Sequence of others.
std::vector<json> steps_of(const json& component, const char* name) {
  const json& list = member(component, name);
  if (component.is_null()) {
    return {};
  }
  if (type_of(component) != "Sequence" || !list.is_array()) {
    return {component};
  }
  std::vector<json> steps;
  for (const json& part : list) {
    const std::vector<json> more = steps_of(part, name);
    steps.insert(steps.end(), more.begin(), more.end());
  }
  return steps;
}

class RulesReader {
 public:
  RulesReader(const json& rules, const std::string& name, BytePairTables& tables)
      : name_(name), tables_(tables), rules_(tables.characters.emplace()) {
    rules_.text = rules.dump();
    tables_.splits.clear();
    for (const json& step : steps_of(member(rules, "normalizer"), "normalizers")) {
      add_normalizer(step);
    }
    add_pre_tokenizers(steps_of(member(rules, "pre_tokenizer"), "pretokenizers"));
    add_decoders(member(rules, "decoder"));
    add_model(member(rules, "model"));
    try {
      const TextChanger compiled(rules_.changes);
    } catch (const Error& refusal) {
      fail(ExitCode::kData, "{} has a normalizer that strata cannot apply: {}", name_,
           refusal.what());
    }
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ExitCode::kData, "{} {}", name_, fmt::vformat(format, fmt::make_format_args(args...)));
  }

  void add_normalizer(const json& step) {
    constexpr std::array<std::pair<const char*, Kind>, 6> kPlain{
        {{"NFC", Kind::kNfc},
         {"NFD", Kind::kNfd},
         {"NFKC", Kind::kNfkc},
         {"NFKD", Kind::kNfkd},
         {"Lowercase", Kind::kLowercase},
         {"StripAccents", Kind::kStripAccents}}};
    const std::string type = type_of(step);
    const json& pattern = member(step, "pattern");
    const auto literal = text_in(pattern, "String");
    const auto expression = text_in(pattern, "Regex");
    const auto content = text_in(step, "content");
    const auto prefix = text_in(step, "prepend");
    const auto map = text_in(step, "precompiled_charsmap");
    const auto* const plain =
        std::ranges::find(kPlain, type, [](const auto& form) { return std::string(form.first); });
    if (plain != kPlain.end()) {
      rules_.changes.push_back({plain->second, "", ""});
    } else if (type == "Prepend" && prefix && !prefix->empty()) {
      rules_.changes.push_back({Kind::kPrepend, "", *prefix});
    } else if (type == "Replace" && content && literal && !literal->empty()) {
      rules_.changes.push_back({Kind::kReplace, *literal, *content});
    } else if (type == "Replace" && content && expression) {
      rules_.changes.push_back({Kind::kReplaceMatches, *expression, *content});
    } else if (type == "Strip") {
      for (const auto& [flag, kind] : {std::pair{"strip_left", Kind::kStripLeft},
                                       std::pair{"strip_right", Kind::kStripRight}}) {
        if (!is_off(member(step, flag))) {
          rules_.changes.push_back({kind, "", ""});
        }
      }
    } else if (const auto bytes = map ? from_base64(*map) : std::nullopt;
               type == "Precompiled" && bytes) {
      rules_.changes.push_back({Kind::kMap, *bytes, ""});
    } else {
      refuse(
          "has the normalizer {}; strata applies Prepend, Replace, Precompiled, NFC, NFD, NFKC, "
          "NFKD, Lowercase, StripAccents and Strip; {}",
          shown(step), kSupported);
    }
  }

  void add_pre_tokenizers(const std::vector<json>& steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const json& step = steps[i];
      const std::string type = type_of(step);
      const bool has_metaspace = i + 1 < steps.size() && type_of(steps[i + 1]) == "Metaspace";
      const bool is_first = tables_.splits.empty() && rules_.later_changes.empty();
      if (type == "WhitespaceSplit" && has_metaspace && is_first) {
        add_metaspace(steps[++i], Words::kOfSpace);
      } else if (type == "WhitespaceSplit") {
        tables_.splits.push_back({"\\s+", Kept::kRest});
      } else if (type == "Metaspace" && is_first) {
        add_metaspace(step, Words::kNone);
      } else if (type == "Digits") {
        tables_.splits.push_back(
            {is_off(member(step, "individual_digits")) ? "\\p{N}+" : "\\p{N}"});
      } else if (type != "Split") {
        refuse("has the pre_tokenizer {}{}; {}", shown(step),
               type == "Metaspace" ? " after another one" : "", kSupported);
      } else if (text_in(member(step, "pattern"), "String") != " " || !has_no_space()) {
        tables_.splits.push_back(merged_split_of(step));
      }
    }
  }

  /// Whether spaces were replaced, so that a split at spaces does nothing, as Gemma's.
  [[nodiscard]] bool has_no_space() const {
    const auto replaces = [](const TextChange& change) {
      return change.kind == Kind::kReplace && change.from == " " &&
             change.to.find(' ') == std::string::npos;
    };
    return (!rules_.changes.empty() && replaces(rules_.changes.back())) ||
           !rules_.later_changes.empty();
  }

  [[nodiscard]] SplitStep merged_split_of(const json& step) const {
    const bool is_space = text_in(member(step, "pattern"), "String") == " ";
    if (is_space && member(step, "behavior") == json("MergedWithPrevious") &&
        is_off(member(step, "invert"))) {
      return {"[^ ]+ ?| "};
    }
    return split_of(step, name_);
  }

  /// Whether Metaspace marks the words between white space.
  enum class Words { kNone, kOfSpace };

  void add_metaspace(const json& step, Words words) {
    const std::string mark = text_in(step, "replacement").value_or("");
    // The first versions had add_prefix_space instead.
    const bool never = member(step, "add_prefix_space") == json(false);
    const std::string scheme = text_in(step, "prepend_scheme").value_or(never ? "never" : "always");
    const bool splits = member(step, "split") != json(false);
    if (mark.empty() || first_character(mark).bytes != mark.size() ||
        (scheme != "always" && scheme != "first" && scheme != "never")) {
      refuse(
          "has the pre_tokenizer {}; a replacement of one character and the prepend_scheme "
          "always, first or never were expected",
          shown(step));
    }
    const bool strips = std::ranges::find(rules_.changes, Kind::kStripLeft, &TextChange::kind) !=
                        rules_.changes.end();
    if ((words == Words::kOfSpace && (scheme != "always" || !splits)) ||
        (scheme == "first" && strips)) {
      refuse("has the pre_tokenizer {} after {}; {}", shown(step),
             words == Words::kOfSpace ? "WhitespaceSplit" : "the normalizer Strip", kSupported);
    }
    if (words == Words::kOfSpace) {
      rules_.later_changes.push_back({Kind::kWords, "", mark});
    } else {
      rules_.later_changes.push_back({Kind::kReplace, " ", mark});
    }
    if (words == Words::kNone && scheme != "never") {
      rules_.later_changes.push_back(
          {scheme == "first" ? Kind::kPrependFirst : Kind::kPrependMissing, "", mark});
    }
    if (splits) {
      const std::string one = expression_of(mark);
      tables_.splits.push_back({fmt::format("{0}[^{0}]*|[^{0}]+", one)});
    }
  }

  void add_decoders(const json& decoder) {
    bool is_fused = false;
    std::size_t known = 0;
    const std::vector<json> steps = steps_of(decoder, "decoders");
    for (const json& step : steps) {
      const std::string type = type_of(step);
      const bool to_space = text_in(step, "content") == " ";
      const std::string from = text_in(member(step, "pattern"), "String").value_or("");
      const std::string mark = text_in(step, "replacement").value_or("");
      const std::int64_t start = integer_in(member(step, "start")).value_or(0);
      if (type == "Replace" && to_space && !from.empty() && rules_.space.empty()) {
        rules_.space = from;
      } else if (type == "ByteFallback" && !is_fused) {
        rules_.joins_bytes = true;
      } else if (type == "Fuse") {
        is_fused = true;
      } else if (type == "Strip" && to_space && is_fused && start >= 0 &&
                 is_off(member(step, "stop"))) {
        rules_.dropped = start;
      } else if (type == "Metaspace" && !mark.empty() && rules_.space.empty() && !is_fused) {
        rules_.space = mark;
        rules_.drops_spaces = member(step, "prepend_scheme") != json("never") &&
                              member(step, "add_prefix_space") != json(false);
      } else {
        break;
      }
      ++known;
    }
    if (known < steps.size() || steps.empty()) {
      refuse(
          "has the decoder {}; strata applies Metaspace, or Replace, ByteFallback, Fuse and "
          "Strip in this order; {}",
          shown(steps.empty() ? decoder : steps[known]), kSupported);
    }
  }

  void add_model(const json& model) {
    const bool is_unigram = !tables_.scores.empty();
    const bool falls_back = member(model, "byte_fallback") == json(true);
    rules_.fuses_unknown = member(model, "fuse_unk") == json(true);
    rules_.unknown = integer_in(member(model, "unk_id")).value_or(-1);
    tables_.order = MergeOrder::kListed;
    tables_.whole_words = !is_unigram && member(model, "ignore_merges") == json(true)
                              ? WholeWords::kYes
                              : WholeWords::kNo;
    const auto bytes = std::ranges::count_if(
        tables_.tokens, [](const std::string& token) { return byte_of(token) >= 0; });
    constexpr std::int64_t kBytes = 256;
    rules_.has_bytes = falls_back && bytes == kBytes;
    if (falls_back && bytes > 0 && bytes != kBytes) {
      refuse("has byte_fallback and tokens of {} bytes; all 256 were expected, as <0x0A>", bytes);
    }
    const std::int64_t ids = is_unigram ? std::ssize(tables_.scores) : std::ssize(tables_.tokens);
    const json& unknown = member(model, "unk_id");
    if (!unknown.is_null() && (rules_.unknown < 0 || rules_.unknown >= ids)) {
      refuse("has the unk_id {}; the ids are 0 to {}", shown(unknown), ids - 1);
    }
    if (unknown.is_null() && (is_unigram || !rules_.has_bytes)) {
      refuse("has no token for unknown characters (unk_id, unk_token){}; {}",
             is_unigram ? "" : ", nor such of all bytes", kSupported);
    }
  }

  const std::string& name_;
  BytePairTables& tables_;
  CharacterRules& rules_;
};

}  // namespace

void set_rules(const json& rules, const std::string& name, BytePairTables& tables) {
  static_cast<void>(RulesReader(rules, name, tables));
}

}  // namespace strata::io
