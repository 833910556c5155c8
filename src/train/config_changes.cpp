#include "strata/train/config_changes.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace strata::train {

std::vector<IniLine> settings_in(std::string_view text) {
  std::vector<IniLine> settings;
  for (IniLine& line : ini_lines(text)) {
    if (!settings.empty() && settings.back().key == line.key) {
      settings.back().value += ", " + line.value;
    } else {
      settings.push_back(std::move(line));
    }
  }
  return settings;
}

std::vector<std::string> config_changes(std::string_view before, std::string_view now) {
  const std::vector<IniLine> earlier = settings_in(before);
  std::vector<std::string> changes;
  for (const IniLine& setting : settings_in(now)) {
    const auto old = std::ranges::find(earlier, setting.key, &IniLine::key);
    if (old != earlier.end() && old->value != setting.value && setting.key != "run.dir" &&
        setting.key != "run.resume") {
      const auto shown = [](const std::string& value) { return value.empty() ? "\"\"" : value; };
      changes.push_back(
          fmt::format("{}: {} -> {}", setting.key, shown(old->value), shown(setting.value)));
    }
  }
  return changes;
}

std::vector<std::string> training_changes(std::string_view before, std::string_view now) {
  std::vector<std::string> changes = config_changes(before, now);
  std::erase_if(changes, [](const std::string& change) {
    constexpr std::array<std::string_view, 8> kSettings{
        "optimizer.",    "schedule.",        "numerics.",
        "train.steps:",  "train.nonfinite:", "train.label_smoothing:",
        "train.z_loss:", "train.dpo_beta:"};
    return std::ranges::none_of(
        kSettings, [&](std::string_view setting) { return change.starts_with(setting); });
  });
  return changes;
}

}  // namespace strata::train
