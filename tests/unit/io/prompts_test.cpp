// The tokens of prompts, from texts, dialogues and files of them.
#include "strata/io/prompts.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "text_files.hpp"

namespace strata::io::prompts_test {
namespace {

using nlohmann::json;
using test::error_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::HasSubstr;

/// Bytes, a merge, and special tokens.
Tokenizer tokenizer_with(const std::vector<std::pair<std::string, std::string>>& merges) {
  const test::SmallPairs pairs{merges};
  json vocabulary = json::parse(pairs.encoder());
  vocabulary.erase("<|endoftext|>");
  json file{{"added_tokens", json::array()},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
            {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
  for (const auto& [left, right] : merges) {
    file["model"]["merges"].push_back(left + " " + right);
  }
  std::size_t id = vocabulary.size();
  for (const char* token : {"<|im_start|>", "<|im_end|>", "<s>", "</s>"}) {
    file["added_tokens"].push_back({{"id", id++}, {"content", token}, {"special", true}});
  }
  const TemporaryDirectory directory;
  write_file(directory / "tokenizer.json", file.dump());
  return Tokenizer::from_file(directory / "tokenizer.json");
}

json dialogue(const std::vector<std::string>& contents) {
  json messages = json::array();
  for (const std::string& content : contents) {
    messages.push_back(
        {{"role", messages.size() % 2 == 0 ? "user" : "assistant"}, {"content", content}});
  }
  return {{"messages", messages}};
}

TEST(PromptEncoder, EndsADialogueWhereTheAnswerBegins) {
  const Tokenizer plain = tokenizer_with({{"a", "a"}});
  const Tokenizer spaced = tokenizer_with({{"Ġ", "x"}});
  struct Case {
    const Tokenizer& tokenizer;
    const char* chat_template;
    std::string text;
    std::string end;
  };
  for (const Case& c :
       {Case{plain, "chatml",
             "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
             "<|im_start|>user\naa?<|im_end|>\n<|im_start|>assistant\n",
             "<|im_end|>"},
        Case{plain, "mistral", "<s>[INST] Hi [/INST] </s>[INST] aa? [/INST] ", "</s>"},
        // The model learned the space as the begin of the answer's first token.
        Case{spaced, "mistral", "<s>[INST] Hi [/INST] </s>[INST] aa? [/INST]", "</s>"}}) {
    SCOPED_TRACE(c.text);
    const PromptEncoder encoder(c.tokenizer, c.chat_template);
    EXPECT_EQ(encoder.of_dialogue(dialogue({"Hi", "", "aa?"})), c.tokenizer.encode(c.text));
    EXPECT_EQ(encoder.answer_end(), c.tokenizer.encode(c.end).front());
    const json turns{{"conversations", {{{"from", "human"}, {"value", "Hi"}}}}};
    EXPECT_EQ(encoder.of_dialogue(turns), encoder.of_dialogue(dialogue({"Hi"})));
  }
  // The spelling of a token in a message is text.
  const PromptEncoder encoder(plain, "chatml");
  EXPECT_EQ(encoder.of_dialogue(dialogue({"<|im_end|>"})).size(),
            encoder.of_dialogue(dialogue({"0123456789"})).size());
}

TEST(PromptEncoder, RefusesWhatNoModelAnswers) {
  const Tokenizer tokenizer = tokenizer_with({});
  const PromptEncoder encoder(tokenizer, "chatml");
  EXPECT_THAT(error_of(
                  [&] {
                    (void)encoder.of_dialogue(dialogue({"Hi", "Yes"}));
                  },
                  ExitCode::kData),
              HasSubstr("the last message is the assistant's"));
  EXPECT_THAT(error_of([&] { (void)PromptEncoder(tokenizer, "").of_dialogue(dialogue({"Hi"})); },
                       ExitCode::kUsage),
              HasSubstr("--template=NAME"));
  EXPECT_THAT(error_of([&] { (void)PromptEncoder(tokenizer, "chat"); }, ExitCode::kUsage),
              HasSubstr("--template=chat is not known; known are chatml, llama3"));
  EXPECT_THAT(error_of([&] { (void)PromptEncoder(tokenizer, "gemma"); }, ExitCode::kData),
              HasSubstr("no token <bos>"));
}

TEST(PromptEncoder, ReadsAFileOfPrompts) {
  const Tokenizer tokenizer = tokenizer_with({});
  const PromptEncoder encoder(tokenizer, "chatml");
  const TemporaryDirectory directory;
  const auto read = [&](const std::string& text) {
    write_file(directory / "p.jsonl", text);
    return read_prompts(directory / "p.jsonl", encoder);
  };
  const std::vector<Prompt> prompts =
      read("{\"prompt\": \"Hi\", \"id\": 7}\n\n" + dialogue({"Hi"}).dump() + "\n");
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].ids, tokenizer.encode("Hi"));
  EXPECT_EQ(prompts[0].object.at("id"), 7);
  EXPECT_EQ(prompts[1].ids, encoder.of_dialogue(dialogue({"Hi"})));
  EXPECT_THAT(prompts[1].place, ::testing::EndsWith("p.jsonl:3"));
  for (const auto& [line, words] : std::vector<std::pair<std::string, std::string>>{
           {R"({"prompt": 7})", R"(the "prompt" is no text)"},
           {R"({"prompt": ""})", "an empty one"},
           {R"({"prompt": "a", "messages": []})", "there are both"},
           {R"({"id": 7})", R"(neither "messages" nor)"},
           {R"({"messages": [{"role": "wizard", "content": "a"}]})", R"(the role "wizard")"},
           {"{", "no JSON object"}}) {
    EXPECT_THAT(error_of([&] { read("{\"prompt\": \"a\"}\n" + line); }, ExitCode::kData),
                ::testing::AllOf(HasSubstr("p.jsonl:2: "), HasSubstr(words)));
  }
  EXPECT_THAT(error_of([&] { read("\n"); }, ExitCode::kData), HasSubstr("is empty"));
}

}  // namespace
}  // namespace strata::io::prompts_test
