#include <algorithm>
#include <cctype>
#include <iterator>

#include <fmt/ranges.h>

#include "strata/core/error.hpp"

#include "files/json_lines.hpp"
#include "import/chat_template.hpp"
#include "import/token_source.hpp"
#include "tokenizer/text_encoder.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

using Ids = std::vector<std::uint32_t>;

/// Dialogues, a line of JSON each, as tokens of which some count.
class ChatSource final : public TokenSource {
 public:
  ChatSource(const ImportOptions& options, Tokenizer tokenizer, const ChatTemplate* chat)
      : TokenSource(options.inputs, std::move(tokenizer), options.documents),
        chat_(chat),
        pairs_(options.format == ImportFormat::kPreferences),
        roles_(options.roles),
        markers_(chat == nullptr ? Markers::kRecognised : options.markers),
        recognising_(text_encoder(tokenizer_->contents(), Markers::kRecognised)),
        plain_(text_encoder(tokenizer_->contents(), Markers::kAsText)) {
    documents_.pairs = pairs_;
    for (const std::filesystem::path& file : files_) {
      const InputStream opened(file);
    }
  }

  [[nodiscard]] bool next(std::vector<std::uint32_t>& ids) override {
    ids.clear();
    while (ids.empty()) {
      if (!lines_) {
        if (opened_ == files_.size()) {
          return false;
        }
        ends_.push_back(tokens_);
        lines_.emplace(files_[opened_++]);
      }
      if (!lines_->next()) {
        lines_.reset();
        continue;
      }
      try {
        std::vector<Dialogue> dialogues = dialogues_of(lines_->object());
        if (keep_within_limit(dialogues) && filter_.takes(text_of(dialogues))) {
          for (const Dialogue& dialogue : dialogues) {
            add(dialogue, ids);
          }
        }
      } catch (const Error& error) {
        fail(error.code(), "{}:{}: {}", lines_->path().string(), lines_->line(), error.what());
      }
    }
    ends_.back() = tokens_;
    return true;
  }

 private:
  /// The dialogue of a line, or the two of a pair.
  [[nodiscard]] std::vector<Dialogue> dialogues_of(const nlohmann::json& object) const {
    if (pairs_) {
      return render_pair(chat_, object, roles_);
    }
    return {chat_ == nullptr ? rendered(object) : render(*chat_, object, roles_)};
  }

  /// Cuts a dialogue of too many tokens. Returns: whether it, or the pair, is imported.
  [[nodiscard]] bool keep_within_limit(std::vector<Dialogue>& dialogues) {
    const std::int64_t most = filter_.rules().max_tokens;
    const TooLong too_long = filter_.rules().too_long;
    if (most == DocumentRules().max_tokens) {
      return true;
    }
    std::int64_t tokens = 0;
    for (const Dialogue& dialogue : dialogues) {
      tokens += tokens_of(dialogue);
    }
    if (tokens <= most) {
      return true;
    }
    if (too_long == TooLong::kRefused) {
      fail(ExitCode::kData, "the {} {} tokens, more than --max-tokens={}; {}",
           pairs_ ? "answers have together" : "dialogue has", tokens, most,
           pairs_ ? "--too-long=leave-out leaves such pairs out"
                  : "--too-long=cut cuts such dialogues after a message, --too-long=leave-out "
                    "leaves them out");
    }
    Dialogue& dialogue = dialogues.front();
    const auto fits = [&](std::size_t segments) {
      return tokens_of(std::span(dialogue).first(segments)) <= most;
    };
    std::vector<std::size_t> ends;  // of what is learned
    for (std::size_t i = 0; i < dialogue.size() && too_long == TooLong::kCut && !pairs_; ++i) {
      if (dialogue[i].counts && (i + 1 == dialogue.size() || !dialogue[i + 1].counts)) {
        ends.push_back(i + 1);
      }
    }
    // More text seldom has fewer tokens; where it has, a shorter cut may be found.
    const auto longer = std::ranges::partition_point(ends, fits);
    if (longer == ends.begin()) {
      filter_.leave_out_long();
      return false;
    }
    dialogue.resize(*std::prev(longer));
    filter_.count_cut();
    return true;
  }

