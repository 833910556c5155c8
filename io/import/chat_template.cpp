#include "import/chat_template.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::io {
namespace {

/// Appends a text of a template.
void add_text(std::string_view text, bool counts, Dialogue& dialogue) {
  while (!text.empty()) {
    const bool token = text.front() == '^';
    const std::size_t end = std::min(text.find(token ? '$' : '^'), text.size());
    dialogue.push_back({token ? ChatSegment::Kind::kToken : ChatSegment::Kind::kText,
                        std::string(text.substr(token ? 1 : 0, end - (token ? 1 : 0))), counts});
    text.remove_prefix(std::min(text.size(), end + (token ? 1 : 0)));
  }
}

/// A member that is a text.
const std::string& text_of(const nlohmann::json& object, const char* key, const std::string& what) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    fail(ExitCode::kData, "{} has {} \"{}\"", what,
         found == object.end() || found->is_null() ? "no" : "no text as", key);
  }
  return found->get_ref<const std::string&>();
}

const nlohmann::json& list_of(const nlohmann::json& object, const char* key) {
  const nlohmann::json& list = object.at(key);
  if (!list.is_array() || list.empty()) {
    fail(ExitCode::kData, "\"{}\" is no list of at least one", key);
  }
  return list;
}

/// A text without white space at either end, as `trim` of Jinja and strip() of Python leave it.
std::string_view stripped(std::string_view text) {
  constexpr std::array<std::string_view, 29> kSpaces{
      " ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",
      "\x1e",   "\x1f",   "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
      "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  const auto bytes_of = [&](auto matches) {
    const auto* const space = std::ranges::find_if(kSpaces, matches);
    return space == kSpaces.end() ? 0 : space->size();
  };
  while (const std::size_t bytes = bytes_of([&](auto space) { return text.starts_with(space); })) {
    text.remove_prefix(bytes);
  }
  while (const std::size_t bytes = bytes_of([&](auto space) { return text.ends_with(space); })) {
    text.remove_suffix(bytes);
  }
  return text;
}

std::string_view usual_role(std::string_view role) {
  return role == "human" ? "user" : role == "gpt" || role == "model" ? "assistant" : role;
}

}  // namespace

