#include "strata/forecast/forecast.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/nn/layer_trace.hpp"
#include "strata/plan/memory_fit.hpp"
#include "strata/plan/replication.hpp"
#include "strata/plan/step_trace.hpp"

#include "replay.hpp"

// Forecaster::Step is one class on more than 400 lines: each of its steps reads what those before
// it found.
namespace strata::forecast {
namespace {

constexpr const char* kTensorMessages = "waits for the tensor group";
constexpr const char* kReduction = "waits for the data group: gradients";
constexpr const char* kGather = "waits for the data group: weights";
constexpr const char* kTied = "waits for a tied table";
constexpr const char* kSummary = "loss, norm and requests";
constexpr const char* kStages = "waits for messages of stages";
constexpr const char* kBubble = "pipeline bubble";

void add_to(Parts& sum, const Parts& parts, double times = 1.0) {
  for (const auto& [name, seconds] : parts) {
    sum[name] += times * seconds;
  }
}

/// The setting that would shrink a part; empty where it is as it must be.
std::string setting_for(const std::string& part, const plan::Plan& plan) {
  const config::RunConfig& c = plan.config;
  if (part == kTensorMessages) {
    return c.numerics.row_pieces == 1 && c.numerics.shard_sums == config::ShardSums::kFloat32 &&
                   c.numerics.dtype == DType::kBfloat16
               ? "numerics.shard_sums = bfloat16, or a smaller parallel.tensor"
               : "a smaller parallel.tensor";
  }
  if (part == kBubble) {
    return plan.microbatches < 4 * plan.grid.pipeline
               ? "a smaller batch.micro, a larger batch.global"
           : plan.grid.pipeline > 1 && plan.backward == nn::BackwardOrder::kSplit &&
                   !pipeline::defers_weight_gradients(plan.training)
               ? "parallel.schedule = zb-h1, or fewer stages"
               : "fewer stages (parallel.pipeline)";
  }
  if (part == kReduction || part == kGather) {
    return plan::replication_of(plan).traits(plan).replicas_stay_equal
               ? "a larger batch.global, parallel.sync = local"
               : "a larger batch.global";
  }
  if (part == plan::kPartsWait) {
    return plan::replication_of(plan).traits(plan).shorter_waits;
  }
  if (part == "matrix products" && c.train.recompute == nn::Recompute::kFull) {
    return "train.recompute = none or selective";
  }
  if (part == "matrix products" && c.numerics.dtype == DType::kFloat32) {
    return "numerics.dtype = bfloat16";
  }
  if (part == "loss" || part == "norms, activations, copies") {
    return c.numerics.dtype == DType::kFloat32 ? "numerics.dtype = bfloat16" : "";
  }
  if (part == "optimizer") {
    return "more replicas (parallel.data)";
  }
  return "";
}

Account account_of(std::string_view part) {
  if (part == kStages || part == kBubble) {
    return Account::kBubble;
  }
  constexpr std::array kMessages{kTensorMessages, kReduction, kGather, kTied, kSummary};
  return std::ranges::count(kMessages, part) > 0 || part == plan::kPartsWait
             ? Account::kCommunication
             : Account::kCompute;
}

double sum_of(const Parts& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const auto& part) { return sum + part.second; });
}

}  // namespace

/// The passes of one layer over one execution: a microbatch of each concurrent lane.
struct Forecaster::LayerPrice {
  double forward = 0.0;
  double backward_input = 0.0;
  double backward_weight = 0.0;
  Parts parts;  ///< of all three, with the waits for messages
  double waits = 0.0;
};

/// One forecast.
class Forecaster::Step {
 public:
  Step(Forecaster& forecaster, const plan::Plan& plan, std::int64_t node_ranks, Detail detail)
      : forecaster_(forecaster),
        machine_(forecaster.machine_),
        plan_(plan),
        node_ranks_(std::min(node_ranks, plan.grid.ranks())),
        share_(plan.device == device::DeviceKind::kCpu
                   ? std::max(1.0, static_cast<double>(node_ranks_) /
                                       static_cast<double>(machine_.node_devices))
                   : 1.0),
        site_{&machine_, std::min(node_ranks_, machine_.node_devices), nodes()},
        detail_(detail) {}

