#include "strata/config/config_file.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "strata/config/options.hpp"
#include "strata/core/error.hpp"
#include "strata/core/familiar_names.hpp"
#include "strata/core/text.hpp"

#include "ini_file.hpp"

namespace strata::config {
namespace {

using Settings = std::map<std::string, std::vector<std::string>>;

// Comments that resolved_config_text() writes after values.
constexpr std::string_view kDefault = "default";
constexpr std::string_view kDerived = "derived";

/// How a repeated key in one source is treated, apart from model.layer: refused in a file; the last
/// one of a command line counts.
enum class Repeated { kRefused, kLastWins };

std::string section_of(const std::string& key) {
  return key.substr(0, key.find('.'));
}
std::string name_in_section(const std::string& key) {
  return key.substr(key.find('.') + 1);
}

[[noreturn]] void refuse_unknown(const IniLine& line, const std::string& where, Repeated source) {
  std::vector<std::string> keys{kLayerKey};
  std::ranges::transform(option_table(), std::back_inserter(keys), &Option::key);
  std::string advice = fmt::format("the nearest is \"{}\" (strata train --help=all lists all)",
                                   nearest(line.key, keys));
  if (const auto meant = meant_by(line.key, keys);
      meant && !meant->value.empty() && means_off(line.value)) {
    advice = "leave it out";
  } else if (meant) {
    const std::string& value = meant->value.empty() ? line.value : meant->value;
    advice = source == Repeated::kRefused
                 ? fmt::format("write {} = {} under [{}]", name_in_section(meant->name), value,
                               section_of(meant->name))
                 : fmt::format("write --{}={}", meant->name, value);
  }
  fail(ExitCode::kUsage, "{}: there is no setting \"{}\"; {}", where, line.key, advice);
}

/// The settings of one source. A run's own file may have defaults of settings that this version
/// lacks.
Settings settings_of(std::span<const IniLine> lines, const std::string& where, Repeated repeated) {
  Settings settings;
  for (const IniLine& line : lines) {
    const auto& [key, value, comment] = line;
    if (key.empty()) {
      fail(ExitCode::kUsage, "{}: \"{}\" is not understood; settings look like --section.key=value",
           where, value);
    }
    if (key != kLayerKey && std::ranges::count(option_table(), key, &Option::key) == 0) {
      if (comment == kDefault) {
        continue;
      }
      refuse_unknown(line, where, repeated);
    }
    std::vector<std::string>& values = settings[key];
    if (!values.empty() && key != kLayerKey) {
      if (repeated == Repeated::kRefused) {
        fail(ExitCode::kUsage, "{}: {} is given twice; keep one", where, key);
      }
      values.clear();
    }
    values.push_back(value);
  }
  return settings;
}

/// The origins of the settings in a config file, from the comments after their values.
std::map<std::string, Origin> origins_in(std::span<const IniLine> lines) {
  std::map<std::string, Origin> origins;
  for (const IniLine& line : lines) {
    if (line.comment != kDefault) {
      const bool derived =
          line.comment == kDerived || line.comment.starts_with(std::string(kDerived) + ": ");
      origins[line.key] = derived ? Origin::kDerived : Origin::kGiven;
    }
  }
  return origins;
}

Settings argument_settings(std::span<const std::string> arguments) {
  const std::string where = "command line";
  std::vector<IniLine> lines;
  lines.reserve(arguments.size());
  for (const std::string& argument : arguments) {
    const std::size_t equals = argument.find('=');
    if (argument.rfind("--", 0) != 0 || equals == std::string::npos) {
      fail(ExitCode::kUsage, "{}: \"{}\" is not understood; settings look like --section.key=value",
           where, argument);
    }
    lines.push_back({argument.substr(2, equals - 2), argument.substr(equals + 1), ""});
  }
  return settings_of(lines, where, Repeated::kLastWins);
}

/// A run length in steps replaces an earlier one in epochs, and the other way round.
void replace_length(const Settings& settings, RunConfig& config) {
  const bool steps = settings.contains("train.steps");
  const bool epochs = settings.contains("train.epochs");
  if (steps && !epochs && config.train.steps > 0) {
    config.train.epochs = 0.0;
  } else if (epochs && !steps && config.train.epochs > 0.0) {
    config.train.steps = 0;
  }
}

void apply_settings(const Settings& settings, RunConfig& config) {
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
  replace_length(settings, config);
}

std::string default_of(const Option& option) {
  const std::string value = option.get(RunConfig());
  return value.empty() ? "empty" : value;
}

}  // namespace

namespace {

bool has_model(const RunConfig& config) {
  return !config.model.layers.empty() || config.model.transformer.preset != nn::Preset::kNone;
}

/// A new run without a model takes that of checkpoint.init, and a resumed one its own, as the
/// other's directory may be gone. Settings that were given stay.
void take_initial_model(GivenConfig& given) {
  namespace fs = std::filesystem;
  const fs::path initial(given.config.checkpoint.init);
  if (initial.empty() || has_model(given.config)) {
    return;
  }
  std::vector<fs::path> directories{initial, initial / ".." / ".."};  // a run's, a checkpoint's
  const fs::path own(given.config.run.dir);
  if (std::error_code error;
      given.config.run.resume != Resume::kNever && fs::exists(own / "checkpoints", error)) {
    directories.insert(directories.begin(), own);
  }
  for (const fs::path& directory : directories) {
    const fs::path file = directory / "config.ini";
    if (std::error_code error; !fs::exists(file, error)) {
      continue;
    }
    const std::vector<IniLine> lines = user_ini_lines(file.string());
    const std::map<std::string, Origin> origins = origins_in(lines);
    Settings settings = settings_of(lines, file.string(), Repeated::kRefused);
    std::erase_if(settings, [&](const auto& setting) {
      const auto origin = origins.find(setting.first);
      return section_of(setting.first) != section_of(kLayerKey) || origin == origins.end() ||
             origin->second != Origin::kGiven || given.origins.contains(setting.first);
    });
    apply_settings(settings, given.config);
    for (const auto& [key, values] : settings) {
      given.origins[key] = Origin::kGiven;
    }
    if (has_model(given.config)) {
      return;
    }
  }
  fail(ExitCode::kUsage,
       "the config has no model, and checkpoint.init = {} has no config.ini to take one from; name "
       "a run's directory or a checkpoint in it, or give model.layer or model.preset",
       initial.string());
}

/// Refuses a value that is written and would be the preset's.
void check_preset(const GivenConfig& given) {
  const nn::TransformerOptions& model = given.config.model.transformer;
  const auto is_given = [&](const std::string& key) {
    const auto origin = given.origins.find(key);
    return origin != given.origins.end() && origin->second == Origin::kGiven;
  };
  if (!nn::is_transformer(model.preset)) {
    return;
  }
  if (model.attention_window == 0 && is_given("model.attention_window")) {
    if (const std::int64_t window = nn::resolved(model).attention_window; window > 0) {
      fail(ExitCode::kUsage,
           "model.attention_window is 0, which stands for the {} tokens of model.preset = {}; "
           "leave it out, or set it to model.context for no limit",
           window, name_of(model.preset));
    }
  }
  if (model.rotary_scaling == ops::RotaryScaling{} && is_given("model.rotary_scaling")) {
    if (const ops::RotaryScaling scaling = nn::resolved(model).rotary_scaling;
        scaling != ops::RotaryScaling{}) {
      fail(ExitCode::kUsage,
           "model.rotary_scaling is none, which stands for the {} of model.preset = {}; leave it "
           "out, or set it to linear:1 for frequencies as they are",
           name_of(scaling.kind), name_of(model.preset));
    }
  }
}

}  // namespace

GivenConfig read_config(const std::string& path, std::span<const std::string> arguments) {
  GivenConfig given;
  const std::vector<IniLine> lines = user_ini_lines(path);
  apply_settings(settings_of(lines, path, Repeated::kRefused), given.config);
  given.origins = origins_in(lines);
  const Settings settings = argument_settings(arguments);
  apply_settings(settings, given.config);
  for (const auto& [key, values] : settings) {
    given.origins[key] = Origin::kGiven;
  }
  if (given.config.run.dir.empty()) {
    const std::string name = std::filesystem::path(path).stem().string();
    apply_settings({{"run.dir", {"runs/" + name}}}, given.config);
    given.origins["run.dir"] = Origin::kDerived;
  }
  take_initial_model(given);
  check_preset(given);
  return given;
}

ChangedSettings changed_settings(const RunConfig& from, const RunConfig& to) {
  ChangedSettings changes;
  for (const Option& option : option_table()) {
    if (std::string value = option.get(to); value != option.get(from)) {
      changes.emplace_back(option.key, std::move(value));
    }
  }
  return changes;
}

std::string with_settings(std::string_view text, const ChangedSettings& settings) {
  ChangedSettings missing = settings;
  for (const IniLine& line : ini_lines(text)) {
    std::erase_if(missing, [&](const auto& setting) { return setting.first == line.key; });
  }
  std::string result;
  std::string section;
  const auto add_missing = [&] {
    std::string lines;
    std::erase_if(missing, [&](const auto& setting) {
      const bool is_here = section_of(setting.first) == section;
      lines +=
          is_here ? fmt::format("{} = {}\n", name_in_section(setting.first), setting.second) : "";
      return is_here;
    });
    // Before the blank lines and comments that lead to the next section.
    std::size_t end = result.size();
    for (std::size_t begin = end; begin > 0; end = begin) {
      begin = begin < 2 ? 0 : result.rfind('\n', begin - 2) + 1;
      const std::string_view line = trimmed(std::string_view(result).substr(begin, end - begin));
      if (!line.empty() && !line.starts_with('#')) {
        break;
      }
    }
    result.insert(lines.empty() ? result.size() : end, lines);
  };
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    const std::size_t comment = std::min(line.find('#'), line.size());
    const std::string_view setting = trimmed(line.substr(0, comment));
    if (setting.starts_with('[')) {
      add_missing();
      section = setting.substr(1, setting.size() - 2);
    }
    const std::string key =
        fmt::format("{}.{}", section, trimmed(setting.substr(0, setting.find('='))));
    const auto changed = std::ranges::find(settings, key, &ChangedSettings::value_type::first);
    result += changed == settings.end()
                  ? fmt::format("{}\n", line)
                  : fmt::format("{} = {}{}{}\n", name_in_section(key), changed->second,
                                line.size() > comment ? "  " : "", line.substr(comment));
  }
  add_missing();
  while (!missing.empty()) {
    section = section_of(missing.front().first);
    result += fmt::format("\n[{}]\n", section);
    add_missing();
  }
  return result;
}