  /// Calls act(segments, encoder) for the stretches that are one text to the tokenizer.
  template <typename Function>
  void for_each_text(std::span<const ChatSegment> dialogue, const Function& act) const {
    const bool spelled = std::ranges::any_of(dialogue, [&](const ChatSegment& segment) {
      return segment.kind == ChatSegment::Kind::kText && spells_token(segment.text);
    });
    if (markers_ == Markers::kRecognised || !spelled) {
      act(dialogue, *recognising_);
      return;
    }
    // Only the template's tokens are tokens.
    for (auto segment = dialogue.begin(); segment != dialogue.end();) {
      const ChatSegment::Kind kind = segment->kind;
      const auto end = std::find_if(segment, dialogue.end(),
                                    [&](const ChatSegment& other) { return other.kind != kind; });
      act(std::span(segment, end), kind == ChatSegment::Kind::kToken ? *recognising_ : *plain_);
      segment = end;
    }
  }

  [[nodiscard]] std::int64_t tokens_of(std::span<const ChatSegment> dialogue) const {
    std::int64_t tokens = 0;
    for_each_text(dialogue, [&](std::span<const ChatSegment> texts, TextEncoder& encoder) {
      tokens += std::ssize(encoded(encoder, text_of(texts)));
    });
    return tokens;
  }

  void add(const Dialogue& dialogue, std::vector<std::uint32_t>& ids) {
    for_each_text(dialogue, [&](std::span<const ChatSegment> texts, TextEncoder& encoder) {
      add_texts(texts, encoder, ids);
    });
    documents_.ends.push_back(tokens_);
  }

  [[nodiscard]] static std::string text_of(const std::vector<Dialogue>& dialogues) {
    std::string text;
    for (const Dialogue& dialogue : dialogues) {
      text += text_of(std::span(dialogue));
    }
    return text;
  }
  [[nodiscard]] static std::string text_of(std::span<const ChatSegment> segments) {
    std::string text;
    for (const ChatSegment& segment : segments) {
      text += segment.text;
    }
    return text;
  }

  [[nodiscard]] bool spells_token(const std::string& text) const {
    return std::ranges::any_of(tokenizer_->contents().added(), [&](const AddedToken& token) {
      return token.special && text.find(token.text) != std::string::npos;
    });
  }

  [[nodiscard]] static Ids encoded(TextEncoder& encoder, std::string_view text) {
    Ids ids;
    encoder.encode(text, End::kReached, ids);
    return ids;
  }