  Forecast run() {
    if (const auto traits = plan::replication_of(plan_).traits(plan_);
        !traits.unforecastable.empty()) {
      fail(ExitCode::kUsage, "{}", traits.unforecastable);
    }
    make_stages();
    fit();
    if (!forecast_.fits && detail_ == Detail::kTotals) {
      return std::move(forecast_);
    }
    price_stages();
    make_links();
    simulate();
    add_up();
    checkpoint();
    return std::move(forecast_);
  }

 private:
  [[nodiscard]] double nodes() const {
    return std::ceil(static_cast<double>(plan_.grid.ranks()) / static_cast<double>(node_ranks_));
  }
  [[nodiscard]] double executions() const {
    return static_cast<double>(plan_.training.microbatches);
  }

  const LayerPrice& price(const nn::StageSpec& chunk, const grid::Coordinates& at,
                          std::int64_t layer) {
    const nn::PassShape& pass = chunk.pass;
    const nn::LayerSites sites{
        .tensor = plan::group_site(plan_, at, grid::Axis::kTensor, node_ranks_),
        .data = plan::group_site(plan_, at, grid::Axis::kData, node_ranks_),
        .summation = plan_.config.numerics.mode};
    const auto accumulate =
        plan_.microbatches_per_lane > 1 ? ops::Accumulate::kAdd : ops::Accumulate::kOverwrite;
    const std::string key = fmt::format(
        "{} | {} {} {} {} {} {} {} {} {} {} {} | {} {} {} {} {} {} {} {} {}",
        nn::trace_key(*plan_.model, layer), pass.microbatch, name_of(pass.dtype), pass.shards.count,
        pass.shards.own.begin, pass.shards.own.end, name_of(pass.recompute), pass.concurrent_lanes,
        pass.logit_multiple, pass.row_pieces, name_of(pass.shard_sums), pass.loss_pieces,
        static_cast<int>(chunk.order), sites.tensor.ranks, sites.tensor.in_node, sites.data.ranks,
        sites.data.in_node, static_cast<int>(sites.summation), site_.busy_ranks, site_.nodes,
        static_cast<int>(accumulate));
    const auto [found, inserted] = forecaster_.layers_.try_emplace(key);
    if (inserted) {
      found->second = priced(nn::trace_layer(*plan_.model, layer, chunk, sites, accumulate));
    }
    return found->second;
  }

  const LayerPrice& price(const plan::RankPlan& rank, std::int64_t layer) {
    const auto chunk = std::ranges::find_if(rank.chunks, [&](const nn::StageSpec& spec) {
      return spec.layers.begin <= layer && layer < spec.layers.end;
    });
    return price(*chunk, rank.coordinates, layer);
  }

  LayerPrice priced(const nn::LayerTrace& trace) {
    LayerPrice price;
    Replay replay(site_);
    const auto pass = [&](const std::vector<comm::TraceEvent>& events) {
      const double begin = replay.now();
      replay.run(events);
      return replay.now() - begin;
    };
    price.forward = pass(trace.forward);
    price.backward_input = pass(trace.backward_input);
    price.backward_weight = pass(trace.backward_weight);
    price.parts = replay.parts();
    price.parts[kTensorMessages] += replay.exposed();
    price.waits = replay.waits();
    return price;
  }

  void make_stages() {
    std::vector<plan::RankPlan> ranks;
    if (detail_ == Detail::kAll) {
      ranks = plan::largest_rank_plans(plan_);
    } else {
      for (std::int64_t s = 0; s < plan_.grid.pipeline; ++s) {
        ranks.push_back(plan::rank_plan(plan_, plan_.grid.rank_of({.pipeline = s})));
      }
    }
    for (plan::RankPlan& rank : ranks) {
      const auto bytes = static_cast<double>(plan::device_bytes(rank));
      forecast_.stages.push_back({.rank = std::move(rank), .memory_bytes = bytes});
    }
  }