namespace {

/// A config file with one line per setting; `comment_of(option)` follows its value.
template <typename Comment>
std::string config_lines(const RunConfig& config, const Comment& comment_of) {
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
        text += fmt::format("{} = {}{}\n", name_in_section(option.key), option.get(config),
                            comment_of(option));
      }
    }
  }
  return text;
}

}  // namespace

std::string config_text(const RunConfig& config) {
  return config_lines(config, [](const Option&) { return ""; });
}

std::string resolved_config_text(const GivenConfig& given, const RunConfig& resolved,
                                 const std::map<std::string, std::string>& launch) {
  const auto comment_of = [&](const Option& option) -> std::string {
    const auto now = launch.find(option.key);
    if (now != launch.end()) {
      return fmt::format("  # {}: {}", kDerived, now->second);
    }
    const auto origin = given.origins.find(option.key);
    const bool changed = option.get(given.config) != option.get(resolved);
    if (changed || (origin != given.origins.end() && origin->second == Origin::kDerived)) {
      return fmt::format("  # {}", kDerived);
    }
    return origin == given.origins.end() ? fmt::format("  # {}", kDefault) : "";
  };
  return std::string(kRunConfigHead) +
         " Those without a comment were given; the others are defaults, or derived from the rest.\n"
         "# What depends on the launch is derived anew where this file is used again; the comment "
         "has its last value.\n\n" +
         config_lines(resolved, comment_of);
}

