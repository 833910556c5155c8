#include "strata/config/command.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/config/options.hpp"
#include "strata/core/familiar_names.hpp"
#include "strata/core/text.hpp"

namespace strata::config {

std::vector<std::string> CommandOption::words() const {
  std::vector<std::string> words =
      value.find('|') == std::string::npos ? std::vector<std::string>() : split_words(value, "|");
  std::erase_if(words, [](const std::string& word) {
    return std::ranges::any_of(word, [](char c) { return c >= 'A' && c <= 'Z'; });
  });
  return words;
}

namespace {

[[noreturn]] void refuse_option(const Command& command, const std::string& name,
                                const std::string& value) {
  std::vector<std::string> names;
  std::ranges::transform(command.options, std::back_inserter(names), &CommandOption::name);
  if (command.settings != TakesSettings::kNone) {
    names.emplace_back(kLayerKey);
    std::ranges::transform(option_table(), std::back_inserter(names), &Option::key);
  }
  std::string advice = "strata " + command.name + " takes none";
  if (const auto meant = meant_by(name, names);
      meant && !meant->value.empty() && means_off(value)) {
    advice = "leave it out";
  } else if (meant) {
    const auto option = std::ranges::find(command.options, meant->name, &CommandOption::name);
    const bool is_switch = option != command.options.end() && option->value.empty();
    advice = fmt::format("write --{}{}", meant->name,
                         is_switch ? "" : "=" + (meant->value.empty() ? value : meant->value));
  } else if (!names.empty()) {
    advice = "the nearest is --" + nearest(name, names);
  }
  fail(ExitCode::kUsage, "there is no option --{}; {}", name, advice);
}

}  // namespace

CommandLine::CommandLine(const Command& command, Arguments arguments)
    : command_(command.name),
      options_(command.options),
      arguments_(arguments.begin(), arguments.end()) {
  const CommandOption* open = nullptr;  // that further values belong to
  bool waits = false;                   // for its first value
  const auto require_value = [&] {
    if (waits) {
      fail(ExitCode::kUsage, "--{} has no value; give --{}=VALUE", open->name, open->name);
    }
  };
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const std::string& argument = arguments_[i];
    if (!argument.starts_with("--")) {
      if (open == nullptr || (command.values == Values::kOne && !waits)) {
        positions_.push_back(argument);
      } else {
        add(*open, argument);
        waits = false;
      }
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const bool next_is_value = equals == std::string::npos && i + 1 < arguments_.size() &&
                               !arguments_[i + 1].starts_with("--");
    if (command.settings != TakesSettings::kNone && name.find('.') != std::string::npos) {
      if (equals == std::string::npos && !next_is_value) {
        fail(ExitCode::kUsage, "--{} has no value; give --{}=VALUE", name, name);
      }
      settings_.push_back(next_is_value ? fmt::format("{}={}", argument, arguments_[++i])
                                        : argument);
      continue;
    }
    require_value();
    const auto option = std::ranges::find(options_, name, &CommandOption::name);
    if (option == options_.end()) {
      refuse_option(command, name,
                    equals != std::string::npos ? argument.substr(equals + 1)
                    : next_is_value             ? arguments_[i + 1]
                                                : "VALUE");
    }
    if (option->value.empty()) {
      if (equals != std::string::npos) {
        fail(ExitCode::kUsage, "--{} takes no value; give it alone, or leave it out", name);
      }
      pairs_.emplace_back(name, "");
      open = nullptr;
      continue;
    }
    open = &*option;
    waits = equals == std::string::npos;
    if (command.values == Values::kOne && option->repeats == OptionRepeats::kLastCounts) {
      std::erase_if(pairs_, [&](const auto& pair) { return pair.first == name; });
    }
    if (!waits) {
      add(*option, argument.substr(equals + 1));
    }
  }
  require_value();
  if (command.positions == Positions::kNone && !positions_.empty()) {
    fail(ExitCode::kUsage, "strata {0} takes options only, not \"{1}\"; see strata {0} --help",
         command_, positions_.front());
  }
  if ((command.positions == Positions::kOne || command.positions == Positions::kSome) &&
      (positions_.empty() || (command.positions == Positions::kOne && positions_.size() > 1))) {
    fail(ExitCode::kUsage, "strata {0} needs {1}: strata {0} {2}", command_, command.needs,
         command.synopses.front().term);
  }
}

void CommandLine::add(const CommandOption& option, const std::string& value) {
  const std::vector<std::string> words = option.words();
  const bool takes_others = std::ranges::count(option.value, '|') >= std::ssize(words);
  const std::string meant = takes_others ? value : value_meant_by(value, words);
  if (!takes_others && std::ranges::find(words, meant) == words.end()) {
    refuse_value(option.name, value, fmt::format("one of {}", fmt::join(words, ", ")));
  }
  pairs_.emplace_back(option.name, meant);
}

bool CommandLine::has(std::string_view name) const {
  return std::any_of(pairs_.begin(), pairs_.end(),
                     [&](const auto& pair) { return pair.first == name; });
}

std::vector<std::string> CommandLine::values(std::string_view name) const {
  std::vector<std::string> values;
  for (const auto& [key, value] : pairs_) {
    if (key == name) {
      values.push_back(value);
    }
  }
  return values;
}

std::string CommandLine::value(std::string_view name, const std::string& otherwise) const {
  const std::vector<std::string> all = values(name);
  if (all.size() > 1) {
    fail(ExitCode::kUsage, "--{} takes one value, it has {}: {}", name, all.size(),
         fmt::join(all, ", "));
  }
  return all.empty() ? otherwise : all.front();
}

std::int64_t CommandLine::count(std::string_view name, std::int64_t otherwise, std::int64_t least,
                                std::int64_t most) const {
  const std::string text = value(name, std::to_string(otherwise));
  std::int64_t count = 0;
  if (!parse_int64(text, count) || count < least || count > most) {
    fail(ExitCode::kUsage, "--{} is \"{}\", it must be a whole number from {} to {}", name, text,
         least, most);
  }
  return count;
}

double CommandLine::number(std::string_view name, double otherwise, double least,
                           double most) const {
  const std::string text = value(name, fmt::format("{}", otherwise));
  double number = 0.0;
  if (!parse_double(text, number) || !(number >= least && number <= most)) {
    fail(ExitCode::kUsage, "--{} is \"{}\", it must be a number from {} to {}", name, text, least,
         most);
  }
  return number;
}

std::string CommandLine::required(std::string_view name) const {
  std::string text = value(name, "");
  if (text.empty()) {
    fail(ExitCode::kUsage, "strata {} needs --{}={}; see strata {} --help", command_, name,
         std::ranges::find(options_, name, &CommandOption::name)->value, command_);
  }
  return text;
}

std::string CommandLine::options_text() const {
  std::string text;
  for (const auto& [name, value] : pairs_) {
    text += fmt::format("--{}={}\n", name, value);
  }
  return text;
}

void CommandLine::set_default(const std::string& name, const std::string& value) {
  if (!has(name)) {
    add(*std::ranges::find(options_, name, &CommandOption::name), value);
  }
}

}  // namespace strata::config
