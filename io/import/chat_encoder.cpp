#include "import/chat_encoder.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "strata/core/error.hpp"

#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

using Ids = std::vector<std::uint32_t>;

std::string text_of(std::span<const ChatSegment> segments) {
  std::string text;
  for (const ChatSegment& segment : segments) {
    text += segment.text;
  }
  return text;
}

/// The ids of a text that begins a document, or follows a token.
Ids encoded(TextEncoder& encoder, std::string_view text, Continues continues) {
  Ids ids;
  if (continues == Continues::kYes) {
    encoder.encode("", End::kBeforeToken, ids);
  }
  encoder.encode(text, End::kReached, ids);
  return ids;
}

void take(const Ids& from, std::int64_t begin, std::int64_t end, bool counts, EncodedLine& line) {
  const std::int64_t tokens = std::ssize(line.ids);
  line.ids.insert(line.ids.end(), from.begin() + begin, from.begin() + end);
  if (counts && end > begin) {
    add_run(line.documents.counted, tokens, std::ssize(line.ids));
  }
}

}  // namespace

void add_run(std::vector<std::int64_t>& runs, std::int64_t begin, std::int64_t end) {
  if (!runs.empty() && runs.back() == begin) {
    runs.back() = end;
  } else {
    runs.insert(runs.end(), {begin, end});
  }
}

void require_tokens(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  for (const ChatRole& role : chat.roles) {
    // Tools answer the assistant.
    const nlohmann::json asked{{"role", "assistant"}, {"content", "x"}};
    const nlohmann::json message{{"role", role.role}, {"content", "x"}};
    for (const ChatSegment& segment :
         render(chat, {{"messages", nlohmann::json::array({asked, message})}}, {})) {
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

ChatEncoder::ChatEncoder(const ImportOptions& options, const Tokenizer& tokenizer,
                         const ChatTemplate* chat)
    : tokenizer_(tokenizer),
      chat_(chat),
      pairs_(options.format == ImportFormat::kPreferences),
      roles_(options.roles),
      rules_(options.documents),
      markers_(chat == nullptr ? Markers::kRecognised : options.markers),
      recognising_(text_encoder(tokenizer.contents(), Markers::kRecognised)),
      plain_(text_encoder(tokenizer.contents(), Markers::kAsText)) {}

EncodedLine ChatEncoder::encode(const nlohmann::json& object, const LinePlace& place) const {
  try {
    std::vector<Dialogue> dialogues = dialogues_of(object);
    EncodedLine line = encoded_line(dialogues, place);
    if (std::ssize(line.ids) > rules_.max_tokens) {
      const TooLong done = shorten(dialogues, std::ssize(line.ids));
      line = encoded_line(dialogues, place);
      line.is_cut = done == TooLong::kCut;
      line.is_left_out = done == TooLong::kLeftOut;
    }
    return line;
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", place.text(), error.what());
  }
}

std::vector<Dialogue> ChatEncoder::dialogues_of(const nlohmann::json& object) const {
  if (pairs_) {
    return render_pair(chat_, object, roles_);
  }
  return {chat_ == nullptr ? rendered(object) : render(*chat_, object, roles_)};
}

EncodedLine ChatEncoder::encoded_line(const std::vector<Dialogue>& dialogues,
                                      const LinePlace& place) const {
  EncodedLine line;
  for (const Dialogue& dialogue : dialogues) {
    line.text += text_of(dialogue);
    try {
      add(dialogue, line);
      require_target(dialogue, line);
    } catch (const Error& error) {
      if (!line.error) {
        line.error = std::make_exception_ptr(
            Error(error.code(), fmt::format("{}: {}", place.text(), error.what())));
      }
    }
  }
  return line;
}

void ChatEncoder::require_target(const Dialogue& dialogue, const EncodedLine& line) const {
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

TooLong ChatEncoder::shorten(std::vector<Dialogue>& dialogues, std::int64_t tokens) const {
  const std::int64_t most = rules_.max_tokens;
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
    dialogues.clear();
    return TooLong::kLeftOut;
  }
  dialogue.resize(*std::prev(longer));
  return TooLong::kCut;
}

template <typename Function>
void ChatEncoder::for_each_text(std::span<const ChatSegment> dialogue, const Function& act) const {
  const bool spelled = std::ranges::any_of(dialogue, [&](const ChatSegment& segment) {
    return segment.kind == ChatSegment::Kind::kText && spells_token(segment.text);
  });
  if (markers_ == Markers::kRecognised || !spelled) {
    act(dialogue, *recognising_, Continues::kNo);
    return;
  }
  // Only the template's tokens are tokens.
  for (auto segment = dialogue.begin(); segment != dialogue.end();) {
    const ChatSegment::Kind kind = segment->kind;
    const auto end = std::find_if(segment, dialogue.end(),
                                  [&](const ChatSegment& other) { return other.kind != kind; });
    act(std::span(segment, end), kind == ChatSegment::Kind::kToken ? *recognising_ : *plain_,
        segment == dialogue.begin() ? Continues::kNo : Continues::kYes);
    segment = end;
  }
}

std::int64_t ChatEncoder::tokens_of(std::span<const ChatSegment> dialogue) const {
  std::int64_t tokens = 0;
  for_each_text(dialogue,
                [&](std::span<const ChatSegment> texts, TextEncoder& encoder, Continues continues) {
                  tokens += std::ssize(encoded(encoder, text_of(texts), continues));
                });
  return tokens;
}

void ChatEncoder::add(const Dialogue& dialogue, EncodedLine& line) const {
  for_each_text(dialogue, [&](std::span<const ChatSegment> texts, TextEncoder& encoder,
                              Continues continues) { add_texts(texts, encoder, continues, line); });
  line.documents.ends.push_back(std::ssize(line.ids));
}

bool ChatEncoder::spells_token(const std::string& text) const {
  return std::ranges::any_of(tokenizer_.contents().added(), [&](const AddedToken& token) {
    return token.special && text.find(token.text) != std::string::npos;
  });
}

void ChatEncoder::add_texts(std::span<const ChatSegment> texts, TextEncoder& encoder,
                            Continues continues, EncodedLine& line) const {
  const std::string text = text_of(texts);
  const Ids all = encoded(encoder, text, continues);
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
      const Ids so_far = encoded(encoder, std::string_view(text).substr(0, last), continues);
      end = std::ranges::mismatch(so_far, all).in2 - all.begin();
    }
    end = std::clamp(end, taken, std::ssize(all));
    take(all, taken, end, texts[i].counts, line);
    taken = end;
    first = last;
  }
}

std::vector<std::size_t> ChatEncoder::ends_of(const Ids& ids, std::string_view text) const {
  std::vector<std::size_t> ends;
  std::size_t at = 0;
  bool strips = false;
  for (const std::uint32_t id : ids) {
    const AddedToken* const added = find_added(tokenizer_.contents().added(), id);
    const std::int64_t one = id;
    const std::string piece =
        added != nullptr ? added->text : tokenizer_.decode(std::span(&one, 1), Continues::kYes);
    // White space that a token takes with it belongs to the token before.
    while ((strips || (added != nullptr && added->lstrip)) && at < text.size() &&
           !text.substr(at).starts_with(piece) &&
           std::isspace(static_cast<unsigned char>(text[at])) != 0) {
      ++at;
    }
    if (!text.substr(at).starts_with(piece)) {
      return {};
    }
    at += piece.size();
    ends.push_back(at);
    strips = added != nullptr && added->rstrip;
  }
  return ends;
}

}  // namespace strata::io
