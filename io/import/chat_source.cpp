#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/prompts.hpp"

#include "import/chat_encoder.hpp"
#include "import/parallel_lines.hpp"
#include "import/token_source.hpp"

namespace strata::io {
namespace {

/// Dialogues, a line of JSON each, as tokens of which some count.
class ChatSource final : public DocumentSource {
 public:
  ChatSource(const ImportOptions& options, Tokenizer tokenizer, const ChatTemplate* chat,
             std::vector<std::string> notes)
      : DocumentSource(options.inputs, std::move(tokenizer)), rules_(options.documents) {
    for (std::int64_t i = 0; i < std::max<std::int64_t>(1, options.threads); ++i) {
      encoders_.push_back(std::make_unique<ChatEncoder>(options, *tokenizer_, chat));
    }
    pairs_ = options.format == ImportFormat::kPreferences;
    chat_template_ = chat == nullptr ? "" : chat->name;
    notes_ = std::move(notes);
  }

  void read(const InputPiece& piece, PieceWriter& to,
            const std::function<void(std::int64_t)>& read) override {
    ParallelLines<EncodedLine> lines(
        files_, piece.parts, std::ssize(encoders_),
        [this](std::string_view line, const LinePlace& place, std::size_t thread) {
          return encoders_[thread]->encode(object_of_line(line, place), place);
        });
    DocumentFilter filter(rules_);
    while (lines.next()) {
      const EncodedLine& line = lines.result();
      if (line.is_left_out) {
        filter.leave_out_long();
        continue;
      }
      if (filter.takes(line.text)) {
        if (line.is_cut) {
          filter.count_cut();
        }
        if (line.error) {
          std::rethrow_exception(line.error);
        }
        take(line, to);
        read(to.tokens());
      }
    }
    to.index().hashes = filter.hashes();
    to.index().counts = filter.counts();
  }

 private:
  static void take(const EncodedLine& line, PieceWriter& to) {
    const std::int64_t before = to.tokens();
    Documents& documents = to.index().documents;
    for (const std::int64_t end : line.documents.ends) {
      documents.ends.push_back(before + end);
    }
    const std::vector<std::int64_t>& runs = line.documents.counted;
    for (std::size_t run = 0; run < runs.size(); run += 2) {
      add_run(documents.counted, before + runs[run], before + runs[run + 1]);
    }
    to.append(line.ids);
  }

  DocumentRules rules_;
  std::vector<std::unique_ptr<ChatEncoder>> encoders_;  // one for each thread
};

/// The name of the template: --template, or what the model's directory has. Adds a note where the
/// user should know. Throws: Error(kUsage) where neither tells.
std::string template_name(const ImportOptions& options, std::vector<std::string>& notes) {
  const std::filesystem::path& file = options.tokenizer_file;
  const std::string directory = file.has_parent_path() ? file.parent_path().string() : ".";
  const PublishedTemplate found =
      file.empty() ? PublishedTemplate() : published_template(std::filesystem::path(directory));
  const std::string& given = options.chat_template;
  if (!given.empty()) {
    if (given != kRenderedChats && !found.name.empty() && found.name != given) {
      notes.push_back(fmt::format(
          "--template={} is used, but {}/{} has the template {}: a model that learned this one "
          "does not know the other",
          given, directory, found.file, found.name));
    }
    return given;
  }
  if (!found.name.empty()) {
    notes.push_back(fmt::format("template {}, as in {}/{}", found.name, directory, found.file));
    return found.name;
  }
  if (!found.file.empty()) {
    fail(ExitCode::kUsage, "{}", unknown_template_text(found, directory));
  }
  fail(ExitCode::kUsage, "--format={} needs --template: {}; see strata data import --help",
       name_of(options.format),
       file.empty() ? "without a tokenizer's file there is no model's directory to look into"
                    : fmt::format("neither chat_template.jinja nor tokenizer_config.json in {} has "
                                  "a chat template",
                                  directory));
}

}  // namespace

std::unique_ptr<DocumentSource> open_chat_source(const ImportOptions& options) {
  std::optional<Tokenizer> tokenizer = given_tokenizer(options);
  if (!tokenizer) {
    fail(ExitCode::kUsage,
         "--format={} needs the --tokenizer of the model that is to be trained, gpt2 or a file",
         name_of(options.format));
  }
  std::vector<std::string> notes;
  const std::string name = template_name(options, notes);
  const ChatTemplate* const chat =
      name == kRenderedChats
          ? nullptr
          : &chat_template(
                name,
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
  return std::make_unique<ChatSource>(options, std::move(*tokenizer), chat, std::move(notes));
}

}  // namespace strata::io
