#include "strata/io/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"
#include "strata/core/text.hpp"

namespace strata::io {
namespace {

constexpr std::int64_t kUnits = std::int64_t{1} << 40U;

MixtureSet set_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  double weight = 0.0;
  if (colon == std::string::npos || colon == 0 || text.find('/', colon) != std::string::npos) {
    return {.master = text, .weight = {}};
  }
  const std::string number = text.substr(colon + 1);
  if (!parse_double(number, weight) || !(weight > 0.0) || !std::isfinite(weight)) {
    fail(ExitCode::kUsage,
         "data.train or data.test gives {} the weight \"{}\"; a weight is a number above 0, as in "
         "a.h5:0.7, b.h5:0.3",
         text.substr(0, colon), number);
  }
  return {.master = text.substr(0, colon), .weight = weight};
}

}  // namespace

std::vector<MixtureSet> mixture_sets(const std::string& text) {
  std::error_code ignored;
  if (text.find(',') == std::string::npos && text.find(':') == std::string::npos) {
    return {{.master = text, .weight = {}}};
  }
  if (std::filesystem::exists(text, ignored)) {
    return {{.master = text, .weight = {}}};
  }
  std::vector<MixtureSet> sets;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view part = trimmed(std::string_view(text).substr(at, comma - at));
    if (part.empty()) {
      fail(ExitCode::kUsage, "a data set between the commas of \"{}\" has no name", text);
    }
    sets.push_back(set_of(std::string(part)));
    at = comma + 1;
  }
  const auto weighted = std::count_if(sets.begin(), sets.end(),
                                      [](const MixtureSet& set) { return set.weight.has_value(); });
  if (weighted != 0 && weighted != std::ssize(sets)) {
    fail(ExitCode::kUsage,
         "some data sets of \"{}\" have weights and others none; give all of them one, or none, "
         "to mix them by their sizes",
         text);
  }
  return sets;
}

Mixture::Mixture(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double before = 0.0;
  for (const double weight : weights) {
    require(weight >= kLeastShare * sum, "a weight of {} of {} in a mixture", weight, sum);
    before += weight;
    ends_.push_back(std::llround(before / sum * static_cast<double>(kUnits)));
  }
  ends_.back() = kUnits;
}

std::int64_t Mixture::end(std::int64_t set, std::int64_t blocks) const {
  __extension__ using Wide = __int128;
  return static_cast<std::int64_t>(Wide{blocks} * kBlock * ends_[static_cast<std::size_t>(set)] /
                                   kUnits);
}

Mixture::Place Mixture::at(std::uint64_t seed, std::int64_t place) const {
  const std::int64_t block = place / kBlock;
  // Other shuffles use the epoch as subject, which never comes near.
  const RandomStream stream(seed, RandomPurpose::kShuffle,
                            subject_of("mixture") + static_cast<std::uint64_t>(block));
  const std::int64_t within = Permutation(stream, kBlock)(place % kBlock);
  // The sets of a block lie one after the other.
  const auto end_in = [&](std::int64_t set) { return end(set, block + 1) - end(set, block); };
  std::int64_t low = 0;
  std::int64_t high = std::ssize(ends_) - 1;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (within < end_in(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return {low, count(low, block) + within - (low == 0 ? 0 : end_in(low - 1))};
}

double Mixture::share(std::int64_t set) const {
  const auto index = static_cast<std::size_t>(set);
  const std::int64_t units = ends_[index] - (set == 0 ? 0 : ends_[index - 1]);
  return static_cast<double>(units) / static_cast<double>(kUnits);
}

std::string Mixture::text() const {
  std::vector<std::string> shares;
  for (std::int64_t set = 0; set < sets(); ++set) {
    shares.push_back(fmt::format("{:.12g}", share(set)));
  }
  return fmt::format("{}", fmt::join(shares, ", "));
}

}  // namespace strata::io
