#include "strata/plan/memory_fit.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::plan {
namespace {

/// The same run with another config; nothing where the settings contradict each other.
std::optional<Plan> prepared(const Plan& plan, config::RunConfig config,
                             const VirtualGrid& stored) {
  try {
    if (plan.default_loss_pieces) {
      config.numerics.loss_pieces = 0;
    }
    Plan other = prepare(config, plan.grid.ranks(), plan.train_data, stored, plan.device);
    other.node_replicas = plan.node_replicas;
    return other;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Whether a rank's arenas fit under another config of the same run.
bool would_fit(const Plan& plan, const config::RunConfig& config, std::int64_t rank,
               std::int64_t free_bytes, const VirtualGrid& stored) {
  const std::optional<Plan> other = prepared(plan, config, stored);
  return other && device_bytes(rank_plan(*other, rank)) <= free_bytes;
}

/// The first change of settings under which the arenas fit, as in "train.recompute = full".
std::optional<std::string> what_would_fit(const Plan& plan, std::int64_t rank,
                                          std::int64_t free_bytes, const VirtualGrid& stored) {
  config::RunConfig fused = plan.config;
  fused.parallel.backward = config::Backward::kFused;
  if (would_fit(plan, fused, rank, free_bytes, stored)) {
    return "parallel.backward = fused";
  }
  for (const nn::Recompute recompute : {nn::Recompute::kSelective, nn::Recompute::kFull}) {
    config::RunConfig config = plan.config;
    config.train.recompute = recompute;
    config.parallel.backward = config::Backward::kAuto;
    if (would_fit(plan, config, rank, free_bytes, stored)) {
      return fmt::format("train.recompute = {}{}", name_of(recompute),
                         plan.config.parallel.backward == config::Backward::kSplit
                             ? " with parallel.backward = auto"
                             : "");
    }
  }
  for (std::int64_t micro = plan.config.batch.micro / 2; micro >= 1 && stored.microbatch == 0;
       micro /= 2) {
    for (const nn::Recompute recompute : {plan.config.train.recompute, nn::Recompute::kFull}) {
      config::RunConfig config = plan.config;
      config.batch.micro = micro;
      config.train.recompute = recompute;
      if (recompute != plan.config.train.recompute) {
        config.parallel.backward = config::Backward::kAuto;
      }
      if (would_fit(plan, config, rank, free_bytes, stored)) {
        return recompute == plan.config.train.recompute
                   ? fmt::format("batch.micro = {}", micro)
                   : fmt::format("batch.micro = {} with train.recompute = {}", micro,
                                 name_of(recompute));
      }
    }
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
  return std::accumulate(
      rank.memory.begin(), rank.memory.end(), std::int64_t{0},
      [](std::int64_t sum, const nn::MemoryItem& item) { return sum + item.bytes; });
}

Plan with_fitting_defaults(Plan plan, const VirtualGrid& stored,
                           const std::function<bool(const Plan&)>& fits) {
  if (fits(plan)) {
    return plan;
  }
  const bool may_fuse = plan.config.parallel.backward == config::Backward::kAuto;
  const std::int64_t lane_samples = plan.config.batch.global / plan.config.numerics.lanes;
  const std::int64_t least = plan.default_microbatch ? 1 : plan.config.batch.micro;
  for (std::int64_t micro = plan.config.batch.micro; micro >= least; --micro) {
    if (lane_samples % micro != 0) {
      continue;
    }
    config::RunConfig config = plan.config;
    config.batch.micro = micro;
    std::optional<Plan> other = prepared(plan, config, stored);
    if (may_fuse && !(other && fits(*other))) {
      config.parallel.backward = config::Backward::kFused;
      other = prepared(plan, config, stored);
    }
    if (other && fits(*other)) {
      other->config.parallel.backward = plan.config.parallel.backward;
      other->default_microbatch = plan.default_microbatch;
      return std::move(*other);
    }
  }
  return plan;
}

void require_fits_memory(const Plan& plan, std::int64_t rank, std::int64_t free_bytes,
                         const VirtualGrid& stored) {
  const RankPlan mine = rank_plan(plan, rank);
  const std::int64_t needed = device_bytes(mine);
  if (needed <= free_bytes) {
    return;
  }
  const std::optional<std::string> change = what_would_fit(plan, rank, free_bytes, stored);
  fail(ExitCode::kPeer, "stage {} needs {} of its GPU's memory ({}), but {} are free; {}",
       mine.coordinates.pipeline, bytes_text(needed), largest_of(mine.memory),
       bytes_text(free_bytes),
       change ? fmt::format("{} would fit", *change)
              : "neither parallel.backward = fused, train.recompute nor a smaller batch.micro "
                "would fit: "
                "use more ranks "
                "(parallel.pipeline, parallel.tensor) or a smaller model");
}

}  // namespace strata::plan
