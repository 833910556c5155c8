#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/io/json.hpp"
#include "strata/io/prompts.hpp"
#include "strata/io/text_file.hpp"
#include "strata/io/tokenizer.hpp"

#include "import/chat_template.hpp"

// Chat templates of published models: Jinja texts, which are compared with the built-in templates
// by all that they can write and all that they ask about. They are not run.
namespace strata::io {
namespace {

constexpr const char* kJinja = "chat_template.jinja";
constexpr const char* kJinjaInJson = "chat_template.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr std::array kTemplateFiles{kJinja, kJinjaInJson, kTokenizerConfig};

/// What built-in templates know: a template that uses another name asks about more than roles and
/// contents, as tools or the date.
const std::set<std::string_view> kNames{"for",
                                        "in",
                                        "if",
                                        "elif",
                                        "else",
                                        "endif",
                                        "endfor",
                                        "set",
                                        "not",
                                        "and",
                                        "or",
                                        "is",
                                        "defined",
                                        "none",
                                        "true",
                                        "false",
                                        "message",
                                        "messages",
                                        "loop",
                                        "first",
                                        "last",
                                        "index",
                                        "role",
                                        "content",
                                        "trim",
                                        "index0",
                                        "bos_token",
                                        "eos_token",
                                        "raise_exception",
                                        "add_generation_prompt"};

/// What a Jinja text is made of.
struct JinjaParts {
  std::vector<std::string> written;  ///< texts outside of statements, and strings that are no names
  std::set<std::string> names;       ///< identifiers that the text does not define itself
  bool trims = false;
  bool prompts = false;  ///< asks whether an answer begins behind the dialogue
};

bool is_jinja_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Reads the inside of {{ }} or {% %}.
class JinjaReader {
 public:
  JinjaReader(const std::map<std::string, std::string>& tokens, JinjaParts& parts)
      : tokens_(tokens), parts_(parts) {}

  void read(std::string_view code) {
    std::string before;  // the token before, an operator or a word
    int refusal = 0;     // the depth of parentheses in raise_exception
    for (std::size_t at = 0; at < code.size();) {
      const char c = code[at];
      if (std::isspace(static_cast<unsigned char>(c)) != 0) {
        ++at;
      } else if (c == '\'' || c == '"') {
        const std::string text = string_at(code, at);
        std::string_view rest = trimmed(code.substr(at));
        const bool compared = before == "==" || before == "!=" || before == "[" || before == "in" ||
                              rest.starts_with("==") || rest.starts_with("!=") ||
                              rest.starts_with("]") || rest.starts_with("in ");
        if (!compared && refusal == 0) {
          parts_.written.push_back(text);
        }
        before = "'";
      } else if (is_jinja_word(c)) {
        std::size_t end = at;
        while (end < code.size() && is_jinja_word(code[end])) {
          ++end;
        }
        const std::string word(code.substr(at, end - at));
        at = end;
        add(word, before);
        refusal = word == "raise_exception" ? 1 : refusal;
        before = word;
      } else if (c == '=' || c == '!') {
        const std::size_t end = std::min(code.find_first_not_of("=!", at), code.size());
        before = code.substr(at, end - at);
        at = end;
      } else {
        refusal += refusal > 1 || (refusal == 1 && c == '(') ? (c == '(') - (c == ')') : 0;
        refusal = c == ')' && refusal == 1 ? 0 : refusal;
        before = c;
        ++at;
      }
    }
  }

 private:
  /// Moves `at` behind the string that begins there.
  static std::string string_at(std::string_view code, std::size_t& at) {
    const char quote = code[at++];
    std::string text;
    for (; at < code.size() && code[at] != quote; ++at) {
      if (code[at] == '\\' && at + 1 < code.size()) {
        ++at;
        text += code[at] == 'n' ? '\n' : code[at] == 't' ? '\t' : code[at];
      } else {
        text += code[at];
      }
    }
    at = std::min(at + 1, code.size());
    return text;
  }

