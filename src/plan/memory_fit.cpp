#include "strata/plan/memory_fit.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::plan {
namespace {

/// The same run with another config; nothing where the settings contradict each other.
std::optional<Plan> prepared(const Plan& plan, config::RunConfig config,
                             const VirtualGrid& stored) {
  if (plan.chosen.contains("numerics.loss_pieces")) {
    config.numerics.loss_pieces = 0;
  }
  std::optional<Plan> other =
      try_prepare(config, plan.grid.ranks(), plan.train_data, stored, plan.device);
  if (other) {
    other->node_replicas = plan.node_replicas;
  }
  return other;
}

/// The first change of settings under which the arenas fit, as in "train.recompute = full".
std::optional<std::string> what_would_fit(const Plan& plan, std::int64_t rank,
                                          std::int64_t free_bytes, const VirtualGrid& stored) {
  struct Change {
    std::int64_t micro;
    nn::Recompute recompute;
    std::optional<nn::BackwardOrder> backward;
  };
  const Change own{plan.config.batch.micro, plan.config.train.recompute,
                   plan.config.parallel.backward};
  std::vector<Change> changes{{own.micro, own.recompute, nn::BackwardOrder::kFused}};
  for (const nn::Recompute recompute : {nn::Recompute::kSelective, nn::Recompute::kFull}) {
    changes.push_back({own.micro, recompute, std::nullopt});
  }
  for (std::int64_t micro = own.micro / 2; micro >= 1 && stored.microbatch == 0; micro /= 2) {
    changes.push_back({micro, own.recompute, own.backward});
    changes.push_back({micro, nn::Recompute::kFull, std::nullopt});
  }
  for (const Change& change : changes) {
    config::RunConfig config = plan.config;
    config.batch.micro = change.micro;
    config.train.recompute = change.recompute;
    config.parallel.backward = change.backward;
    const std::optional<Plan> other = prepared(plan, config, stored);
    if (!other || !fits(rank_plan(*other, rank), free_bytes)) {
      continue;
    }
    const std::string recompute = fmt::format("train.recompute = {}", name_of(change.recompute));
    if (change.micro != own.micro) {
      return fmt::format("batch.micro = {}{}", change.micro,
                         change.recompute == own.recompute ? "" : " with " + recompute);
    }
    if (change.backward == nn::BackwardOrder::kFused) {
      return "parallel.backward = fused";
    }
    return recompute +
           (own.backward == nn::BackwardOrder::kSplit ? " with parallel.backward = auto" : "");
  }
  return std::nullopt;
}

/// The three largest, as in "activations 12.50 GiB, weights 2.00 GiB, gradients 1.00 GiB".
std::string largest_of(std::vector<nn::MemoryItem> items) {
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  items.resize(std::min<std::size_t>(3, items.size()));
  std::string text;
  for (const nn::MemoryItem& item : items) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", item.name, bytes_text(item.bytes));
  }
  return text;
}

}  // namespace

std::int64_t device_bytes(const RankPlan& rank) {
  return nn::total_bytes(rank.memory);
}

bool fits(const RankPlan& rank, std::int64_t free_bytes) {
  return device_bytes(rank) <= free_bytes;
}

std::optional<std::int64_t> too_large_rank(const Plan& plan, std::int64_t free_bytes) {
  for (std::int64_t stage = 0; stage < plan.grid.pipeline; ++stage) {
    const std::int64_t rank = plan.grid.rank_of({.pipeline = stage});
    if (!fits(rank_plan(plan, rank), free_bytes)) {
      return rank;
    }
  }
  return std::nullopt;
}

Plan with_fitting_defaults(Plan plan, const VirtualGrid& stored,
                           const std::function<bool(const Plan&)>& fits) {
  if (fits(plan)) {
    return plan;
  }
  const bool may_fuse = !plan.config.parallel.backward;
  const auto fitting = [&](std::int64_t lanes, std::int64_t micro) -> std::optional<Plan> {
    config::RunConfig config = plan.config;
    config.numerics.lanes = lanes;
    config.batch.micro = micro;
    std::optional<Plan> other = prepared(plan, config, stored);
    if (may_fuse && !(other && fits(*other))) {
      config.parallel.backward = nn::BackwardOrder::kFused;
      other = prepared(plan, config, stored);
    }
    if (!other || !fits(*other)) {
      return std::nullopt;
    }
    other->config.parallel.backward = plan.config.parallel.backward;
    other->chosen = plan.chosen;
    return other;
  };
  const std::int64_t micro = plan.config.batch.micro;
  std::int64_t lanes = plan.config.numerics.lanes;
  const std::int64_t least_lanes =
      plan.chosen.contains("numerics.lanes") ? plan.parts * plan.grid.data : lanes;
  for (;; lanes /= 2) {
    if (std::optional<Plan> other = fitting(lanes, micro)) {
      return *std::move(other);
    }
    if (lanes / 2 < least_lanes) {
      break;
    }
  }
  const std::int64_t lane_samples = plan.config.batch.global / lanes;
  const std::int64_t least = plan.chosen.contains("batch.micro") ? 1 : micro;
  for (std::int64_t smaller = micro - 1; smaller >= least; --smaller) {
    if (lane_samples % smaller == 0) {
      if (std::optional<Plan> other = fitting(lanes, smaller)) {
        return *std::move(other);
      }
    }
  }
  return plan;
}

std::optional<std::string> missing_memory(const Plan& plan, std::int64_t rank,
                                          std::int64_t free_bytes, const VirtualGrid& stored) {
  const RankPlan mine = rank_plan(plan, rank);
  if (fits(mine, free_bytes)) {
    return std::nullopt;
  }
  const std::optional<std::string> change = what_would_fit(plan, rank, free_bytes, stored);
  return fmt::format("stage {} needs {} of its GPU's memory ({}), but {} are free; {}",
                     mine.coordinates.pipeline, bytes_text(device_bytes(mine)),
                     largest_of(mine.memory), bytes_text(free_bytes),
                     change ? fmt::format("{} would fit", *change)
                            : "neither parallel.backward = fused, train.recompute nor a smaller "
                              "batch.micro would fit: use more ranks (parallel.pipeline, "
                              "parallel.tensor) or a smaller model");
}

}  // namespace strata::plan
