#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/config/options.hpp"
#include "strata/core/error.hpp"

namespace strata::config {
namespace {

const Option& option_of(std::string_view key) {
  return *std::ranges::find(option_table(), key, &Option::key);
}

bool is_default(const Option& option, const RunConfig& config) {
  return option.get(config) == option.get(RunConfig());
}

}  // namespace

bool is_set(const RunConfig& config, std::string_view key) {
  // Values beside the default that leave a setting out.
  static const std::map<std::string_view, std::string_view> kNone{
      {"parallel.node_ranks", "1"}, {"train.repeat_every", "0"}, {"numerics.loss_pieces", "1"}};
  const Option& option = option_of(key);
  const auto none = kNone.find(key);
  return !is_default(option, config) && (none == kNone.end() || option.get(config) != none->second);
}

void check_used(const RunConfig& config, std::initializer_list<std::string_view> keys, bool used,
                const std::string& because, const std::string& instead) {
  for (const std::string_view key : keys) {
    if (!used && is_set(config, key)) {
      fail(ExitCode::kUsage, "{} is set, but {}, so it has no effect; leave it out, or {}", key,
           because, instead);
    }
  }
}

void check_needs(const RunConfig& config) {
  for (const Option& option : option_table()) {
    for (const Need& need : option.needs) {
      const Option& other = option_of(need.setting);
      const std::string value = other.get(config);
      const bool met = need.values.empty() ? !is_default(other, config)
                                           : std::ranges::count(need.values, value) > 0;
      check_used(
          config, {option.key}, met,
          fmt::format("{} is {}{}", need.setting, value.empty() ? "empty" : value, need.because),
          need.instead.empty()
              ? fmt::format("set {} to {}", need.setting, fmt::join(need.values, " or "))
              : need.instead);
    }
  }
}

}  // namespace strata::config