  void price_stages() {
    for (StageForecast& stage : forecast_.stages) {
      Parts& parts = parts_.emplace_back();
      double waits = 0.0;
      for (const nn::StageSpec& chunk : stage.rank.chunks) {
        pipeline::ChunkTimes& times = stage.chunks.emplace_back();
        for (std::int64_t layer = chunk.layers.begin; layer < chunk.layers.end; ++layer) {
          const LayerPrice& of = price(chunk, stage.rank.coordinates, layer);
          times.forward_seconds += of.forward;
          times.backward_input_seconds += of.backward_input;
          times.backward_weight_seconds += of.backward_weight;
          add_to(parts, of.parts, executions());
          waits += executions() * of.waits;
        }
      }
      tails_.push_back(tail(stage.rank));
      // An activation and a gradient of each microbatch.
      const double messages = plan_.grid.pipeline > 1 ? 2.0 * executions() : 0.0;
      // The reduction and the gather are under way beside computation; a step ends with one wait.
      waits_ = std::max(waits_, waits + messages + (plan_.grid.ranks() > 1 ? 1.0 : 0.0));
    }
  }

  /// What a stage does besides the passes.
  struct StageTail {
    double reduce = 0.0;     ///< after its last pass
    double optimizer = 0.0;  ///< with the norm
    double gather = 0.0;     ///< of which the next forward pass waits
    Parts parts;             ///< of all
  };

  StageTail tail(const plan::RankPlan& rank) {
    const plan::StepTrace trace = plan::trace_step(plan_, rank, node_ranks_);
    StageTail result;
    Replay replay(site_);
    double passes = 0.0;
    replay.run(trace.own_lanes);
    for (const plan::StepTrace::AfterLayer& after : trace.reduction) {
      const LayerPrice& layer = price(rank, after.layer);
      const double seconds = plan_.backward == nn::BackwardOrder::kFused ? layer.backward_input
                                                                         : layer.backward_weight;
      replay.compute(seconds);
      passes += seconds;
      replay.run(after.events);
    }
    replay.run(trace.finish);
    result.reduce = replay.now() - passes;
    result.parts[kReduction] = replay.exposed();

    double begin = replay.now();
    double exposed = replay.exposed();
    replay.run(trace.tied);
    result.parts[kTied] = replay.exposed() - exposed;
    replay.run(trace.norm);
    // The all-gathers of losses, norms and requests, over each axis.
    const double summary = summary_seconds();
    replay.compute(summary);
    result.parts[kSummary] = summary;
    exposed = replay.exposed();
    replay.run(trace.update);
    result.optimizer = replay.now() - begin;
    result.parts[kGather] = replay.exposed() - exposed;

    exposed = replay.exposed();
    for (const plan::StepTrace::AfterLayer& after : trace.gather) {
      replay.run(after.events);
      replay.compute(price(rank, after.layer).forward);
    }
    result.gather = replay.exposed() - exposed;
    result.parts[kGather] += result.gather;
    add_to(result.parts, replay.parts());
    return result;
  }

  [[nodiscard]] double summary_seconds() const {
    double seconds = 0.0;
    for (const std::int64_t ranks : {plan_.grid.data, plan_.grid.pipeline, plan_.grid.tensor}) {
      if (ranks > 1) {
        const bool crosses = plan_.grid.ranks() > node_ranks_;
        const Link& link = crosses ? machine_.network : machine_.node;
        seconds += seconds_of(machine_, link, std::ceil(std::log2(static_cast<double>(ranks))), 0.0,
                              nodes());
      }
    }
    return seconds;
  }

  /// Messages between neighbouring stages.
  void make_links() {
    const std::int64_t stages = plan_.grid.pipeline;
    std::vector<pipeline::LinkTimes> links;
    const std::int64_t stage_ranks = plan_.grid.ranks() / stages;
    const nn::PassShape& pass = forecast_.stages.front().rank.chunks.front().pass;
    const auto times = [&](std::int64_t layer, bool crosses) {
      const Link& link = crosses ? machine_.network : machine_.node;
      const auto lanes = static_cast<double>(plan_.concurrent_lanes);
      const auto seconds = [&](bool gradients) {
        const plan::Traffic crossing = plan::crossing_traffic(plan_, layer, pass, gradients);
        return crossing.messages == 0.0 ? 0.0
                                        : seconds_of(machine_, link, lanes * crossing.messages,
                                                     lanes * crossing.bytes, 2.0);
      };
      return pipeline::LinkTimes{.activation_seconds = seconds(false),
                                 .gradient_seconds = seconds(true)};
    };
    const auto first_layer_behind = [&](std::int64_t stage) {
      for (std::size_t i = 0; i + 1 < plan_.split.stages.size(); ++i) {
        if (plan_.training.order.chunks()[i].stage == stage) {
          return plan_.split.stages[i].end;
        }
      }
      return plan_.split.stages.front().end;
    };
    for (std::int64_t s = 0; s + 1 < stages; ++s) {
      const bool crosses =
          s * stage_ranks / node_ranks_ != ((s + 2) * stage_ranks - 1) / node_ranks_;
      links.push_back(times(first_layer_behind(s), crosses));
    }
    if (stages > 1) {
      links.push_back(times(first_layer_behind(0), stages * stage_ranks > node_ranks_));
      forecast_.costs.links = std::move(links);
    }
  }

