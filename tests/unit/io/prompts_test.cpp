// The tokens of prompts, from texts, dialogues and files of them.
#include "strata/io/prompts.hpp"

#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
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
    // Exports of tables have all keys.
    const json turns{{"conversations", {{{"from", "human"}, {"value", "Hi"}}}},
                     {"messages", nullptr},
                     {"tools", nullptr}};
    EXPECT_EQ(encoder.of_dialogue(turns), encoder.of_dialogue(dialogue({"Hi"})));
    // White space is what trim of Jinja leaves out.
    for (const char* space : {" ", "\r\n", "\v", "\x1f", "\u0085", "\u00a0", "\u2028\u3000\t"}) {
      const std::string spaced_text = fmt::format("{0}Hi{0}", space);
      EXPECT_EQ(
          encoder.of_dialogue(dialogue({spaced_text})) == encoder.of_dialogue(dialogue({"Hi"})),
          c.chat_template == std::string("mistral"))
          << spaced_text;
    }
    EXPECT_NE(encoder.of_dialogue(dialogue({"\u200bHi"})), encoder.of_dialogue(dialogue({"Hi"})));
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
      read("{\"prompt\": \"Hi\", \"messages\": null, \"conversations\": null, \"id\": 7}\n\n" +
           dialogue({"Hi"}).dump() + "\n" +
           json{{"prompt", nullptr}, {"messages", dialogue({"Hi"}).at("messages")}}.dump());
  ASSERT_EQ(prompts.size(), 3U);
  EXPECT_EQ(prompts[0].ids, tokenizer.encode("Hi"));
  EXPECT_EQ(prompts[0].object.at("id"), 7);
  EXPECT_EQ(prompts[1].ids, encoder.of_dialogue(dialogue({"Hi"})));
  EXPECT_THAT(prompts[1].place, ::testing::EndsWith("p.jsonl:3"));
  EXPECT_EQ(prompts[2].ids, prompts[1].ids);
  EXPECT_EQ(prompts[0].continues, Continues::kYes);
  EXPECT_EQ(prompts[1].continues, Continues::kNo);
  EXPECT_EQ(prompts[2].continues, Continues::kNo);
  for (const auto& [line, words] : std::vector<std::pair<std::string, std::string>>{
           {R"({"prompt": 7})", R"(the "prompt" is no text)"},
           {R"({"prompt": ""})", "an empty one"},
           {R"({"prompt": "a", "messages": []})", "there are both"},
           {R"({"prompt": "a", "conversations": []})", R"(both "prompt" and "conversations")"},
           {R"({"id": 7})", R"(neither a text "prompt" nor a dialogue)"},
           {R"({"messages": [{"role": "wizard", "content": "a"}]})", R"(the role "wizard")"},
           {"{", "no JSON object"}}) {
    EXPECT_THAT(error_of([&] { read("{\"prompt\": \"a\"}\n" + line); }, ExitCode::kData),
                ::testing::AllOf(HasSubstr("p.jsonl:2: "), HasSubstr(words)));
  }
  EXPECT_THAT(error_of([&] { read("\n"); }, ExitCode::kData), HasSubstr("is empty"));
}

using Files = std::map<std::string, std::string>;

