#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
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

/// What a run leaves: the metrics of its steps and evaluations line by line, and the tensors of its
/// last checkpoint.
struct RunResult {
  std::vector<nlohmann::json> metrics;
  std::map<std::string, std::vector<float>> tensors;

  /// The lines without times, which differ from run to run.
  [[nodiscard]] std::vector<nlohmann::json> numbers() const {
    std::vector<nlohmann::json> lines;
    for (const nlohmann::json& line : metrics) {
      lines.push_back({{"kind", line.at("kind")},
                       {"step", line.at("step")},
                       {"loss", line.at("loss")},
                       {"grad_norm", line.value("grad_norm", nlohmann::json())},
                       {"learning_rate", line.value("learning_rate", nlohmann::json())},
                       {"accuracy", line.value("accuracy", nlohmann::json())}});
    }
    return lines;
  }
};

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

inline RunResult result_of(const plan::RunConfig& config, std::int64_t step) {
  RunResult result;
  std::ifstream in(std::filesystem::path(config.run.dir) / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.at("kind") != "checkpoint") {
      result.metrics.push_back(object);
    }
  }
  const std::vector<io::CheckpointEntry> entries = io::list_checkpoints(checkpoint_root(config));
  if (entries.empty() || entries.front().step != step) {
    throw std::runtime_error("the newest checkpoint is not the last step's");
  }
  const io::Checkpoint checkpoint = io::Checkpoint::open(entries.front().directory);
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    std::vector<float>& values = result.tensors[tensor.name];
    values.resize(static_cast<std::size_t>(tensor.shape.count()));
    checkpoint.read(tensor.name, tensor.shape, {}, {0, tensor.shape.count()},
                    TensorView(std::span(values), tensor.shape));
  }
  return result;
}

inline io::Dataset open_data(const plan::RunConfig& config, const std::string& master) {
  io::Dataset data = io::Dataset::open(master);
  if (data.info().task == io::Task::kNextToken) {
    data.set_context(context_of(config));
  }
  return data;
}

/// Trains on one rank of a world as the train command does on a process, into run.dir; resumes from
/// that directory's checkpoint where run.resume says so. Returns: the last step.
inline std::int64_t train_in(comm::Communicator& world, comm::ProgressEngine& engine,
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
  return plan.total_steps;
}

/// The same on the threads of a grid.
inline RunResult run_on(plan::RunConfig config, const grid::Grid& grid) {
  config.parallel.data = grid.data;
  config.parallel.pipeline = grid.pipeline;
  config.parallel.tensor = grid.tensor;
  std::filesystem::create_directories(checkpoint_root(config));
  std::int64_t last_step = 0;
  comm::run_in_process_ranks(grid.ranks(), [&](comm::Communicator& world) {
    comm::ProgressEngine engine;
    const std::int64_t step = train_in(world, engine, config);
    if (world.rank() == 0) {
      last_step = step;
    }
  });
  return result_of(config, last_step);
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

inline void expect_same(const RunResult& found, const RunResult& expected,
                        const std::string& where) {
  EXPECT_EQ(found.numbers(), expected.numbers()) << where;
  ASSERT_EQ(found.tensors.size(), expected.tensors.size()) << where;
  for (const auto& [name, values] : expected.tensors) {
    EXPECT_TRUE(found.tensors.at(name) == values) << name << " differs " << where;
  }
}

}  // namespace strata::train::test
