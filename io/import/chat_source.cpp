#include <algorithm>
#include <cctype>
#include <exception>
#include <iterator>

#include <fmt/ranges.h>

#include "strata/core/error.hpp"

#include "import/chat_template.hpp"
#include "import/parallel_lines.hpp"
#include "import/token_source.hpp"
#include "tokenizer/text_encoder.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

using Ids = std::vector<std::uint32_t>;

/// Appends a run of tokens that count; one that goes on becomes longer.
void add_run(std::vector<std::int64_t>& runs, std::int64_t begin, std::int64_t end) {
  if (!runs.empty() && runs.back() == begin) {
    runs.back() = end;
  } else {
    runs.insert(runs.end(), {begin, end});
  }
}

/// What becomes of a line.
struct EncodedLine {
  std::string text;  ///< of all its dialogues
  Ids ids;
  Documents documents;
  bool is_cut = false;
  bool is_left_out = false;  ///< for its length
  std::exception_ptr error;  ///< of encoding, which counts where the line is imported
};

/// Makes tokens of dialogues, for one thread.
class ChatEncoder {
 public:
  ChatEncoder(const ImportOptions& options, const Tokenizer& tokenizer, const ChatTemplate* chat)
      : tokenizer_(tokenizer),
        chat_(chat),
        pairs_(options.format == ImportFormat::kPreferences),
        roles_(options.roles),
        rules_(options.documents),
        markers_(chat == nullptr ? Markers::kRecognised : options.markers),
        recognising_(text_encoder(tokenizer.contents(), Markers::kRecognised)),
        plain_(text_encoder(tokenizer.contents(), Markers::kAsText)) {}

  [[nodiscard]] EncodedLine encode(const nlohmann::json& object, const std::string& place) const {
    try {
      std::vector<Dialogue> dialogues = dialogues_of(object);
      EncodedLine line;
      keep_within_limit(dialogues, line);
      for (const Dialogue& dialogue : dialogues) {
        line.text += text_of(dialogue);
      }
      add_all(dialogues, place, line);
      return line;
    } catch (const Error& error) {
      fail(error.code(), "{}: {}", place, error.what());
    }
  }

 private:
  /// The dialogue of a line, or the two of a pair.
  [[nodiscard]] std::vector<Dialogue> dialogues_of(const nlohmann::json& object) const {
    if (pairs_) {
      return render_pair(chat_, object, roles_);
    }
    return {chat_ == nullptr ? rendered(object) : render(*chat_, object, roles_)};
  }

  void add_all(const std::vector<Dialogue>& dialogues, const std::string& place,
               EncodedLine& line) const {
    try {
      for (const Dialogue& dialogue : dialogues) {
        add(dialogue, line);
        require_target(dialogue, line);
      }
    } catch (const Error& error) {
      line.error =
          std::make_exception_ptr(Error(error.code(), fmt::format("{}: {}", place, error.what())));
    }
  }

  /// Refuses an answer of a pair without a target: a first token is none.
  void require_target(const Dialogue& dialogue, const EncodedLine& line) const {
    const Documents& documents = line.documents;
    const std::int64_t last = std::ssize(documents.ends) - 1;
    if (pairs_ &&
        (documents.counted.empty() || documents.counted.back() < documents.begin(last) + 2)) {
      fail(ExitCode::kData,
           "the answer \"{}\" has no token behind a first one; give the pair a prompt, or leave it "
           "out",
           text_of(dialogue));
    }
  }