namespace {

/// A setting that most runs set, in a few words, with what its default, if that is 0 or auto,
/// means.
struct CommonSetting {
  const char* key;
  const char* about;
};
constexpr CommonSetting kCommon[] = {
    {"model.layer", "a layer, one line each, from input to output"},
    {"model.preset", "a model by name instead: gpt, llama, resnet20, ..."},
    {"data.train", "the training split, made with strata data import"},
    {"data.test", "the test split"},
    {"batch.global", "samples of a step, over all ranks"},
    {"batch.micro", "samples of a forward pass (chosen)"},
    {"parallel.data", "replicas (all ranks that are left)"},
    {"parallel.pipeline", "pipeline stages"},
    {"parallel.tensor", "tensor-parallel ranks"},
    {"numerics.dtype", "float32, bfloat16 or float64"},
    {"optimizer.kind", "sgd, adam, adamw or adagrad (adamw)"},
    {"optimizer.learning_rate", "peak learning rate (by optimizer.kind)"},
    {"schedule.kind", "constant, step, linear or cosine"},
    {"train.steps", "length of the run, or"},
    {"train.epochs", "length of the run in epochs"},
    {"train.evaluate_every", "steps between evaluations (at the end)"},
    {"checkpoint.every", "steps between checkpoints (by the clock)"},
    {"checkpoint.init", "a run or checkpoint whose weights to start from"},
    {"run.dir", "where the run's files go"},
    {"run.seed", "seed of all random numbers"},
    {"run.device", "cpu or cuda (cuda where there is a GPU)"},
    {"run.resume", "never, auto or must"}};

}  // namespace