  void add(const std::string& word, const std::string& before) {
    parts_.prompts = parts_.prompts || word == "add_generation_prompt";
    const bool is_token = word == "bos_token" || word == "eos_token";
    if (is_token) {
      const auto found = tokens_.find(word);
      parts_.written.push_back(found == tokens_.end() ? word : found->second);
    } else if (before == "set" || before == "for") {
      own_.insert(word);
    } else if (word == "trim" || word == "strip") {
      parts_.trims = true;
    } else if (std::isdigit(static_cast<unsigned char>(word.front())) == 0 &&
               !own_.contains(word) && !kNames.contains(word)) {
      parts_.names.insert(word);
    }
  }

  const std::map<std::string, std::string>& tokens_;
  JinjaParts& parts_;
  std::set<std::string> own_;
};

/// Divides a Jinja text as transformers reads it: with trim_blocks and lstrip_blocks.
JinjaParts jinja_parts(std::string_view text, const std::map<std::string, std::string>& tokens) {
  JinjaParts parts;
  JinjaReader reader(tokens, parts);
  const auto strip_end = [](std::string& raw, std::string_view which) {
    raw.resize(raw.find_last_not_of(which) + 1);
  };
  bool strips = false;      // the white space before the next raw text's first other character
  bool drops_feed = false;  // a block's line feed
  bool begins = true;
  while (!text.empty()) {
    std::size_t open = std::min({text.find("{{"), text.find("{%"), text.find("{#"), text.size()});
    std::string raw(text.substr(0, open));
    bool begins_line = begins;
    if (drops_feed && raw.starts_with('\n')) {
      raw.erase(0, 1);
      begins_line = true;
    }
    begins = false;
    if (strips) {
      raw.erase(0, std::min(raw.find_first_not_of(" \t\r\n"), raw.size()));
    }
    const bool ends = open == text.size();
    const char kind = ends ? ' ' : text[open + 1];
    if (!ends && open + 2 < text.size() && text[open + 2] == '-') {
      strip_end(raw, " \t\r\n");
    } else if (kind == '%' || kind == '#') {
      const std::size_t line = raw.find_last_of('\n') + 1;
      if ((begins_line || line > 0) && raw.find_first_not_of(" \t", line) == std::string::npos) {
        raw.resize(line);
      }
    }
    if (!raw.empty()) {
      parts.written.push_back(raw);
    }
    if (ends) {
      break;
    }
    const std::string close = kind == '{' ? "}}" : std::string(1, kind) + "}";
    const std::size_t end = std::min(text.find(close, open + 2), text.size());
    std::string_view code = text.substr(open + 2, end - open - 2);
    strips = code.ends_with('-');
    drops_feed = kind != '{';
    if (code.starts_with('-')) {
      code.remove_prefix(1);
    }
    if (strips && !code.empty()) {
      code.remove_suffix(1);
    }
    if (kind != '#') {
      reader.read(code);
    }
    // It may write the end of the last message alone, or of all but the last.
    if (code.find("loop.last") != std::string_view::npos &&
        code.find("add_generation_prompt") == std::string_view::npos) {
      parts.names.insert("loop.last");
    }
    text.remove_prefix(std::min(end + 2, text.size()));
  }
  return parts;
}

/// Takes tokens, as <|im_end|>, </s> or [INST], out of a text.
std::set<std::string> take_marks(std::string& text) {
  std::set<std::string> marks;
  std::string rest;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    std::size_t end = c == '<'   ? text.find('>', at)
                      : c == '[' ? text.find(']', at)
                                 : std::string::npos;
    while (end != std::string::npos && text.substr(end + 1, 1) == ">") {
      ++end;
    }
    const std::string mark = end == std::string::npos ? "" : text.substr(at, end + 1 - at);
    const bool is_mark = mark.size() > 2 && mark.find_first_of(" \n'\"") == std::string::npos;
    if (is_mark) {
      marks.insert(mark);
      at = end + 1;
      rest += '\x01';
    } else {
      rest += c;
      ++at;
    }
  }
  text = rest;
  return marks;
}

/// What a built-in template writes beside the contents: its tokens, and the other texts.
struct Writing {
  std::set<std::string> marks;
  std::set<std::string> texts;
};

/// Roles, and marks as \x01, are taken out of texts: a Jinja text may write them from variables.
void add_writing(std::string text, Writing& writing) {
  writing.marks.merge(take_marks(text));
  for (const char* role : {"system", "user", "assistant", "model", "tool", "ipython"}) {
    for (std::size_t at = text.find(role); at != std::string::npos; at = text.find(role)) {
      text.replace(at, std::string_view(role).size(), "\x01");
    }
  }
  std::string piece;
  for (const char c : text + "\x01") {
    if (c != '\x01') {
      piece += c;
    } else if (!piece.empty()) {
      writing.texts.insert(std::exchange(piece, ""));
    }
  }
}

/// All that a built-in template writes around contents, which are \x01, in the order of its roles.
std::string whole_text(const ChatTemplate& chat) {
  std::string text(chat.begin);
  for (const ChatRole& role : chat.roles) {
    text += fmt::format("{}\x01{}{}", role.before, role.end, role.after);
  }
  std::erase_if(text, [](char c) { return c == '^' || c == '$'; });
  return text;
}

/// The default system prompt in a template of ChatML's form; empty without.
std::string default_prompt(const std::string& text) {
  constexpr std::string_view kBegin = "<|im_start|>system\n";
  constexpr std::string_view kEnd = "<|im_end|>\n";
  return text.starts_with(kBegin) && text.ends_with(kEnd) &&
                 text.size() > kBegin.size() + kEnd.size()
             ? text.substr(kBegin.size(), text.size() - kBegin.size() - kEnd.size())
             : "";
}

/// How a Jinja text differs from a built-in template; empty where it does not.
std::string difference(const JinjaParts& parts, const ChatTemplate& chat) {
  Writing ours;
  add_writing(whole_text(chat), ours);
  Writing theirs;
  for (const std::string& text : parts.written) {
    add_writing(default_prompt(text).empty() ? text : "<|im_start|>\n<|im_end|>\n", theirs);
  }
  // What some versions leave out, and others write behind a dialogue.
  std::set<std::string> missing;
  std::ranges::set_difference(ours.marks, theirs.marks, std::inserter(missing, missing.end()));
  missing.erase("<|system|>");
  if (!missing.empty()) {
    return fmt::format("does not write {}", fmt::join(missing, " "));
  }
  std::set<std::string> more;
  std::ranges::set_difference(theirs.marks, ours.marks, std::inserter(more, more.end()));
  if (chat.name == "phi3") {
    more.erase("<|endoftext|>");
  }
  if (!more.empty()) {
    return fmt::format("writes {} too", fmt::join(more, " "));
  }
  // One space is like another, so that all texts must be there, in order.
  std::string all = whole_text(chat);
  std::erase(all, '\x01');
  const std::string written = fmt::format("{}", fmt::join(parts.written, ""));
  const bool ends = std::ranges::all_of(chat.roles, [&](const ChatRole& role) {
    std::string end = fmt::format("{}{}", role.end, role.after);
    std::erase_if(end, [](char c) { return c == '^' || c == '$'; });
    return written.find(end) != std::string::npos;
  });
  const bool same = ours.texts == std::set<std::string>{" "}
                        ? written == all
                        : theirs.texts == ours.texts && ends && written.starts_with('<');
  if (!same) {
    return "writes other texts or white space around messages";
  }
  // Gemma's name for the assistant, in the dialogue and at the begin of an answer.
  constexpr std::string_view kModel = "model";
  const auto named = std::ranges::count_if(parts.written, [&](const std::string& text) {
    return text.find(kModel) != std::string::npos;
  });
  if (all.find(kModel) != std::string::npos && named < (parts.prompts ? 2 : 1)) {
    return "does not call the assistant model";
  }
  if (!parts.names.empty()) {
    return fmt::format("uses {}", fmt::join(parts.names, ", "));
  }
  return parts.trims == chat.trims ? "" : "treats white space around contents otherwise";
}

/// The texts of special tokens by their names in Jinja texts.
std::map<std::string, std::string> named_tokens(const nlohmann::json& config) {
  std::map<std::string, std::string> tokens;
  for (const char* name : {"bos_token", "eos_token"}) {
    if (std::string text = token_text(config.value(name, nlohmann::json())); !text.empty()) {
      tokens[name] = std::move(text);
    }
  }
  return tokens;
}

/// The Jinja text in a file; of several the default one.
std::string jinja_in(const std::string& file, const std::string& text) {
  if (file == kJinja) {
    return text;
  }
  const auto json = parse_json(text);
  nlohmann::json found =
      json && json->is_object() ? json->value("chat_template", nlohmann::json()) : nlohmann::json();
  if (found.is_array()) {
    for (const nlohmann::json& one : nlohmann::json(found)) {
      if (one.is_object() && one.value("name", nlohmann::json()) == "default") {
        found = one.value("template", nlohmann::json());
      }
    }
  }
  return found.is_string() ? found.get<std::string>() : "";
}

/// A text as a string in Jinja.
std::string jinja_string(std::string_view text) {
  std::string string = "'";
  for (const char c : text) {
    if (c != '^' && c != '$') {
      string += c == '\n' ? "\\n" : std::string(1, c);
    }
  }
  return string + "'";
}

}  // namespace