/// Jinja texts as models of each family have them, in strata's own words.
TEST(PublishedTemplate, IsRecognisedByAllThatItWrites) {
  const std::string loop = "{% for message in messages %}";
  const std::string chatml = loop +
                             "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                             "'<|im_end|>' + '\\n' }}{% endfor %}";
  const std::string prompt =
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  const std::string llama3 =
      loop +
      "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
      "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = "
      "bos_token + content %}{% endif %}{{ content }}{% endfor %}";
  const std::string zephyr = loop +
                             "\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + "
                             "message['content'] + eos_token }}\n{% elif message['role'] == "
                             "'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token "
                             "}}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n' "
                             "+ message['content'] + eos_token }}\n{% endif %}\n{% endfor %}";
  const std::string gemma =
      "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system "
      "(<b>role</b>)') }}{% endif %}" +
      loop +
      "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
      "raise_exception('Roles must alternate') }}{% endif %}{% if message['role'] == 'assistant' "
      "%}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ "
      "'<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% "
      "endfor %}";
  const std::string phi3 = loop +
                           "{% if message['role'] == 'user' %}{{ '<|user|>\\n' + "
                           "message['content'] + '<|end|>\\n' }}{% else %}{{ '<|assistant|>\\n' + "
                           "message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}{% if not "
                           "add_generation_prompt %}{{ eos_token }}{% endif %}";
  const std::string mistral = "{{ bos_token }}" + loop +
                              "{% if message['role'] == 'user' %}{{ '[INST] ' + "
                              "message['content'] | trim + ' [/INST]' }}{% else %}{{ ' ' + "
                              "message['content'] | trim + eos_token }}{% endif %}{% endfor %}";
  struct Case {
    std::string jinja;
    std::string name;
    std::string difference;
    json config = json::object();
  };
  const json llama_tokens{{"bos_token", "<|begin_of_text|>"}, {"eos_token", "<|eot_id|>"}};
  const json sentence_tokens{{"bos_token", {{"content", "<s>"}}}, {"eos_token", "</s>"}};
  const std::string begins = "{% if loop.first and message['role'] != 'system' %}{{ ";
  for (const Case& c : std::vector<Case>{
           {chatml, "chatml", ""},
           {chatml + prompt, "chatml", ""},
           {"{#- a comment -#}\n" + chatml, "chatml", ""},
           {loop + "\n  {%- if true %}<|im_start|>{{ message.role }}\n{{ message.content }}"
                   "<|im_end|>\n{% endif %}\n{% endfor %}",
            "chatml", ""},
           {loop + begins + "'<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}" +
                chatml.substr(loop.size()),
            "chatml", ""},
           {llama3, "llama3", "", llama_tokens},
           {zephyr, "zephyr", "", sentence_tokens},
           {gemma, "gemma", "", {{"bos_token", "<bos>"}}},
           {gemma + "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
            "gemma",
            "",
            {{"bos_token", "<bos>"}}},
           {phi3, "phi3", "", {{"eos_token", "<|endoftext|>"}}},
           {mistral, "mistral", "", sentence_tokens},
           // Like one of them, with something else.
           {"{{ bos_token }}" + chatml, "", "writes <s> too", sentence_tokens},
           {loop + begins + "'<think>\\n' }}{% endif %}" + chatml, "", "writes <think> too"},
           {chatml + "{% if tools %}{{ tools | tojson }}{% endif %}", "", "uses tojson, tools"},
           {chatml + "{{ 'Go on: ' }}", "", "other texts or white space"},
           // No line feed behind a message, or one before it; the last message alone has an end.
           {loop + "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                   "'<|im_end|>' }}{% endfor %}",
            "", "other texts or white space"},
           {loop + "{{ '\\n<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                   "'<|im_end|>' }}{% endfor %}",
            "", "other texts or white space"},
           {loop + "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}{% if not "
                   "loop.last %}{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}",
            "", "uses loop.last"},
           {loop +
                "<|im_start|>{{ message.role }}\n\n{{ message.content }}<|im_end|>\n{% endfor %}",
            "", "other texts or white space"},
           {loop + "<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n{% "
                   "endfor %}",
            "", "treats white space around contents otherwise"},
           {"{{ bos_token }}" + loop +
                "{{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] | trim + "
                "'<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
                "'<start_of_turn>model\\n' }}{% endif %}",
            "",
            "does not call the assistant model",
            {{"bos_token", "<bos>"}}},
           {llama3, "", "writes bos_token, which tokenizer_config.json does not have", {}},
           {llama3 + "{{ date_string }}", "", "uses date_string", llama_tokens},
           {zephyr, "", "tokens of none", {{"eos_token", "<|endoftext|>"}}},
           {mistral + "{{ ' ' }}", "", "other texts or white space", sentence_tokens},
           {mistral + "{{ '<<SYS>>' }}", "", "writes <<SYS>> too", sentence_tokens},
           {loop + "{{ message['content'] }}{% endfor %}", "", "tokens of none"},
           {"{{ 'unfinished", "", "tokens of none"},
           {"{% for", "", "tokens of none"}}) {
    SCOPED_TRACE(c.jinja);
    json config = c.config.is_null() ? json::object() : c.config;
    const PublishedTemplate apart = published_template(
        Files{{"chat_template.jinja", c.jinja}, {"tokenizer_config.json", config.dump()}});
    EXPECT_EQ(apart.name, c.name);
    EXPECT_THAT(apart.difference, HasSubstr(c.difference));
    config["chat_template"] = c.jinja;
    const TemporaryDirectory directory;
    write_file(directory / "tokenizer_config.json", config.dump());
    EXPECT_EQ(published_template(directory.path()).name, c.name);
    config["chat_template"] = {{{"name", "rag"}, {"template", "x"}},
                               {{"name", "default"}, {"template", c.jinja}}};
    const PublishedTemplate named =
        published_template(Files{{"tokenizer_config.json", config.dump()}});
    EXPECT_EQ(named.name, c.name);
    EXPECT_EQ(named.file, "tokenizer_config.json");
  }
  EXPECT_EQ(published_template(Files{{"tokenizer_config.json", "{}"}}).file, "");
  // What strata writes itself.
  for (const char* name : {"chatml", "llama3", "gemma", "phi3", "zephyr", "mistral"}) {
    EXPECT_EQ(published_template(Files{{"chat_template.jinja", jinja_text(name)}}).name, name);
  }
}

}  // namespace
}  // namespace strata::io::prompts_test