std::vector<HelpList> config_help(HelpDetail detail) {
  if (detail == HelpDetail::kCommon) {
    HelpList common{"Common settings, as in --train.steps=1000 (and their defaults)", {}};
    for (const auto& [key, about] : kCommon) {
      const auto option = std::ranges::find(option_table(), key, &Option::key);
      const std::string value = option == option_table().end() ? "" : option->get(RunConfig());
      const bool says = !value.empty() && value != "0" && value != "auto" && value != "none";
      common.terms.push_back({key, about + (says ? fmt::format(" ({})", value) : "")});
    }
    common.terms.push_back(
        {"--help=all", fmt::format("lists all {} settings", option_table().size())});
    return {common};
  }
  std::vector<HelpList> lists;
  for (const Section& section : section_table()) {
    HelpList settings{fmt::format("[{}]  {}", section.name, section.about), {}};
    if (section.name == section_of(kLayerKey)) {
      settings.terms.push_back({kLayerKey, kLayerHelp});
    }
    for (const Option& option : option_table()) {
      if (section_of(option.key) == section.name) {
        settings.terms.push_back(
            {option.key,
             fmt::format("{} ({}{}{}; default {})", option.help, option.values,
                         option.unit.empty() ? "" : ", in ", option.unit, default_of(option))});
      }
    }
    lists.push_back(std::move(settings));
  }
  return lists;
}

std::string config_reference() {
  std::string text =
      "# Configuration\n\n"
      "A config file has `[section]` lines and `key = value` lines; `#` begins a comment. The "
      "command line takes every\nsetting as `--section.key=value`, which overrides the file. If a "
      "setting is given twice on the command line, the last\ncounts. `config.ini` in a run's "
      "directory has every setting, and says which were defaults and which the program\nderived.\n"
      "\n"
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

}  // namespace strata::config
