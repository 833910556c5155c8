#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "strata/core/error.hpp"

#include "import/chat_encoder.hpp"
#include "import/parallel_lines.hpp"
#include "import/token_source.hpp"

namespace strata::io {
namespace {

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

}  // namespace

std::unique_ptr<TokenSource> open_chat_source(const ImportOptions& options) {
  std::optional<Tokenizer> tokenizer = given_tokenizer(options);
  if (!tokenizer) {
    fail(ExitCode::kUsage,
         "--format={} needs the --tokenizer of the model that is to be trained, gpt2 or a file",
         name_of(options.format));
  }
  const ChatTemplate* const chat =
      options.chat_template == kRenderedChats
          ? nullptr
          : &chat_template(
                options.chat_template,
                fmt::format(
                    ", and {} for dialogues that strata_chat.py has rendered with a model's own "
                    "template",
                    kRenderedChats));
  if (chat != nullptr) {
    for (const std::string& role : options.roles) {
      if (std::ranges::find(chat->roles, role, &ChatRole::role) == chat->roles.end()) {
        fail(ExitCode::kUsage, "--roles names \"{}\", a role that the template {} does not know",
             role, chat->name);
      }
    }
    require_tokens(*chat, *tokenizer);
  }
  return std::make_unique<ChatSource>(options, std::move(*tokenizer), chat);
}

}  // namespace strata::io