  /// Cores copy messages in a node themselves: half of what an exchange takes is the sender's, half
  /// the receiver's. What is left of the link is its latency.
  void copy_messages(pipeline::StageCosts& costs) {
    if (machine_.device != device::DeviceKind::kCpu || plan_.grid.pipeline == 1 ||
        plan_.grid.ranks() > node_ranks_) {
      return;
    }
    const double latency = machine_.node.latency_seconds;
    copies_.assign(costs.times.size(), 0.0);
    const std::vector<pipeline::StageChunk>& order = plan_.training.order.chunks();
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      if (order[i].stage == order[i + 1].stage) {
        continue;
      }
      const pipeline::LinkTimes& link = costs.link(order[i].stage, order[i + 1].stage);
      for (const pipeline::StageChunk& of : {order[i], order[i + 1]}) {
        pipeline::ChunkTimes& times =
            costs.times[static_cast<std::size_t>(of.stage)][static_cast<std::size_t>(of.chunk)];
        times.forward_seconds += link.activation_seconds / 2.0;
        times.backward_input_seconds += link.gradient_seconds / 2.0;
        copies_[static_cast<std::size_t>(of.stage)] +=
            executions() * (link.activation_seconds + link.gradient_seconds) / 2.0;
      }
    }
    costs.links = {{.activation_seconds = latency, .gradient_seconds = latency}};
  }

  void simulate() {
    pipeline::StageCosts& costs = forecast_.costs;
    for (std::size_t s = 0; s < forecast_.stages.size(); ++s) {
      costs.times.push_back(forecast_.stages[s].chunks);
      costs.reduce_seconds.push_back(tails_[s].reduce);
      costs.optimizer_seconds.push_back(tails_[s].optimizer);
    }
    copy_messages(costs);
    for (std::vector<pipeline::ChunkTimes>& chunks : costs.times) {
      if (chunks.size() > 1) {
        chunks.resize(static_cast<std::size_t>(plan_.training.chunks));
      }
    }
    forecast_.simulation = pipeline::simulate(
        plan_.training, costs,
        detail_ == Detail::kAll ? pipeline::Record::kActions : pipeline::Record::kTotals);
  }

  void add_up() {
    Forecast& f = forecast_;
    const pipeline::Simulation& simulation = f.simulation;
    // Ranks that share cores: what they compute takes turns.
    double work = 0.0;
    double gather = 0.0;
    std::size_t slowest = 0;
    for (std::size_t s = 0; s < f.stages.size(); ++s) {
      const double tail = tails_[s].reduce + tails_[s].optimizer;
      f.stages[s].compute_seconds = simulation.busy_seconds[s] + tail - tails_[s].parts[kReduction];
      // Cores also copy messages in a node.
      work += simulation.busy_seconds[s] + tail + tails_[s].gather;
      gather = std::max(gather, tails_[s].gather);
      slowest = f.stages[s].compute_seconds > f.stages[slowest].compute_seconds ? s : slowest;
    }
    const double dedicated = simulation.step_seconds + gather;
    const double shared = share_ == 1.0 ? 0.0
                                        : share_ * work / static_cast<double>(f.stages.size()) +
                                              waits_ * machine_.context_switch_seconds;
    const double between_parts = seconds_between_parts(f.stages[slowest].rank);
    f.step_seconds =
        std::max(dedicated, shared) * static_cast<double>(plan_.parts_per_rank) + between_parts;

    Parts parts = parts_[slowest];
    add_to(parts, tails_[slowest].parts);
    parts[kStages] += simulation.exposed_seconds[slowest] - tails_[slowest].reduce +
                      (copies_.empty() ? 0.0 : copies_[slowest]);
    for (auto& [name, seconds] : parts) {
      seconds *= static_cast<double>(plan_.parts_per_rank);
    }
    parts[plan::kPartsWait] += between_parts;
    const double rest = f.step_seconds - sum_of(parts);
    parts[share_ > 1.0 && shared > dedicated ? "waits for a core" : kBubble] += std::max(0.0, rest);
    for (const auto& [name, seconds] : parts) {
      if (seconds > 1e-12) {
        f.parts.push_back({name, seconds, setting_for(name, plan_), account_of(name)});
      }
      if (name.starts_with("waits for ")) {
        f.exposed_seconds += seconds;
      }
    }
    std::ranges::stable_sort(f.parts, std::greater(), &StepPart::seconds);
    f.bubble_fraction = plan_.grid.pipeline > 1 ? parts[kBubble] / f.step_seconds : 0.0;
    const auto samples = static_cast<double>(plan_.config.batch.global);
    f.samples_per_second = samples / f.step_seconds;
    if (plan::is_language_model(plan_)) {
      f.tokens_per_second = f.samples_per_second * static_cast<double>(tokens_per_sample(plan_));
    }
    if (const auto peak = machine_.peak_flops.find(plan_.config.numerics.dtype);
        peak != machine_.peak_flops.end()) {
      f.mfu = nn::training_flops(*plan_.model) * static_cast<double>(plan::job_batch(plan_)) /
              f.step_seconds / (peak->second * static_cast<double>(plan_.grid.ranks()));
    }
  }

  [[nodiscard]] double seconds_between_parts(const plan::RankPlan& rank) const {
    if (!plan::replication_of(plan_).traits(plan_).waits) {
      return 0.0;
    }
    const plan::Traffic round = *plan::replication_of(plan_).traffic(plan_, rank);
    const Link& link = plan_.grid.ranks() > node_ranks_ ? machine_.network : machine_.node;
    return seconds_of(machine_, link, round.messages, round.bytes, nodes());
  }

  void fit() {
    forecast_.free_bytes = forecaster_.free_bytes(plan_, node_ranks_);
    forecast_.fits = std::ranges::all_of(forecast_.stages, [&](const StageForecast& stage) {
      return plan::fits(stage.rank, static_cast<std::int64_t>(std::floor(forecast_.free_bytes)));
    });
  }

  void checkpoint() {
    const config::RunConfig& c = plan_.config;
    const auto full = static_cast<double>(size_bytes(compute_dtype(c.numerics.dtype)));
    const auto states = static_cast<double>(optim::UpdateRule::states(c.optimizer.options));
    forecast_.checkpoint_bytes =
        full * (static_cast<double>(plan_.model->parameter_count()) +
                states * static_cast<double>(plan_.model->trainable_count()) *
                    static_cast<double>(plan_.parts));
    if (machine_.file_write_bytes_per_second > 0.0) {
      forecast_.checkpoint_seconds =
          forecast_.checkpoint_bytes / (nodes() * machine_.file_write_bytes_per_second);
    }
  }

  Forecaster& forecaster_;
  const Machine& machine_;
  const plan::Plan& plan_;
  std::int64_t node_ranks_;
  double share_;  ///< ranks of a node for each of its cores, at least 1
  Site site_;
  Detail detail_;
  std::vector<Parts> parts_;  ///< of each stage's passes in a step
  std::vector<StageTail> tails_;
  double waits_ = 0.0;          ///< of the rank that waits most often, in a step
  std::vector<double> copies_;  ///< of each stage in a step; empty: links work beside it
  Forecast forecast_;
};

Forecaster::Forecaster(const Machine& machine) : machine_(machine) {}

Forecaster::~Forecaster() = default;

double Forecaster::free_bytes(const plan::Plan& plan, std::int64_t node_ranks) const {
  // Ranks on cores share the node's memory.
  const bool gpu = plan.device == device::DeviceKind::kCuda;
  const auto ranks = static_cast<double>(std::min(node_ranks, plan.grid.ranks()));
  return machine_.memory_bytes / (gpu ? 1.0 : ranks) - machine_.reserved_bytes;
}

Forecast Forecaster::forecast(const plan::Plan& plan, std::int64_t node_ranks, Detail detail) {
  return Step(*this, plan, node_ranks, detail).run();
}

}  // namespace strata::forecast