PublishedTemplate published_template(const std::map<std::string, std::string>& files) {
  const auto config_text = files.find(kTokenizerConfig);
  const auto config = config_text == files.end() ? std::nullopt : parse_json(config_text->second);
  const std::map<std::string, std::string> tokens =
      named_tokens(config && config->is_object() ? *config : nlohmann::json::object());
  for (const char* const file : kTemplateFiles) {
    const auto found = files.find(file);
    const std::string text = found == files.end() ? "" : jinja_in(file, found->second);
    if (text.empty()) {
      continue;
    }
    const JinjaParts parts = jinja_parts(text, tokens);
    PublishedTemplate result{.file = file};
    std::vector<std::string> differences;
    for (const ChatTemplate& chat : chat_templates()) {
      const std::string difference = io::difference(parts, chat);
      if (difference.empty()) {
        result.name = chat.name;
        return result;
      }
      if (!difference.starts_with("does not write")) {
        result.difference = fmt::format("it is like {}, but {}", chat.name, difference);
      }
    }
    for (const char* const name : {"bos_token", "eos_token"}) {
      if (std::ranges::find(parts.written, name) != parts.written.end()) {
        result.difference =
            fmt::format("it writes {}, which {} does not have", name, kTokenizerConfig);
      }
    }
    if (result.difference.empty()) {
      result.difference = "it has the tokens of none of them";
    }
    return result;
  }
  return {};
}