  /// Cuts a dialogue of too many tokens, or notes that it, or the pair, is left out.
  void keep_within_limit(std::vector<Dialogue>& dialogues, EncodedLine& line) const {
    const std::int64_t most = rules_.max_tokens;
    if (most == DocumentRules().max_tokens) {
      return;
    }
    std::int64_t tokens = 0;
    for (const Dialogue& dialogue : dialogues) {
      tokens += tokens_of(dialogue);
    }
    if (tokens <= most) {
      return;
    }
    if (rules_.too_long == TooLong::kRefused) {
      fail(ExitCode::kData, "the {} {} tokens, more than --max-tokens={}; {}",
           pairs_ ? "answers have together" : "dialogue has", tokens, most,
           pairs_ ? "--too-long=leave-out leaves such pairs out"
                  : "--too-long=cut cuts such dialogues after a message, --too-long=leave-out "
                    "leaves them out");
    }
    Dialogue& dialogue = dialogues.front();
    std::vector<std::size_t> ends;  // of what is learned
    const bool cuts = rules_.too_long == TooLong::kCut && !pairs_;
    for (std::size_t i = 0; cuts && i < dialogue.size(); ++i) {
      if (dialogue[i].counts && (i + 1 == dialogue.size() || !dialogue[i + 1].counts)) {
        ends.push_back(i + 1);
      }
    }
    // More text seldom has fewer tokens; where it has, a shorter cut may be found.
    const auto longer = std::ranges::partition_point(ends, [&](std::size_t segments) {
      return tokens_of(std::span(dialogue).first(segments)) <= most;
    });
    if (longer == ends.begin()) {
      line.is_left_out = true;
      dialogues.clear();
      return;
    }
    dialogue.resize(*std::prev(longer));
    line.is_cut = true;
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

  void add(const Dialogue& dialogue, EncodedLine& line) const {
    for_each_text(dialogue, [&](std::span<const ChatSegment> texts, TextEncoder& encoder) {
      add_texts(texts, encoder, line);
    });
    line.documents.ends.push_back(std::ssize(line.ids));
  }

  [[nodiscard]] static std::string text_of(std::span<const ChatSegment> segments) {
    std::string text;
    for (const ChatSegment& segment : segments) {
      text += segment.text;
    }
    return text;
  }

  [[nodiscard]] bool spells_token(const std::string& text) const {
    return std::ranges::any_of(tokenizer_.contents().added(), [&](const AddedToken& token) {
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
                 EncodedLine& line) const {
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
      take(all, taken, end, texts[i].counts, line);
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
      const std::vector<AddedToken>& added = tokenizer_.contents().added();
      const auto token = std::ranges::lower_bound(added, id, {}, &AddedToken::id);
      const bool is_added = token != added.end() && token->id == id;
      const std::int64_t one = id;
      const std::string piece =
          is_added ? token->text : tokenizer_.decode(std::span(&one, 1), Continues::kYes);
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

  static void take(const Ids& from, std::int64_t begin, std::int64_t end, bool counts,
                   EncodedLine& line) {
    const std::int64_t tokens = std::ssize(line.ids);
    line.ids.insert(line.ids.end(), from.begin() + begin, from.begin() + end);
    if (counts && end > begin) {
      add_run(line.documents.counted, tokens, std::ssize(line.ids));
    }
  }

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;  // null: dialogues are rendered
  bool pairs_;
  std::vector<std::string> roles_;
  DocumentRules rules_;
  Markers markers_;
  std::unique_ptr<TextEncoder> recognising_;
  std::unique_ptr<TextEncoder> plain_;
};

/// Dialogues, a line of JSON each, as tokens of which some count.
class ChatSource final : public TokenSource {
 public:
  ChatSource(const ImportOptions& options, Tokenizer tokenizer, const ChatTemplate* chat)
      : TokenSource(options.inputs, std::move(tokenizer), options.documents),
        lines_(files_, options.threads,
               [this](const nlohmann::json& object, const std::string& place, std::size_t thread) {
                 return encoders_[thread]->encode(object, place);
               }) {
    for (std::int64_t i = 0; i < std::max<std::int64_t>(1, options.threads); ++i) {
      encoders_.push_back(std::make_unique<ChatEncoder>(options, *tokenizer_, chat));
    }
    documents_.pairs = options.format == ImportFormat::kPreferences;
    for (const std::filesystem::path& file : files_) {
      const InputStream opened(file);
    }
  }

  [[nodiscard]] bool next(std::vector<std::uint32_t>& ids) override {
    ids.clear();
    while (ids.empty()) {
      const bool more = lines_.next();
      while (ends_.size() < (more ? lines_.file() + 1 : files_.size())) {
        ends_.push_back(tokens_);
      }
      if (!more) {
        return false;
      }
      EncodedLine& line = lines_.result();
      if (line.is_left_out) {
        filter_.leave_out_long();
        continue;
      }
      if (line.is_cut) {
        filter_.count_cut();
      }
      if (filter_.takes(line.text)) {
        if (line.error) {
          std::rethrow_exception(line.error);
        }
        take(line);
        ids.swap(line.ids);
      }
    }
    ends_.back() = tokens_;
    return true;
  }

 private:
  void take(const EncodedLine& line) {
    for (const std::int64_t end : line.documents.ends) {
      documents_.ends.push_back(tokens_ + end);
    }
    const std::vector<std::int64_t>& runs = line.documents.counted;
    for (std::size_t run = 0; run < runs.size(); run += 2) {
      add_run(documents_.counted, tokens_ + runs[run], tokens_ + runs[run + 1]);
    }
    tokens_ += std::ssize(line.ids);
  }

  std::vector<std::unique_ptr<ChatEncoder>> encoders_;  // one for each thread
  ParallelLines<EncodedLine> lines_;
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
