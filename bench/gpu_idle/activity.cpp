#include "activity.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

namespace strata::bench {
namespace {

constexpr double kSecondsPerNs = 1e-9;
constexpr std::size_t kShares = 40;
constexpr std::size_t kGaps = 10;

double seconds(std::int64_t ns) {
  return kSecondsPerNs * static_cast<double>(ns);
}

Window between_step_ends(const Recording& recording, std::string_view step_end) {
  std::vector<std::int64_t> ends;
  for (const Activity& activity : recording.activities) {
    if (recording.names[activity.name].find(step_end) != std::string::npos) {
      ends.push_back(activity.time.end_ns);
    }
  }
  if (ends.size() < 2) {
    return {.step_ends = static_cast<std::int64_t>(ends.size())};
  }
  std::sort(ends.begin(), ends.end());
  return {.time = {.begin_ns = ends[(ends.size() - 1) / 2], .end_ns = ends.back()},
          .step_ends = static_cast<std::int64_t>(ends.size())};
}

template <typename Item, typename Name>
void keep_largest(std::vector<Item>& all, std::size_t most, const Name& name) {
  std::sort(all.begin(), all.end(), [&](const Item& a, const Item& b) {
    return a.total_ns != b.total_ns ? a.total_ns > b.total_ns : name(a) < name(b);
  });
  all.resize(std::min(most, all.size()));
}

}  // namespace

Window second_half(const Recording& recording, std::string_view step_end) {
  if (!step_end.empty()) {
    return between_step_ends(recording, step_end);
  }
  if (recording.activities.empty()) {
    return {};
  }
  std::vector<std::int64_t> begins;
  std::int64_t end = recording.activities.front().time.end_ns;
  for (const Activity& activity : recording.activities) {
    begins.push_back(activity.time.begin_ns);
    end = std::max(end, activity.time.end_ns);
  }
  std::sort(begins.begin(), begins.end());
  return {.time = {.begin_ns = begins[begins.size() / 2], .end_ns = end}};
}

std::int64_t busy_ns(std::span<const Activity> activities, const Interval& window) {
  std::vector<Interval> times;
  for (const Activity& activity : activities) {
    const Interval cut{std::max(activity.time.begin_ns, window.begin_ns),
                       std::min(activity.time.end_ns, window.end_ns)};
    if (cut.begin_ns < cut.end_ns) {
      times.push_back(cut);
    }
  }
  std::sort(times.begin(), times.end(),
            [](const Interval& a, const Interval& b) { return a.begin_ns < b.begin_ns; });
  std::int64_t busy = 0;
  std::int64_t counted_to = window.begin_ns;
  for (const Interval& time : times) {
    if (time.end_ns > counted_to) {
      busy += time.end_ns - std::max(time.begin_ns, counted_to);
      counted_to = time.end_ns;
    }
  }
  return busy;
}

std::vector<Share> largest_shares(const Recording& recording, const Interval& window,
                                  std::size_t most) {
  std::vector<Share> all(recording.names.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].name = recording.names[i];
  }
  for (const Activity& activity : recording.activities) {
    if (activity.time.begin_ns >= window.begin_ns && activity.time.begin_ns < window.end_ns) {
      Share& share = all[activity.name];
      ++share.count;
      share.total_ns += activity.time.end_ns - activity.time.begin_ns;
    }
  }
  std::erase_if(all, [](const Share& share) { return share.count == 0; });
  keep_largest(all, most, [](const Share& share) { return share.name; });
  return all;
}

std::vector<Gap> largest_gaps(const Recording& recording, const Interval& window,
                              std::size_t most) {
  std::vector<Activity> in_order = recording.activities;
  std::sort(in_order.begin(), in_order.end(),
            [](const Activity& a, const Activity& b) { return a.time.begin_ns < b.time.begin_ns; });
  using Names = std::pair<std::string, std::string>;
  std::map<Names, Gap> gaps;
  std::int64_t busy_to = window.begin_ns;
  const Activity* before = nullptr;
  for (const Activity& activity : in_order) {
    if (activity.time.begin_ns >= window.end_ns) {
      break;
    }
    if (before != nullptr && activity.time.begin_ns > busy_to) {
      const Names names{recording.names[before->name], recording.names[activity.name]};
      Gap& gap = gaps[names];
      gap.before = names.first;
      gap.after = names.second;
      ++gap.count;
      gap.total_ns += activity.time.begin_ns - busy_to;
    }
    if (activity.time.end_ns >= busy_to) {
      busy_to = activity.time.end_ns;
      before = &activity;
    }
  }
  std::vector<Gap> all;
  for (const auto& [names, gap] : gaps) {
    all.push_back(gap);
  }
  keep_largest(all, most, [](const Gap& gap) { return Names(gap.before, gap.after); });
  return all;
}

nlohmann::json idle_report(const Recording& recording, std::string_view step_end) {
  const Window window = second_half(recording, step_end);
  const std::int64_t length = window.time.end_ns - window.time.begin_ns;
  const std::int64_t busy = busy_ns(recording.activities, window.time);
  nlohmann::json kernels = nlohmann::json::array();
  for (const Share& share : largest_shares(recording, window.time, kShares)) {
    kernels.push_back(
        {{"name", share.name}, {"count", share.count}, {"seconds", seconds(share.total_ns)}});
  }
  nlohmann::json gaps = nlohmann::json::array();
  for (const Gap& gap : largest_gaps(recording, window.time, kGaps)) {
    gaps.push_back({{"before", gap.before},
                    {"after", gap.after},
                    {"count", gap.count},
                    {"seconds", seconds(gap.total_ns)}});
  }
  return {{"activities", recording.activities.size()},
          {"lost", recording.lost},
          {"step_ends", window.step_ends},
          {"window_seconds", seconds(length)},
          {"busy_seconds", seconds(busy)},
          {"idle_share", length == 0 ? nlohmann::json()
                                     : nlohmann::json(static_cast<double>(length - busy) /
                                                      static_cast<double>(length))},
          {"kernels", std::move(kernels)},
          {"gaps", std::move(gaps)}};
}

}  // namespace strata::bench
