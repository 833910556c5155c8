#include "strata/config/command.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/config/options.hpp"
#include "strata/core/text.hpp"

namespace strata::config {

CommandLine::CommandLine(const Command& command, Arguments arguments)
    : arguments_(arguments.begin(), arguments.end()) {
  std::string open;  // the option that further values belong to
  const auto require_value = [&] {
    if (!open.empty() && !has(open)) {
      fail(ExitCode::kUsage, "--{} has no value; give --{}=VALUE", open, open);
    }
  };
  for (const std::string& argument : arguments_) {
    if (!argument.starts_with("--")) {
      if (open.empty() || (command.values == Values::kOne && has(open))) {
        positions_.push_back(argument);
      } else {
        pairs_.emplace_back(open, argument);
      }
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    if (command.settings != TakesSettings::kNone && name.find('.') != std::string::npos) {
      settings_.push_back(argument);
      continue;
    }
    require_value();
    const auto option = std::ranges::find(command.options, name, &CommandOption::name);
    if (option == command.options.end()) {
      std::vector<std::string> names;
      std::ranges::transform(command.options, std::back_inserter(names), &CommandOption::name);
      if (command.settings != TakesSettings::kNone) {
        std::ranges::transform(option_table(), std::back_inserter(names), &Option::key);
      }
      fail(ExitCode::kUsage, "there is no option --{}; {}", name,
           names.empty() ? "strata " + command.name + " takes none"
                         : "the nearest is --" + nearest(name, names));
    }
    if (option->value.empty()) {
      if (equals != std::string::npos) {
        fail(ExitCode::kUsage, "--{} takes no value; give it alone, or leave it out", name);
      }
      pairs_.emplace_back(name, "");
      open.clear();
      continue;
    }
    open = name;
    if (command.values == Values::kOne) {
      std::erase_if(pairs_, [&](const auto& pair) { return pair.first == name; });
    }
    if (equals != std::string::npos) {
      pairs_.emplace_back(name, argument.substr(equals + 1));
    }
  }
  require_value();
  if (command.positions != Positions::kAny &&
      (positions_.empty() || (command.positions == Positions::kOne && positions_.size() > 1))) {
    fail(ExitCode::kUsage, "strata {0} needs {1}: strata {0} {2}", command.name, command.needs,
         command.synopses.front().term);
  }
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

std::string CommandLine::options_text() const {
  std::string text;
  for (const auto& [name, value] : pairs_) {
    text += fmt::format("--{}={}\n", name, value);
  }
  return text;
}

void CommandLine::set_default(const std::string& name, const std::string& value) {
  if (!has(name)) {
    pairs_.emplace_back(name, value);
  }
}

}  // namespace strata::config
