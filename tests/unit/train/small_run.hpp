#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "strata/io/dataset.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/trainer.hpp"

#include "../io/data_files.hpp"
#include "in_process.hpp"

namespace strata::train::test {

/// The lines of a run's steps and evaluations.
using Metrics = std::vector<nlohmann::json>;

/// What the fixtures of runs have in common.
class RunsInADirectory {
 protected:
  /// The common config with a run directory of its own.
  [[nodiscard]] plan::RunConfig config(const std::string& name) const {
    plan::RunConfig config = base_;
    config.run.dir = (directory_ / name).string();
    return config;
  }

  void read_data(const io::ImportReport& report) {
    base_.data.train = report.train.string();
    base_.data.test = report.test.string();
  }

  /// AdamW under a cosine, gradients clipped and in several buckets.
  void set_optimizer(double peak, std::int64_t steps) {
    base_.parallel.bucket_mib = 0.008;
    base_.optimizer.options.kind = optim::OptimizerKind::kAdamw;
    base_.optimizer.options.weight_decay = 0.01;
    base_.optimizer.clip_norm = 0.5;
    base_.schedule = {.kind = optim::LearningRateKind::kCosine,
                      .peak = peak,
                      .warmup_steps = 2,
                      .decay_steps = steps};
    base_.train.steps = steps;
    base_.train.evaluate_every = 2;
    base_.run.seed = 5;
  }

  io::test::TemporaryDirectory directory_;
  plan::RunConfig base_;
};

inline Metrics metrics_of(const plan::RunConfig& config) {
  Metrics metrics;
  std::ifstream in(std::filesystem::path(config.run.dir) / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.at("kind") != "checkpoint") {
      metrics.push_back(object);
    }
  }
  return metrics;
}

inline io::Dataset open_data(const plan::RunConfig& config, const std::string& master) {
  io::Dataset data = io::Dataset::open(master);
  if (data.info().task == io::Task::kNextToken) {
    data.set_context(context_of(config));
  }
  return data;
}

/// Trains on one rank of a world as the train command does on a process, into run.dir; resumes from
/// that directory's checkpoint where run.resume says so.
inline void train_in(comm::Communicator& world, comm::ProgressEngine& engine,
                     const plan::RunConfig& config) {
  Log log(Log::Output::kSilent);
  const io::Dataset train_data = open_data(config, config.data.train);
  const io::Dataset test_data = open_data(config, config.data.test);
  std::optional<io::Checkpoint> checkpoint;
  if (config.run.resume == plan::Resume::kAuto) {
    checkpoint = newest_good_checkpoint(world, checkpoint_root(config), log);
  }
  const plan::Plan plan = prepare(config, world.size(), train_data.info(),
                                  checkpoint ? virtual_grid_of(*checkpoint) : plan::VirtualGrid());
  comm::agree_plan(world, [&] { return plan_items(plan, "the same"); });
  ops::Context context(1);
  comm::Groups groups = comm::make_groups(world, engine, plan.grid);
  const auto run = train({.plan = plan,
                          .groups = groups,
                          .context = context,
                          .train_data = train_data,
                          .test_data = &test_data,
                          .checkpoint = checkpoint ? &*checkpoint : nullptr,
                          .config_text = "a config",
                          .log = log});
  require(run.outcome == Outcome::kFinished, "the run did not finish");
}

/// The same on the threads of a grid.
inline Metrics run_on(plan::RunConfig config, const grid::Grid& grid) {
  config.parallel.data = grid.data;
  config.parallel.pipeline = grid.pipeline;
  config.parallel.tensor = grid.tensor;
  std::filesystem::create_directories(checkpoint_root(config));
  comm::run_in_process_ranks(grid.ranks(), [&](comm::Communicator& world) {
    comm::ProgressEngine engine;
    train_in(world, engine, config);
  });
  return metrics_of(config);
}

/// The seconds of a part of a step.
inline double seconds_of(const nlohmann::json& line, const std::string& part) {
  return line.at(part + "_seconds").get<double>();
}

/// A training step's parts, none of which is below `least`, make up the step.
inline void expect_parts_of_step(const nlohmann::json& line, double least) {
  double sum = 0.0;
  for (const std::string part : {"compute", "communication", "bubble", "data", "other"}) {
    // The difference of two clocks may come out a little below 0.
    EXPECT_GE(seconds_of(line, part), part == "other" ? -1e-9 : least) << part;
    sum += seconds_of(line, part);
  }
  EXPECT_NEAR(sum, seconds_of(line, "step"), 1e-9);
  EXPECT_NEAR(seconds_of(line, "data_group") + seconds_of(line, "pipeline_group") +
                  seconds_of(line, "tensor_group"),
              seconds_of(line, "communication"), 1e-9);
}

}  // namespace strata::train::test