bool has_value(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

// Sources: the documentation of ChatML, Llama 3, Gemma, Phi-3, Zephyr and Mistral 7B Instruct.
const std::vector<ChatTemplate>& chat_templates() {
  static const std::vector<ChatTemplate> kTemplates{
      {"chatml",
       "",
       {{"system", "^<|im_start|>$system\n", "^<|im_end|>$", "\n"},
        {"user", "^<|im_start|>$user\n", "^<|im_end|>$", "\n"},
        {"assistant", "^<|im_start|>$assistant\n", "^<|im_end|>$", "\n"},
        {"tool", "^<|im_start|>$tool\n", "^<|im_end|>$", "\n"}}},
      {"llama3",
       "^<|begin_of_text|>$",
       {{"system", "^<|start_header_id|>$system^<|end_header_id|>$\n\n", "^<|eot_id|>$", ""},
        {"user", "^<|start_header_id|>$user^<|end_header_id|>$\n\n", "^<|eot_id|>$", ""},
        {"assistant", "^<|start_header_id|>$assistant^<|end_header_id|>$\n\n", "^<|eot_id|>$", ""},
        {"tool", "^<|start_header_id|>$ipython^<|end_header_id|>$\n\n", "^<|eot_id|>$", ""}},
       true},
      {"gemma",
       "^<bos>$",
       {{"user", "^<start_of_turn>$user\n", "^<end_of_turn>$", "\n"},
        {"assistant", "^<start_of_turn>$model\n", "^<end_of_turn>$", "\n"}},
       true},
      {"phi3",
       "",
       {{"system", "^<|system|>$\n", "^<|end|>$", "\n"},
        {"user", "^<|user|>$\n", "^<|end|>$", "\n"},
        {"assistant", "^<|assistant|>$\n", "^<|end|>$", "\n"}}},
      {"zephyr",
       "",
       {{"system", "<|system|>\n", "^</s>$", "\n"},
        {"user", "<|user|>\n", "^</s>$", "\n"},
        {"assistant", "<|assistant|>\n", "^</s>$", "\n"}}},
      {"mistral",
       "^<s>$",
       {{"user", "[INST] ", "", " [/INST]"}, {"assistant", " ", "^</s>$", ""}},
       true}};
  return kTemplates;
}

const ChatTemplate& chat_template(std::string_view name, std::string_view further) {
  const auto found = std::ranges::find(chat_templates(), name, &ChatTemplate::name);
  if (found == chat_templates().end()) {
    std::vector<std::string_view> names;
    std::ranges::transform(chat_templates(), std::back_inserter(names), &ChatTemplate::name);
    fail(ExitCode::kUsage, "--template={} is not known; known are {}{}", name,
         fmt::join(names, ", "), further);
  }
  return *found;
}

Dialogue render(const ChatTemplate& chat, const nlohmann::json& object,
                const std::vector<std::string>& learned) {
  const bool turns = has_value(object, "conversations") && !has_value(object, "messages");
  if (!turns && !has_value(object, "messages")) {
    fail(ExitCode::kData,
         "there is neither \"messages\" nor \"conversations\"; a dialogue is as "
         R"({{"messages": [{{"role": "user", "content": "..."}}, ...]}})");
  }
  if (has_value(object, "tools")) {
    fail(ExitCode::kData,
         "there are \"tools\", which need the model's own template: render the dialogues with "
         "strata_chat.py");
  }
  if (has_value(object, "system") && object.at("system") != nlohmann::json("")) {
    fail(ExitCode::kData,
         "there is a \"system\" beside the messages, which is not read; make it the first of them, "
         "or rename it where it is no message");
  }
  Dialogue dialogue;
  add_text(chat.begin, false, dialogue);
  std::int64_t number = 0;
  std::int64_t system = 0;   // the number of the system's message
  std::string_view speaker;  // of the message before, but for those of tools
  for (const nlohmann::json& message : list_of(object, turns ? "conversations" : "messages")) {
    const std::string what = fmt::format("message {}", ++number);
    if (!message.is_object()) {
      fail(ExitCode::kData, "{} is no object with a role", what);
    }
    const std::string_view role = usual_role(text_of(message, turns ? "from" : "role", what));
    const auto found = std::ranges::find(chat.roles, role, &ChatRole::role);
    if (found == chat.roles.end()) {
      std::vector<std::string_view> roles;
      std::ranges::transform(chat.roles, std::back_inserter(roles), &ChatRole::role);
      fail(ExitCode::kData, "{} has the role \"{}\"; the template {} knows {}", what, role,
           chat.name, fmt::join(roles, ", "));
    }
    if (role == "system" && std::exchange(system, number) != 0) {
      fail(ExitCode::kData,
           "{} is a second one of the system; join both into one at the begin, or leave the "
           "dialogue out",
           what);
    }
    if (role == "tool" && speaker != "assistant") {
      fail(ExitCode::kData,
           "{} is what a tool answers, but no message of the assistant before it can have called "
           "one; correct the order, or leave the dialogue out",
           what);
    }
    speaker = role == "tool" ? speaker : role;
    if (std::ranges::any_of(std::array{"tool_calls", "function_call"}, [&](const char* calls) {
          return message.contains(calls) && !message.at(calls).empty();
        })) {
      fail(ExitCode::kData,
           "{} calls tools, which needs the model's own template: render the dialogues with "
           "strata_chat.py",
           what);
    }
    const std::string& content = text_of(message, turns ? "value" : "content", what);
    const std::string_view text = chat.trims ? stripped(content) : std::string_view(content);
    const bool counts = std::ranges::find(learned, role) != learned.end();
    if (counts && stripped(text).empty()) {
      fail(ExitCode::kData, "{}, of the role \"{}\", is empty; leave the dialogue out", what, role);
    }
    add_text(found->before, false, dialogue);
    dialogue.push_back({ChatSegment::Kind::kText, std::string(text), counts});
    add_text(found->end, counts, dialogue);
    add_text(found->after, false, dialogue);
  }
  return dialogue;
}

Dialogue render_prompt(const ChatTemplate& chat, const nlohmann::json& object) {
  Dialogue dialogue = render(chat, object, {});
  const bool turns = !has_value(object, "messages");
  const nlohmann::json& last = object.at(turns ? "conversations" : "messages").back();
  if (usual_role(text_of(last, turns ? "from" : "role", "the last message")) == "assistant") {
    fail(ExitCode::kData,
         "the last message is the assistant's; leave it out: the model answers what is before it");
  }
  const auto answer = std::ranges::find(chat.roles, "assistant", &ChatRole::role);
  add_text(answer->before, false, dialogue);
  dialogue.push_back({ChatSegment::Kind::kText, "x", true});
  add_text(answer->end, true, dialogue);
  return dialogue;
}

Dialogue rendered(const nlohmann::json& object, const char* key) {
  Dialogue dialogue;
  if (!object.contains(key)) {
    fail(ExitCode::kData, R"(there are no "{}", which --template=rendered reads)", key);
  }
  std::int64_t number = 0;
  for (const nlohmann::json& segment : list_of(object, key)) {
    const std::string what = fmt::format("segment {}", ++number);
    if (!segment.is_object() || !segment.contains("label") || !segment.at("label").is_boolean()) {
      fail(ExitCode::kData, R"({} is no object with a "text" and a "label" of true or false)",
           what);
    }
    if (const std::string& text = text_of(segment, "text", what); !text.empty()) {
      dialogue.push_back({ChatSegment::Kind::kText, text, segment.at("label").get<bool>()});
    }
  }
  return dialogue;
}

namespace {

/// The role of a list's first message; empty where it has none.
std::string_view first_role(const nlohmann::json& messages, const char* key) {
  if (!messages.empty() && messages.front().is_object() && messages.front().contains(key) &&
      messages.front().at(key).is_string()) {
    return usual_role(messages.front().at(key).get_ref<const std::string&>());
  }
  return "";
}

/// The dialogue of a pair's answer, as an object that render() takes.
nlohmann::json answer_of(const nlohmann::json& object, const char* which) {
  const nlohmann::json& answer = object.at(which);
  const nlohmann::json prompt = object.value("prompt", nlohmann::json());
  const bool turns = std::ranges::any_of(std::array{&answer, &prompt}, [](const auto* list) {
    return list->is_array() && !first_role(*list, "from").empty();
  });
  const char* const role = turns ? "from" : "role";
  const auto list_from = [&](const nlohmann::json& given, const char* speaker) {
    return given.is_string()
               ? nlohmann::json::array({{{role, speaker}, {turns ? "value" : "content", given}}})
               : given;
  };
  nlohmann::json messages = list_from(answer, "assistant");
  if (!messages.is_array()) {
    fail(ExitCode::kData, "it is neither a text nor a list of messages");
  }
  if (first_role(messages, role) == "assistant") {
    nlohmann::json whole = list_from(prompt, "user");
    if (!whole.is_array() || whole.empty()) {
      fail(ExitCode::kData,
           "it is an answer without a \"prompt\", a text or a list of messages before it");
    }
    whole.insert(whole.end(), messages.begin(), messages.end());
    messages = std::move(whole);
  }
  nlohmann::json dialogue{{turns ? "conversations" : "messages", std::move(messages)}};
  for (const char* key : {"tools", "system"}) {
    dialogue[key] = object.value(key, nlohmann::json());
  }
  return dialogue;
}

}  // namespace

std::vector<Dialogue> render_pair(const ChatTemplate* chat, const nlohmann::json& object,
                                  const std::vector<std::string>& learned) {
  std::vector<Dialogue> pair;
  for (const char* which : {"chosen", "rejected"}) {
    if (!has_value(object, which)) {
      fail(
          ExitCode::kData,
          R"(there is no "{}"; a pair is as {{"prompt": "...", "chosen": "...", "rejected": "..."}})",
          which);
    }
    try {
      pair.push_back(chat == nullptr ? rendered(object, which)
                                     : render(*chat, answer_of(object, which), learned));
    } catch (const Error& error) {
      fail(error.code(), "\"{}\": {}", which, error.what());
    }
  }
  const auto same = [](const ChatSegment& left, const ChatSegment& right) {
    return left.kind == right.kind && left.text == right.text;
  };
  const auto parted = std::ranges::mismatch(pair[0], pair[1], same);
  if (parted.in1 == pair[0].end() && parted.in2 == pair[1].end()) {
    fail(ExitCode::kData,
         "the chosen and the rejected answer are equal, so that neither is preferred; leave the "
         "pair out");
  }
  const auto common = parted.in1 - pair[0].begin();
  for (Dialogue& dialogue : pair) {
    const auto begin = dialogue.begin() + common;
    std::for_each(dialogue.begin(), begin, [](ChatSegment& segment) { segment.counts = false; });
    const char* const which = &dialogue == pair.data() ? "chosen" : "rejected";
    if (std::none_of(begin, dialogue.end(), [](const auto& segment) { return segment.counts; })) {
      fail(ExitCode::kData,
           "nothing of the {} answer counts: the other one begins with all of it, or no message of "
           "--roles follows the prompt; leave the pair out",
           which);
    }
    if (!begin->counts) {
      fail(
          ExitCode::kData,
          "the prompts of the two answers differ, that of the {} one from \"{}\" on; a pair is two "
          "answers to one prompt",
          which, begin->text);
    }
  }
  return pair;
}

}  // namespace strata::io
