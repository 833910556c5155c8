#include "strata/io/prompts.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/import.hpp"

#include "files/json_lines.hpp"
#include "import/chat_encoder.hpp"

namespace strata::io {

PromptEncoder::PromptEncoder(const Tokenizer& tokenizer, const std::string& chat_template)
    : tokenizer_(tokenizer) {
  if (!chat_template.empty()) {
    template_ = &io::chat_template(chat_template);
    require_tokens(*template_, tokenizer);
    encoder_ = std::make_unique<ChatEncoder>(ImportOptions{.format = ImportFormat::kChat},
                                             tokenizer, template_);
    const nlohmann::json message{{"role", "user"}, {"content", "x"}};
    EncodedLine line;
    encoder_->add(render_prompt(*template_, {{"messages", nlohmann::json::array({message})}}),
                  line);
    answer_end_ = line.ids.back();
  }
}

PromptEncoder::~PromptEncoder() = default;
PromptEncoder::PromptEncoder(PromptEncoder&& other) noexcept = default;

std::vector<std::int64_t> PromptEncoder::of_text(std::string_view text) const {
  return begin_document(tokenizer_, tokenizer_.encode(text));
}

std::vector<std::int64_t> PromptEncoder::of_dialogue(const nlohmann::json& object) const {
  if (template_ == nullptr) {
    fail(ExitCode::kUsage,
         "a dialogue needs the template that the model learned, which this checkpoint does not "
         "name: give --template=NAME as the import of its dialogues was given");
  }
  EncodedLine line;
  encoder_->add(render_prompt(*template_, object), line);
  const auto begin = line.documents.counted[line.documents.counted.size() - 2];
  return {line.ids.begin(), line.ids.begin() + begin};
}

std::vector<Prompt> read_prompts(const std::filesystem::path& path, const PromptEncoder& encoder) {
  std::vector<Prompt> prompts;
  JsonLines lines(path);
  while (lines.next()) {
    Prompt& prompt = prompts.emplace_back(Prompt{
        .object = lines.object(), .place = fmt::format("{}:{}", path.string(), lines.line())});
    try {
      const auto has = [&](const char* key) { return has_value(prompt.object, key); };
      const char* const dialogue = has("messages") ? "messages" : "conversations";
      if (!has("prompt") && !has(dialogue)) {
        fail(
            ExitCode::kData,
            "there is neither a text \"prompt\" nor a dialogue, \"messages\" or \"conversations\"");
      }
      if (!has("prompt")) {
        prompt.ids = encoder.of_dialogue(prompt.object);
      } else if (const nlohmann::json& text = prompt.object.at("prompt");
                 !text.is_string() || text.get_ref<const std::string&>().empty()) {
        fail(ExitCode::kData, "the \"prompt\" is no text or an empty one");
      } else if (has(dialogue)) {
        fail(ExitCode::kData, "there are both \"prompt\" and \"{}\"; give one of them", dialogue);
      } else {
        prompt.ids = encoder.of_text(text.get_ref<const std::string&>());
        prompt.continues = Continues::kYes;
      }
    } catch (const Error& error) {
      fail(error.code(), "{}: {}", prompt.place, error.what());
    }
  }
  if (prompts.empty()) {
    fail(ExitCode::kData, "{} is empty, an object per line was expected", path.string());
  }
  return prompts;
}

}  // namespace strata::io
