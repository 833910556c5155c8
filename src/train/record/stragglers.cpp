#include "record/stragglers.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/comm/values.hpp"

namespace strata::train {
namespace {

/// The lower one of two in the middle: the slower of two ranks is compared with the faster one.
double median_of(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  return numbers[(numbers.size() - 1) / 2];
}

}  // namespace

std::string SlowRank::text() const {
  return fmt::format("rank {} computes for {:.3g} ms a step, its peers for {:.3g} ms", rank,
                     1e3 * seconds, 1e3 * peers_seconds);
}

std::string RankTimes::text() const {
  return fmt::format("compute {:.3g} / {:.3g} / {:.3g} ms (rank {})", 1e3 * least, 1e3 * median,
                     1e3 * most, slowest);
}

std::vector<std::size_t> slow_among(const std::vector<double>& seconds) {
  constexpr double kFactor = 1.5;
  const double limit = kFactor * median_of(seconds);
  std::vector<std::size_t> slow;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (seconds[i] > limit) {
      slow.push_back(i);
    }
  }
  return slow;
}

void Stragglers::add_step(double compute_seconds) {
  seconds_ += compute_seconds;
  ++steps_;
}

RankTimes Stragglers::end_window(Log& log) {
  const double mine = seconds_ / static_cast<double>(steps_);
  const std::vector<double> all = comm::gathered(*groups_.world, mine);
  seconds_ = 0.0;
  steps_ = 0;
  slow_windows_.resize(all.size());
  const auto most = std::ranges::max_element(all);
  RankTimes times{.least = *std::ranges::min_element(all),
                  .median = median_of(all),
                  .most = *most,
                  .slowest = most - all.begin()};
  // Ranks of one stage do the same work. They are consecutive: the pipeline varies slowest.
  const std::size_t in_stage = all.size() / static_cast<std::size_t>(groups_.grid.pipeline);
  for (std::size_t first = 0; first < all.size(); first += in_stage) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<double> stage(begin, begin + static_cast<std::ptrdiff_t>(in_stage));
    const std::vector<std::size_t> slow = slow_among(stage);
    for (std::size_t i = 0; i < in_stage; ++i) {
      std::int64_t& windows = slow_windows_[first + i];
      constexpr std::int64_t kNamed = 2;
      const bool named = windows >= kNamed;
      windows = std::ranges::count(slow, i) > 0 ? windows + 1 : (named ? windows : 0);
      if (!named && windows == kNamed) {
        times.slow.push_back({.rank = static_cast<std::int64_t>(first + i),
                              .seconds = stage[i],
                              .peers_seconds = median_of(stage)});
        log.warn(
            "{}: a slow or busy node slows the run down; strata doctor shows where the ranks run",
            times.slow.back().text());
      }
    }
  }
  return times;
}

}  // namespace strata::train
