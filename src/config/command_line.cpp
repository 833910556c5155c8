#include "strata/config/command_line.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::config {

SplitArguments split_settings(Arguments arguments) {
  SplitArguments result;
  for (const std::string& argument : arguments) {
    const std::size_t dot = argument.substr(0, argument.find('=')).find('.');
    const bool setting = argument.starts_with("--") && dot != std::string::npos;
    (setting ? result.settings : result.options).push_back(argument);
  }
  return result;
}

CommandLine::CommandLine(Arguments arguments, const std::vector<std::string>& names,
                         const std::vector<std::string>& switches, Values each) {
  const auto is_in = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  std::string open;  // the name that further values belong to
  const auto require_value = [&] {
    if (!open.empty() && !has(open)) {
      fail(ExitCode::kUsage, "--{} has no value; give --{}=VALUE", open, open);
    }
  };
  for (const std::string& argument : arguments) {
    if (argument.rfind("--", 0) != 0) {
      if (open.empty() || (each == Values::kOne && has(open))) {
        positions_.push_back(argument);
      } else {
        pairs_.emplace_back(open, argument);
      }
      continue;
    }
    require_value();
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    if (is_in(switches, name)) {
      if (equals != std::string::npos) {
        fail(ExitCode::kUsage, "--{} takes no value; give it alone, or leave it out", name);
      }
      pairs_.emplace_back(name, "");
      open.clear();
      continue;
    }
    if (!is_in(names, name)) {
      std::vector<std::string> all = names;
      all.insert(all.end(), switches.begin(), switches.end());
      fail(ExitCode::kUsage, "there is no option --{}; the nearest is --{}", name,
           nearest(name, all));
    }
    open = name;
    if (each == Values::kOne) {
      std::erase_if(pairs_, [&](const auto& pair) { return pair.first == name; });
    }
    if (equals != std::string::npos) {
      pairs_.emplace_back(name, argument.substr(equals + 1));
    }
  }
  require_value();
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

}  // namespace strata::config