  /// Texts are one text to the tokenizer. A token of two texts counts where one of them does.
  void add_texts(std::span<const ChatSegment> texts, TextEncoder& encoder,
                 std::vector<std::uint32_t>& ids) {
    const std::string text = text_of(texts);
    const Ids all = encoded(encoder, text);
    const std::vector<std::size_t> ends = ends_of(all, text);
    std::size_t first = 0;  // of the segment, in bytes
    std::int64_t taken = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::size_t last = first + texts[i].text.size();
      std::int64_t end = std::ssize(all);
      if (i + 1 < texts.size() && !ends.empty()) {
        const auto found = std::ranges::upper_bound(ends, last);
        end = found - ends.begin();
        const std::size_t begins = end == 0 ? 0 : ends[static_cast<std::size_t>(end) - 1];
        end += texts[i].counts && begins < last ? 1 : 0;
      } else if (i + 1 < texts.size()) {
        // Where tokens have no places in the text: those that more text does not change.
        const Ids so_far = encoded(encoder, std::string_view(text).substr(0, last));
        end = std::ranges::mismatch(so_far, all).in2 - all.begin();
      }
      end = std::clamp(end, taken, std::ssize(all));
      take(all, taken, end, texts[i].counts, ids);
      taken = end;
      first = last;
    }
  }

  /// The end of each token in the text, in bytes; empty where the tokenizer changes the text.
  [[nodiscard]] std::vector<std::size_t> ends_of(const Ids& ids, std::string_view text) const {
    std::vector<std::size_t> ends;
    std::size_t at = 0;
    bool strips = false;
    for (const std::uint32_t id : ids) {
      const std::vector<AddedToken>& added = tokenizer_->contents().added();
      const auto token = std::ranges::lower_bound(added, id, {}, &AddedToken::id);
      const bool is_added = token != added.end() && token->id == id;
      const std::int64_t one = id;
      const std::string piece =
          is_added ? token->text : tokenizer_->decode(std::span(&one, 1), Continues::kYes);
      // White space that a token takes with it belongs to the token before.
      while ((strips || (is_added && token->lstrip)) && at < text.size() &&
             !text.substr(at).starts_with(piece) && std::isspace(text[at]) != 0) {
        ++at;
      }
      if (!text.substr(at).starts_with(piece)) {
        return {};
      }
      at += piece.size();
      ends.push_back(at);
      strips = is_added && token->rstrip;
    }
    return ends;
  }

  void take(const Ids& from, std::int64_t begin, std::int64_t end, bool counts,
            std::vector<std::uint32_t>& ids) {
    ids.insert(ids.end(), from.begin() + begin, from.begin() + end);
    std::vector<std::int64_t>& runs = documents_.counted;
    if (counts && end > begin) {
      if (!runs.empty() && runs.back() == tokens_) {
        runs.back() += end - begin;
      } else {
        runs.insert(runs.end(), {tokens_, tokens_ + end - begin});
      }
    }
    tokens_ += end - begin;
  }

  const ChatTemplate* chat_;  // null: dialogues are rendered
  bool pairs_;
  std::vector<std::string> roles_;
  Markers markers_;
  std::unique_ptr<TextEncoder> recognising_;
  std::unique_ptr<TextEncoder> plain_;
  std::size_t opened_ = 0;
  std::optional<JsonLines> lines_;
  std::int64_t tokens_ = 0;
};

/// Refuses a tokenizer without a token of the template.
void require_tokens(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  for (const ChatRole& role : chat.roles) {
    const nlohmann::json message{{"role", role.role}, {"content", "x"}};
    for (const ChatSegment& segment :
         render(chat, {{"messages", nlohmann::json::array({message})}}, {})) {
      if (segment.kind == ChatSegment::Kind::kToken &&
          tokenizer.encode(segment.text, Markers::kRecognised).size() != 1) {
        fail(ExitCode::kData,
             "the tokenizer has no token {}, which the template {} puts between messages; choose "
             "the template that its model was trained with",
             segment.text, chat.name);
      }
    }
  }
}

}  // namespace

std::unique_ptr<TokenSource> open_chat_source(const ImportOptions& options) {
  std::optional<Tokenizer> tokenizer = given_tokenizer(options);
  if (!tokenizer) {
    fail(ExitCode::kUsage,
         "--format={} needs the --tokenizer of the model that is to be trained, gpt2 or a file",
         name_of(options.format));
  }
  std::vector<std::string_view> names;
  std::ranges::transform(chat_templates(), std::back_inserter(names), &ChatTemplate::name);
  const auto found =
      std::ranges::find(chat_templates(), options.chat_template, &ChatTemplate::name);
  const bool is_rendered = options.chat_template == kRenderedChats;
  if (found == chat_templates().end() && !is_rendered) {
    fail(ExitCode::kUsage,
         "--template={} is not known; known are {}, and {} for dialogues that strata_chat.py has "
         "rendered with a model's own template",
         options.chat_template, fmt::join(names, ", "), kRenderedChats);
  }
  for (const std::string& role : options.roles) {
    if (!is_rendered &&
        std::ranges::find(found->roles, role, &ChatRole::role) == found->roles.end()) {
      fail(ExitCode::kUsage, "--roles names \"{}\", a role that the template {} does not know",
           role, found->name);
    }
  }
  if (!is_rendered) {
    require_tokens(*found, *tokenizer);
  }
  return std::make_unique<ChatSource>(options, std::move(*tokenizer),
                                      is_rendered ? nullptr : &*found);
}

}  // namespace strata::io
