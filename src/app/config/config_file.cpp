#include "strata/app/config_file.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "strata/app/options.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::app {
namespace {

namespace po = boost::program_options;

using Settings = std::map<std::string, std::vector<std::string>>;

/// The setting that configs of earlier versions call run.patience.
constexpr const char* kTimeoutKey = "run.timeout";
constexpr const char* kEarlierTimeoutKey = "run.patience";

po::options_description known_settings() {
  po::options_description known;
  for (const Option& option : option_table()) {
    known.add_options()(option.key.c_str(), po::value<std::string>(), option.help.c_str());
  }
  known.add_options()(kLayerKey, po::value<std::vector<std::string>>()->composing(), kLayerHelp);
  known.add_options()(kEarlierTimeoutKey, po::value<std::string>(), "");
  return known;
}

[[noreturn]] void refuse_unknown(const std::string& key, const std::string& where) {
  std::vector<std::string> keys{kLayerKey};
  for (const Option& option : option_table()) {
    keys.push_back(option.key);
  }
  fail(ExitCode::kUsage,
       "{}: there is no setting \"{}\"; the nearest is \"{}\" (strata train --help lists all)",
       where, key, nearest(key, keys));
}

/// The settings of one source; a key given twice is an error, but for layers.
Settings settings_of(const po::basic_parsed_options<char>& parsed, const std::string& where) {
  Settings settings;
  for (const po::option& option : parsed.options) {
    if (option.string_key.empty()) {
      fail(ExitCode::kUsage, "{}: \"{}\" is not understood; settings look like --section.key=value",
           where, option.value.empty() ? "" : option.value.front());
    }
    if (option.unregistered) {
      refuse_unknown(option.string_key, where);
    }
    const std::string key =
        option.string_key == kEarlierTimeoutKey ? kTimeoutKey : option.string_key;
    std::vector<std::string>& values = settings[key];
    if (!values.empty() && key != kLayerKey) {
      fail(ExitCode::kUsage, "{}: {} is given twice", where, key);
    }
    values.insert(values.end(), option.value.begin(), option.value.end());
  }
  return settings;
}

Settings file_settings(const std::string& path) {
  std::ifstream in(path);
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    fail(ExitCode::kUsage, "cannot read the config file {}: it is a directory", path);
  }
  if (!in) {
    fail(ExitCode::kUsage, "cannot read the config file {}: {}", path, std::strerror(errno));
  }
  try {
    return settings_of(po::parse_config_file(in, known_settings(), true), path);
  } catch (const po::error& error) {
    fail(ExitCode::kUsage, "{}: {}; a config file has [section] lines and key = value lines", path,
         error.what());
  }
}

Settings argument_settings(std::span<const std::string> arguments) {
  const std::string where = "command line";
  po::basic_parsed_options<char> parsed(nullptr);
  for (const std::string& argument : arguments) {
    const std::size_t equals = argument.find('=');
    if (argument.rfind("--", 0) != 0 || equals == std::string::npos) {
      fail(ExitCode::kUsage, "{}: \"{}\" is not understood; settings look like --section.key=value",
           where, argument);
    }
    const std::string key = argument.substr(2, equals - 2);
    po::option option(key, {argument.substr(equals + 1)});
    option.unregistered = known_settings().find_nothrow(key, false) == nullptr;
    parsed.options.push_back(std::move(option));
  }
  return settings_of(parsed, where);
}

void apply_settings(const Settings& settings, plan::RunConfig& config) {
  for (const auto& [key, values] : settings) {
    for (const std::string& value : values) {
      if (value.find_first_of("#\n") != std::string::npos) {
        fail(ExitCode::kUsage,
             "{} = \"{}\" has a '#' or a line break, which a config file cannot hold", key, value);
      }
    }
    if (key == kLayerKey) {
      config.model.layers = values;
      continue;
    }
    for (const Option& option : option_table()) {
      if (option.key == key) {
        option.set(config, values.empty() ? "" : std::string(trimmed(values.front())));
      }
    }
  }
}

std::string section_of(const std::string& key) {
  return key.substr(0, key.find('.'));
}
std::string name_in_section(const std::string& key) {
  return key.substr(key.find('.') + 1);
}

std::string default_of(const Option& option) {
  const std::string value = option.get(plan::RunConfig());
  return value.empty() ? "empty" : value;
}

}  // namespace

plan::RunConfig read_config(const std::string& path, std::span<const std::string> arguments) {
  plan::RunConfig config;
  apply_settings(file_settings(path), config);
  apply_settings(argument_settings(arguments), config);
  return config;
}

std::string config_text(const plan::RunConfig& config) {
  std::string text;
  for (const Section& section : section_table()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    if (section.name == section_of(kLayerKey)) {
      for (const std::string& layer : config.model.layers) {
        text += fmt::format("{} = {}\n", name_in_section(kLayerKey), layer);
      }
    }
    for (const Option& option : option_table()) {
      if (section_of(option.key) == section.name) {
        text += fmt::format("{} = {}\n", name_in_section(option.key), option.get(config));
      }
    }
  }
  return text;
}

std::string config_help() {
  std::string text;
  for (const Section& section : section_table()) {
    text += fmt::format("\n[{}]  {}\n", section.name, section.about);
    if (section.name == section_of(kLayerKey)) {
      text += fmt::format("  {:<26} {}\n", kLayerKey, kLayerHelp);
    }
    for (const Option& option : option_table()) {
      if (section_of(option.key) == section.name) {
        text += fmt::format("  {:<26} {} ({}{}{}; default {})\n", option.key, option.help,
                            option.values, option.unit.empty() ? "" : ", in ", option.unit,
                            default_of(option));
      }
    }
  }
  return text;
}

std::string config_reference() {
  std::string text =
      "# Configuration\n\n"
      "A config file has `[section]` lines and `key = value` lines; `#` begins a comment. Every "
      "setting can also be "
      "given on\nthe command line as `--section.key=value`, which wins over the file. The file "
      "`config.ini` in a run's "
      "directory is the\nresolved, complete config.\n\n"
      "This page is generated from the program's option table (`strata help reference`); a test "
      "holds it up to date.\n";
  for (const Section& section : section_table()) {
    text += fmt::format(
        "\n## [{}]: {}\n\n| key | values | unit | default | meaning |\n|---|---|---|---|---|\n",
        section.name, section.about);
    if (section.name == section_of(kLayerKey)) {
      text += fmt::format("| `{}` | a layer | | | {} |\n", name_in_section(kLayerKey), kLayerHelp);
    }
    for (const Option& option : option_table()) {
      if (section_of(option.key) == section.name) {
        text += fmt::format("| `{}` | {} | {} | `{}` | {} |\n", name_in_section(option.key),
                            option.values, option.unit, default_of(option), option.help);
      }
    }
  }
  return text + R"(
The lines of `model.layer` are described in [layers.md](layers.md).
)";
}

}  // namespace strata::app