PublishedTemplate published_template(const std::filesystem::path& directory) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20U;
  std::map<std::string, std::string> files;
  for (const char* const file : kTemplateFiles) {
    // A cache of models has links.
    const auto path = std::filesystem::weakly_canonical(directory / file);
    if (auto text = read_text(path, ExitCode::kData, kMostBytes)) {
      files.emplace(file, std::move(*text));
    }
  }
  return published_template(files);
}

std::string unknown_template_text(const PublishedTemplate& found, const std::string& directory) {
  std::vector<std::string_view> names;
  std::ranges::transform(chat_templates(), std::back_inserter(names), &ChatTemplate::name);
  return fmt::format(
      "the chat template in {}/{} is none of {}: {}; render the dialogues with it, python3 "
      "strata_chat.py {} FILE.jsonl > rendered.jsonl, and import these with --template=rendered",
      directory, found.file, fmt::join(names, ", "), found.difference, directory);
}

std::string jinja_text(const std::string& name) {
  const ChatTemplate& chat = chat_template(name);
  const std::string content = chat.trims ? "message['content'] | trim" : "message['content']";
  std::string text =
      chat.begin.empty() ? "" : fmt::format("{{{{ {} }}}}", jinja_string(chat.begin));
  text += "{% for message in messages %}";
  const char* word = "if";
  for (const ChatRole& role : chat.roles) {
    text += fmt::format("{{% {} message['role'] == '{}' %}}{{{{ {} + ({}) + {} }}}}", word,
                        role.role, jinja_string(role.before), content,
                        jinja_string(fmt::format("{}{}", role.end, role.after)));
    word = "elif";
  }
  text +=
      "{% else %}{{ raise_exception('this role is not known') }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}";
  const auto answer = std::ranges::find(chat.roles, "assistant", &ChatRole::role);
  // A single space belongs to the answer's first word.
  const std::string prompt(answer->before == " " ? "" : answer->before);
  return text + (prompt.empty() ? "" : fmt::format("{{{{ {} }}}}", jinja_string(prompt))) +
         "{% endif %}";
}

}  // namespace strata::io
