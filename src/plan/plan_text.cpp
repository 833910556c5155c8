#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/pipeline/simulator.hpp"
#include "strata/plan/plan.hpp"
#include "strata/plan/replication.hpp"

namespace strata::plan {
namespace {

using Rows = std::vector<std::vector<std::string>>;

/// The replica of a rank's stage that has the most optimizer state where parameters are frozen.
std::int64_t replica_with_most_state(const Plan& plan, const RankPlan& rank) {
  std::int64_t replica = 0;
  if (plan.grid.data > 1 && plan.model->trainable_count() < plan.model->parameter_count()) {
    std::int64_t most = 0;
    for (std::int64_t d = 0; d < plan.grid.data; ++d) {
      const std::int64_t elements = optim::Ownership{rank.layout, rank.buckets, d}.state_elements();
      if (elements > most) {
        most = elements;
        replica = d;
      }
    }
  }
  return replica;
}

/// The rank of a stage with the largest memory, among the first, middle and last replicas and the
/// first and last tensor ranks, and the replica with the most optimizer state. Where lanes or
/// shards are not a power of two, the last ranks hold the most partial sums; where shards do not
/// divide a vocabulary, the first ranks hold larger slices.
RankPlan largest_rank_plan(const Plan& plan, std::int64_t stage) {
  RankPlan largest = rank_plan(plan, plan.grid.rank_of({.pipeline = stage}));
  for (const std::int64_t d : std::set{std::int64_t{0}, plan.grid.data / 2, plan.grid.data - 1,
                                       replica_with_most_state(plan, largest)}) {
    for (const std::int64_t t : std::set{std::int64_t{0}, plan.grid.tensor - 1}) {
      RankPlan rank =
          rank_plan(plan, plan.grid.rank_of({.data = d, .pipeline = stage, .tensor = t}));
      if (nn::total_bytes(rank.memory) > nn::total_bytes(largest.memory)) {
        largest = std::move(rank);
      }
    }
  }
  return largest;
}

std::string grid_lines(const Plan& plan) {
  std::string text = fmt::format("grid: {}\n", grid_line(plan));
  if (plan.node_replicas > 1) {
    text +=
        fmt::format("nodes: {} replicas each, whose gradients are added before they cross nodes\n",
                    plan.node_replicas);
  }
  text += replication_of(plan).text(plan).lines;
  const std::vector<nn::ParameterSpec>& parameters = plan.model->parameters();
  const bool split =
      std::any_of(parameters.begin(), parameters.end(),
                  [](const nn::ParameterSpec& spec) { return spec.split != nn::kNotSplit; });
  if (plan.grid.tensor > 1 && !split) {
    text += fmt::format(
        "warning: no layer is split, so all {} ranks of a tensor group do the same work; set "
        "parallel.tensor to 1, or split layers with parallel=column and parallel=row\n",
        plan.grid.tensor);
  }
  return text;
}

/// What strata chose of the optimizer, and the groups of the parameters.
std::string optimizer_text(const Plan& plan) {
  std::string text;
  if (plan.chosen.contains("optimizer.kind") || plan.chosen.contains("optimizer.learning_rate")) {
    const config::RunConfig& c = plan.config;
    text = fmt::format("optimizer: {}, learning rate {}, warm-up of {} steps\n",
                       name_of(c.optimizer.options.kind), c.schedule.peak, c.schedule.warmup_steps);
  }
  const optim::OptimizerOptions& options = plan.config.optimizer.options;
  for (const optim::ParameterGroup& group : options.groups) {
    std::int64_t tensors = 0;
    std::int64_t elements = 0;
    for (const nn::ParameterSpec& spec : plan.model->parameters()) {
      if (spec.ownership == nn::Ownership::kOwned && spec.rule == nn::ParameterRule::kTrained &&
          group.names.matches(spec.name)) {
        ++tensors;
        elements += spec.shape.count();
      }
    }
    text += fmt::format("optimizer.groups, {}; {} trained tensors, {} parameters\n",
                        optim::text_of({group}), tensors, count_text(elements));
  }
  return text;
}

/// On which grids the run can go on.
std::string going_on_text(const Plan& plan) {
  const config::RunConfig& c = plan.config;
  if (c.numerics.mode == comm::Summation::kLibrary) {
    return "";
  }
  const std::int64_t jobs = plan.parts / plan.job_parts.count();
  std::vector<std::int64_t> replicas = grid::divisors_of(c.numerics.lanes / jobs);
  std::erase_if(replicas, [&](std::int64_t count) { return !replication_of(plan).fits(c, count); });
  const auto list = [](const std::vector<std::int64_t>& counts, const char* unit) {
    return fmt::format("{}{}{} {}{}", fmt::join(counts.begin(), counts.end() - 1, ", "),
                       counts.size() > 1 ? " or " : "", counts.back(), unit,
                       counts.back() == 1 ? "" : "s");
  };
  return fmt::format(
      "{}can go on with {} and {}{}\n",
      plan.former ? fmt::format("by consent, no longer {}; ", virtual_grid_text(*plan.former)) : "",
      list(replicas, "replica"), list(grid::divisors_of(c.numerics.shards), "tensor rank"),
      replication_of(plan).lanes_are_work() ? "" : ", at any pipeline depth");
}

std::string batch_text(const Plan& plan) {
  const config::RunConfig& c = plan.config;
  const std::int64_t pieces = c.numerics.loss_pieces;
  std::string text =
      fmt::format("batch: {} samples = {}{} replica{} x {} microbatches x {} samples{}; {} steps",
                  c.batch.global, replication_of(plan).text(plan).parts, plan.grid.data,
                  plan.grid.data == 1 ? "" : "s", plan.microbatches, c.batch.micro,
                  pieces > 1 ? fmt::format(", logits in {} pieces", pieces) : "", plan.total_steps);
  if (plan.concurrent_lanes > 1) {
    text += fmt::format(", microbatches of {} lanes together (batch statistics over all lanes)",
                        plan.concurrent_lanes);
  }
  if (plan.train_data.samples == 0) {
    return text + " (no data set)\n";
  }
  text += fmt::format(" = {:.2f} epochs\n", static_cast<double>(plan.total_steps) *
                                                static_cast<double>(c.batch.global) /
                                                static_cast<double>(plan.train_data.samples));
  if (plan.train_data.samples < c.batch.global) {
    text +=
        fmt::format("warning: a batch of {} repeats samples, because the data set has only {}\n",
                    c.batch.global, plan.train_data.samples);
  }
  return text;
}

std::string schedule_text(const Plan& plan) {
  // In dense layers forward, input gradient and weight gradient have about equal costs. A fused
  // backward pass is the backward-input action.
  const pipeline::StageCosts equal = plan.backward == nn::BackwardOrder::kFused
                                         ? pipeline::equal_costs(plan.grid.pipeline, 1.0, 2.0, 0.0)
                                         : pipeline::equal_costs(plan.grid.pipeline, 1.0, 1.0, 1.0);
  const pipeline::Simulation simulation =
      pipeline::simulate(plan.training, plan.schedule_search ? plan.schedule_search->costs : equal,
                         pipeline::Record::kTotals);
  const std::string with =
      plan.schedule_search ? fmt::format("the stages' FLOPs; another order saves at most {:.1f} %",
                                         100.0 * plan.schedule_search->optimality_gap)
                           : "equal stages";
  std::string text = fmt::format(
      "schedule: {}, {} stage{}{}, bubble {:.1f} % with {}\n", config::schedule_name(plan.config),
      plan.grid.pipeline, plan.grid.pipeline == 1 ? "" : "s",
      plan.training.chunks == 1 ? "" : fmt::format(" of {} chunks", plan.training.chunks),
      100.0 * simulation.bubble_fraction, with);
  if (plan.training.microbatches < plan.grid.pipeline) {
    text += fmt::format(
        "warning: {} microbatch{} do not fill a pipeline of {} stages; a larger batch.global or a "
        "smaller batch.micro shortens the bubble\n",
        plan.training.microbatches, plan.training.microbatches == 1 ? "" : "es",
        plan.grid.pipeline);
  }
  const bool recomputes = plan.config.train.recompute != nn::Recompute::kNone;
  if (plan.backward == nn::BackwardOrder::kFused && plan.grid.pipeline > 1 &&
      (plan.training.chunks == 1 || !recomputes) &&
      pipeline::defers_weight_gradients(plan.training)) {
    text += fmt::format(
        "warning: with {} both gradients of a layer are computed together, so {} defers nothing; "
        "{}\n",
        recomputes ? "train.recompute" : "numerics.loss_pieces", config::schedule_name(plan.config),
        recomputes ? "parallel.schedule=1f1b takes the same time and less memory"
                   : "in a new run, set numerics.loss_pieces to 1 for it");
  }
  return text;
}

/// The bytes of the item `name`; 0 where it is not in the list.
std::int64_t bytes_of(const std::vector<nn::MemoryItem>& items, const std::string& name) {
  const auto found = std::ranges::find(items, name, &nn::MemoryItem::name);
  return found == items.end() ? 0 : found->bytes;
}

/// The stages of each column of a table: one, or, of many stages, consecutive ones that are alike.
std::vector<grid::Range> columns_of(
    std::int64_t stages, const std::function<bool(std::int64_t, std::int64_t)>& are_alike) {
  constexpr std::int64_t kFew = 8;
  std::vector<grid::Range> columns;
  for (std::int64_t s = 0; s < stages; ++s) {
    if (stages > kFew && s > 0 && are_alike(columns.back().begin, s)) {
      ++columns.back().end;
    } else {
      columns.push_back({s, s + 1});
    }
  }
  return columns;
}

/// A table with a column for each of `columns`; `cell(row, stages)` is what its cells hold.
template <typename Cell>
Rows stage_table(const std::string& title, const std::vector<std::string>& names,
                 const std::vector<grid::Range>& columns, const Cell& cell) {
  Rows rows{{title}};
  for (const grid::Range& stages : columns) {
    rows[0].push_back(stages.count() == 1
                          ? fmt::format("stage {}", stages.begin)
                          : fmt::format("stages {}-{}", stages.begin, stages.end - 1));
  }
  for (const std::string& name : names) {
    rows.push_back({name});
    for (const grid::Range& stages : columns) {
      rows.back().push_back(cell(rows.size() - 2, stages));
    }
  }
  return rows;
}

/// One memory list of each stage, without items that no stage has. Of many stages, consecutive ones
/// with the same items share a column.
Rows memory_table(const std::string& title, const std::vector<RankPlan>& ranks,
                  std::vector<nn::MemoryItem> RankPlan::*items) {
  std::vector<std::string> names;
  for (const RankPlan& rank : ranks) {
    for (const nn::MemoryItem& item : rank.*items) {
      if (std::ranges::find(names, item.name) == names.end()) {
        names.push_back(item.name);
      }
    }
  }
  std::erase_if(names, [&](const std::string& name) {
    return std::ranges::all_of(
        ranks, [&](const RankPlan& rank) { return bytes_of(rank.*items, name) == 0; });
  });
  const auto list = [&](std::int64_t stage) -> const std::vector<nn::MemoryItem>& {
    return ranks[static_cast<std::size_t>(stage)].*items;
  };
  const std::vector<grid::Range> columns =
      columns_of(std::ssize(ranks), [&](std::int64_t a, std::int64_t b) {
        return std::ranges::all_of(names, [&](const std::string& name) {
          return (bytes_of(list(a), name) > 0) == (bytes_of(list(b), name) > 0);
        });
      });
  names.emplace_back("total");
  return stage_table(title, names, columns, [&](std::size_t row, const grid::Range& stages) {
    std::vector<std::int64_t> bytes;
    for (std::int64_t s = stages.begin; s < stages.end; ++s) {
      bytes.push_back(row + 1 == names.size() ? nn::total_bytes(list(s))
                                              : bytes_of(list(s), names[row]));
    }
    const auto [least, most] = std::ranges::minmax(bytes);
    return least == most ? bytes_text(most)
                         : fmt::format("{} to {}", bytes_text(least), bytes_text(most));
  });
}

std::string memory_tables(const Plan& plan, const std::vector<RankPlan>& ranks) {
  std::string text;
  for (const Rows& rows : memory_rows(plan, ranks)) {
    text += (text.empty() ? "" : "\n") + table_text(rows);
  }
  return text;
}

}  // namespace

std::vector<Rows> memory_rows(const Plan& plan, const std::vector<RankPlan>& ranks) {
  if (plan.device == device::DeviceKind::kCpu) {
    return {memory_table("memory per rank", ranks, &RankPlan::memory)};
  }
  return {memory_table("GPU memory per rank", ranks, &RankPlan::memory),
          memory_table("host memory per rank", ranks, &RankPlan::host_memory)};
}

Rows traffic_rows(const Plan& plan, const std::vector<RankPlan>& ranks) {
  std::vector<std::vector<Traffic>> sent;
  std::ranges::transform(ranks, std::back_inserter(sent),
                         [&](const RankPlan& rank) { return traffic_of(plan, rank); });
  const auto cell = [&](std::int64_t stage, std::size_t row) {
    const Traffic& traffic = sent[static_cast<std::size_t>(stage)][row];
    return traffic.messages == 0.0
               ? "-"
               : fmt::format("{} messages, {}",
                             traffic.messages < 10.0 ? fmt::format("{:.2g}", traffic.messages)
                                                     : fmt::format("{:.0f}", traffic.messages),
                             bytes_text(static_cast<std::int64_t>(traffic.bytes)));
  };
  const std::size_t kinds = sent.front().size();
  const std::vector<grid::Range> columns =
      columns_of(std::ssize(ranks), [&](std::int64_t a, std::int64_t b) {
        for (std::size_t row = 0; row < kinds; ++row) {
          if (cell(a, row) != cell(b, row)) {
            return false;
          }
        }
        return true;
      });
  std::vector<std::string> names;
  std::ranges::transform(sent.front(), std::back_inserter(names), &Traffic::name);
  return stage_table(
      "traffic per rank and step", names, columns,
      [&](std::size_t row, const grid::Range& stages) { return cell(stages.begin, row); });
}

std::vector<RankPlan> largest_rank_plans(const Plan& plan) {
  std::vector<RankPlan> ranks;
  for (std::int64_t s = 0; s < plan.grid.pipeline; ++s) {
    ranks.push_back(largest_rank_plan(plan, s));
  }
  return ranks;
}

std::string grid_line(const Plan& plan) {
  return fmt::format(
      "{}; virtual grid: {} lanes x {} shards{}", replication_of(plan).text(plan).grid,
      plan.config.numerics.lanes, plan.config.numerics.shards,
      plan.config.numerics.mode == comm::Summation::kLibrary ? ", sums by the communication library"
                                                             : "");
}

std::string memory_text(const Plan& plan) {
  return memory_tables(plan, largest_rank_plans(plan));
}

std::int64_t host_bytes(const Plan& plan, const RankPlan& rank) {
  return nn::total_bytes(plan.device == device::DeviceKind::kCpu ? rank.memory : rank.host_memory);
}

std::string plan_text(const Plan& plan) {
  const std::vector<RankPlan> ranks = largest_rank_plans(plan);
  std::string text = nn::model_table(*plan.model, plan.split, chunk_stages(plan)) + "\n";
  text += optimizer_text(plan) + grid_lines(plan) + going_on_text(plan) + batch_text(plan) +
          schedule_text(plan) + memory_tables(plan, ranks);
  return plan.grid.ranks() == 1 ? text : text + "\n" + table_text(traffic_rows(plan, ranks));
}

std::vector<comm::PlanItem> plan_items(const Plan& plan, const std::string& config_text) {
  std::string schedule;
  for (const auto& actions : plan.training.stage_actions) {
    for (const pipeline::Action& action : actions) {
      schedule += pipeline::text_of(action) + ";";
    }
  }
  std::string buckets;
  for (std::int64_t rank = 0; rank < plan.grid.ranks();
       rank += plan.grid.replicas() * plan.grid.tensor) {
    buckets += rank_plan(plan, rank).buckets.text();
  }
  std::string split;
  for (const grid::Range& stage : plan.split.stages) {
    split += fmt::format("{}-{};", stage.begin, stage.end);
  }
  return {{"config", hash_of(config_text)},
          {"grid", hash_of(fmt::format("{} {} {}", plan.grid.text(), split, plan.node_replicas))},
          {"schedule", hash_of(schedule)},
          {"buckets", hash_of(buckets)},
          {"length", hash_of(fmt::format("{}", plan.total_steps))}};
}

}  // namespace strata::plan
