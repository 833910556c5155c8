#include <fmt/format.h>

#include "strata/core/error.hpp"

#include "resolve.hpp"

namespace strata::plan {
namespace {

/// Rejects a setting that is `given` but not `used`.
void check(bool given, bool used, const char* key, const std::string& because,
           const std::string& instead) {
  if (given && !used) {
    fail(ExitCode::kUsage, "{} is set, but {}, so it has no effect; leave it out, or {}", key,
         because, instead);
  }
}

void check_optimisation(const config::RunConfig& c, const config::RunConfig& otherwise) {
  const auto& options = c.optimizer.options;
  const bool sgd = options.kind == optim::OptimizerKind::kSgd;
  const std::string kind = fmt::format("optimizer.kind is {}", name_of(options.kind));
  check(options.momentum != otherwise.optimizer.options.momentum, sgd, "optimizer.momentum", kind,
        "set optimizer.kind to sgd");
  check(options.nesterov != otherwise.optimizer.options.nesterov, sgd, "optimizer.nesterov", kind,
        "set optimizer.kind to sgd");
}

void check_schedule(const config::RunConfig& c, const config::RunConfig& otherwise) {
  using optim::LearningRateKind;
  const bool steps = c.schedule.kind == LearningRateKind::kStep;
  const bool ends = has_end(c.schedule.kind);
  const std::string kind = fmt::format("schedule.kind is {}", name_of(c.schedule.kind));
  const char* to_step = "set schedule.kind to step";
  const char* to_end = "set schedule.kind to linear or cosine";
  check(c.schedule.every_steps != otherwise.schedule.every_steps, steps, "schedule.every", kind,
        to_step);
  check(c.schedule.factor != otherwise.schedule.factor, steps, "schedule.factor", kind, to_step);
  check(c.schedule.minimum != otherwise.schedule.minimum, ends, "schedule.minimum", kind, to_end);
  check(c.schedule.decay_steps != otherwise.schedule.decay_steps, ends, "schedule.decay_steps",
        kind, to_end);
}

void check_data(const config::RunConfig& c, const config::RunConfig& otherwise,
                const io::DatasetInfo& data) {
  const bool tokens = data.task == io::Task::kNextToken;
  const std::string kind =
      fmt::format("the data set {} holds {}", data.path.string(), tokens ? "tokens" : "no tokens");
  check(c.model.transformer.context != 0, tokens, "model.context", kind, "use one of tokens");
  check(c.data.sampling != otherwise.data.sampling, tokens, "data.sampling", kind,
        "use one of tokens");
  check(c.parallel.sequence != otherwise.parallel.sequence, tokens, "parallel.sequence", kind,
        "use one of tokens");
  check(c.numerics.row_pieces != otherwise.numerics.row_pieces, tokens, "numerics.row_pieces", kind,
        "use one of tokens");
  check(c.data.normalise != otherwise.data.normalise, !tokens, "data.normalise", kind,
        "use one of numbers");
}

void check_local(const config::RunConfig& c, const config::RunConfig& otherwise) {
  const bool local = c.parallel.sync == config::Sync::kLocal;
  const std::string mode = fmt::format("parallel.sync is {}", name_of(c.parallel.sync));
  const auto needs_local = [&](bool given, const char* key) {
    check(given, local, key, mode, "set parallel.sync to local");
  };
  needs_local(c.parallel.islands != 0, "parallel.islands");
  needs_local(!c.parallel.island_of.empty(), "parallel.island_of");
  check(c.parallel.island != 0, !c.parallel.island_of.empty(), "parallel.island",
        "parallel.island_of is empty", "name a directory where jobs meet");
  const auto needs_step = [&](bool given, const char* key) {
    check(given, c.parallel.sync == config::Sync::kStep, key, mode, "set parallel.sync to step");
  };
  needs_step(c.train.check_every != 0, "train.check_every");
  needs_step(c.train.repeat_every.value_or(0) != 0, "train.repeat_every");
  check(c.parallel.node_ranks > 1, c.parallel.sync != config::Sync::kAsync, "parallel.node_ranks",
        mode, "set parallel.sync to step");
  needs_local(c.local.steps != otherwise.local.steps, "local.steps");
  needs_local(c.local.outer_rate != otherwise.local.outer_rate, "local.outer_rate");
  needs_local(c.local.outer_momentum != otherwise.local.outer_momentum, "local.outer_momentum");
  needs_local(c.local.fragments != otherwise.local.fragments, "local.fragments");
  needs_local(c.local.delay != otherwise.local.delay, "local.delay");
  needs_local(c.local.mix != otherwise.local.mix, "local.mix");
  const auto needs_async = [&](bool given, const char* key) {
    check(given, c.parallel.sync == config::Sync::kAsync, key, mode, "set parallel.sync to async");
  };
  const auto& async = c.async.options;
  needs_async(c.async.servers != 0, "async.servers");
  needs_async(c.async.ahead != 0, "async.ahead");
  needs_async(async.staleness != 0, "async.staleness");
  needs_async(async.rate != otherwise.async.options.rate, "async.rate");
  check(async.stale != otherwise.async.options.stale, async.staleness != 0, "async.stale",
        "async.staleness is 0", "set a bound");
  needs_local(!c.local.record.empty(), "local.record");
  check(c.local.deadline_seconds != otherwise.local.deadline_seconds, !c.parallel.island_of.empty(),
        "local.deadline", "parallel.island_of is empty", "name a directory where jobs meet");
  needs_local(c.local.exchange != otherwise.local.exchange, "local.exchange");
}

void check_emulated(const config::RunConfig& c, const config::RunConfig& otherwise) {
  const bool emulated = c.run.device == config::DeviceChoice::kEmulated;
  const std::string kind = fmt::format("run.device is {}", name_of(c.run.device));
  const auto emulates = [&](const std::string& text, const std::string& default_text,
                            const char* key) {
    check(text != default_text, emulated, key, kind, "set run.device to emulated");
  };
  check(c.numerics.loss_pieces > 1, !emulated, "numerics.loss_pieces",
        kind + ", which computes no logits", "choose another device");
  emulates(c.emulated.forward, otherwise.emulated.forward, "emulated.forward");
  emulates(c.emulated.backward_input, otherwise.emulated.backward_input, "emulated.backward_input");
  emulates(c.emulated.backward_weight, otherwise.emulated.backward_weight,
           "emulated.backward_weight");
  const auto trains = [&](bool given, const char* key) {
    check(given, !emulated, key, kind + ", which learns nothing and has no checkpoints",
          "choose another device");
  };
  check(config::is_made(c), !emulated, "parallel.schedule",
        kind + ", whose times auto does not search with", "make a file with strata schedule make");
  trains(c.run.resume != otherwise.run.resume, "run.resume");
  trains(!c.data.test.empty(), "data.test");
  trains(!c.checkpoint.init.empty(), "checkpoint.init");
  trains(c.checkpoint.every > 0, "checkpoint.every");
  trains(c.checkpoint.keep_every > 0, "checkpoint.keep_every");
  trains(c.checkpoint.minutes > 0.0 && c.checkpoint.minutes != otherwise.checkpoint.minutes,
         "checkpoint.minutes");
}

void check_links(const config::RunConfig& c, const Plan& plan) {
  const auto emulates_link = [&](bool given, const char* key) {
    check(given, plan.device == device::DeviceKind::kCpu, key,
          "GPUs do not wait for emulated links", "set run.device to cpu");
    check(given, c.parallel.sync != config::Sync::kAsync, key,
          "parallel.sync is async, whose windows do not wait for emulated links",
          "choose another way");
    check(given, (plan.parts > 1 ? plan.grid.islands : plan.grid.data) > 1, key,
          plan.parts > 1 ? "no two ranks of this job are in different islands"
                         : "one replica sends nothing to others",
          "choose parallel.data above 1");
  };
  emulates_link(c.emulated.link_megabits_per_second > 0.0, "emulated.link_rate");
  emulates_link(c.emulated.link_delay_milliseconds > 0.0, "emulated.link_delay");
}

}  // namespace

bool has_end(optim::LearningRateKind kind) {
  return kind == optim::LearningRateKind::kLinear || kind == optim::LearningRateKind::kCosine;
}

void check_unused(const config::RunConfig& config, const Plan& plan) {
  const config::RunConfig otherwise;
  check_optimisation(config, otherwise);
  check_schedule(config, otherwise);
  check_data(config, otherwise, plan.train_data);
  check_local(config, otherwise);
  check_emulated(config, otherwise);
  check_links(config, plan);
  check(!config.checkpoint.init_except.empty(), !config.checkpoint.init.empty(),
        "checkpoint.init_except", "checkpoint.init is empty", "name a checkpoint there");
  const auto adapts = [&](bool given, const char* key) {
    check(given, config.lora.adapters.rank > 0, key, "lora.rank is 0",
          "set the rank of adapters there");
  };
  adapts(config.lora.adapters.alpha > 0.0, "lora.alpha");
  adapts(!config.lora.adapters.products.empty(), "lora.products");
  adapts(!config.lora.train.empty(), "lora.train");
  const bool joins = plan.model->joins_lanes() && plan.grid.data > 1;
  check(config.run.cuda_graphs != otherwise.run.cuda_graphs, plan.grid.tensor == 1 && !joins,
        "run.cuda_graphs",
        joins ? "batch_norm over all lanes puts messages into every pass"
              : fmt::format("parallel.tensor is {}, which puts messages into every pass",
                            plan.grid.tensor),
        joins ? "choose parallel.data = 1, or no sync for batch_norm" : "choose another grid");
  const bool tensorboard = config.run.tensorboard == config::Switch::kOn;
  const char* const off = "run.tensorboard is off";
  check(config.run.tensorboard_histograms > 0, tensorboard, "run.tensorboard_histograms", off,
        "set run.tensorboard to on");
  const auto writes = [&](bool used, const std::string& because, const char* instead) {
    check(config.run.tensorboard_text > 0, used, "run.tensorboard_text", because, instead);
  };
  writes(tensorboard, off, "set run.tensorboard to on");
  writes(plan.train_data.tokenizer != io::TokenizerKind::kNone,
         "the data set has no tokenizer that makes text of tokens", "use one that has");
  writes(!config.data.test.empty(), "data.test is empty", "name the test split");
  const auto evaluates = [&](bool given, const char* key) {
    check(given, !config.data.test.empty(), key, "data.test is empty",
          "name the test split, as in --data.test=DIR/test.h5");
    check(given, config.train.evaluate_every > 0, key, "train.evaluate_every is 0",
          "set the steps between evaluations");
  };
  evaluates(config.checkpoint.best != config::Best::kOff, "checkpoint.best");
  evaluates(config.train.patience > 0, "train.patience");
  check(config.checkpoint.best == config::Best::kAccuracy,
        plan.model->loss() == nn::LossKind::kCrossEntropy, "checkpoint.best",
        "the model has no classes and so no accuracy", "set it to loss");
  const bool rounds = config.numerics.shard_sums == config::ShardSums::kBfloat16;
  check(rounds, config.numerics.dtype == DType::kBfloat16, "numerics.shard_sums",
        fmt::format("numerics.dtype is {}, whose sums are not rounded",
                    name_of(config.numerics.dtype)),
        "set numerics.dtype to bfloat16");
  const bool in_pieces = config.numerics.row_pieces > 1;
  const char* sums = rounds ? "numerics.shard_sums" : "numerics.row_pieces";
  check(rounds || in_pieces, config.numerics.mode == comm::Summation::kInvariant, sums,
        "numerics.mode is fast, whose sums are the library's", "set numerics.mode to invariant");
  check(rounds || in_pieces, plan.config.numerics.shards > 1, sums,
        "numerics.shards is 1, which leaves nothing to sum", "set numerics.shards above 1");
  check(config.train.repeat_every.value_or(0) > 0,
        config.numerics.mode == comm::Summation::kInvariant, "train.repeat_every",
        "numerics.mode is fast, whose sums depend on who computes what",
        "set numerics.mode to invariant");
  check(config.numerics.loss_pieces > 1, plan.model->output().is_logits, "numerics.loss_pieces",
        "the model does not end in a head", "end it with layer = head");
  check(config.model.sync_batch_norm != nn::SyncLanes::kNo, nn::has_batch_norm(*plan.model),
        "model.sync_batch_norm", "the model has no batch_norm layer", "give it one");
}

}  // namespace strata::plan
