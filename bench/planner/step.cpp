#include "step.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "strata/nn/layer_trace.hpp"
#include "strata/nn/model.hpp"
#include "strata/nn/transformer.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::bench {
namespace {

/// Ranks of a group of neighbours in a node.
std::int64_t in_node(const forecast::Machine& machine, std::int64_t ranks) {
  return std::min(machine.node_devices, ranks);
}

/// Leaves out what only strata does, for sums that do not depend on the number of shards, and what
/// the profile prices: losses and embeddings.
void take(std::vector<ops::OperationWork>& into, const std::vector<comm::TraceEvent>& events) {
  constexpr std::array<std::string_view, 5> kLeft{"fold", "convert", "copy", "combine",
                                                  "cross_entropy"};
  for (const comm::TraceEvent& event : events) {
    const std::string_view name = event.work.name;
    if (event.kind == comm::TraceEvent::Kind::kOperation && !name.ends_with("_backward_weight") &&
        std::ranges::none_of(kLeft, [&](std::string_view l) { return name.starts_with(l); })) {
      into.push_back(event.work);
    }
  }
}

/// The layers of strata's own model of these sizes, traced on one tensor rank.
Work traced(const nn::Model& model, const Run& run, std::int64_t first, std::int64_t last) {
  const nn::StageSpec stage{.pass = {.microbatch = run.micro,
                                     .dtype = DType::kBfloat16,
                                     .shards = {run.tensor, {0, 1}},
                                     .shard_sums = DType::kBfloat16},
                            .order = nn::BackwardOrder::kFused};
  const nn::LayerSites sites{
      .tensor = {.axis = grid::Axis::kTensor, .ranks = run.tensor, .has_streams = true}};
  Work work;
  for (std::int64_t layer = first; layer < last; ++layer) {
    const nn::LayerTrace trace =
        nn::trace_layer(model, layer, stage, sites, ops::Accumulate::kOverwrite);
    take(work.forward, trace.forward);
    take(work.backward, trace.backward_input);
  }
  return work;
}

/// (n - 1) messages around a ring of `ranks`, which bring `bytes` in all to each or from each.
/// `neighbours`: of the group in a node, each of which has a port of its own.
double ring_seconds(const forecast::Machine& machine, std::int64_t ranks, std::int64_t neighbours,
                    double bytes, double network_latency, double times = 1.0) {
  if (ranks <= 1) {
    return 0.0;
  }
  forecast::Link link = machine.node;
  if (neighbours < ranks) {
    link = {.latency_seconds = network_latency,
            .bytes_per_second = std::min(link.bytes_per_second,
                                         machine.network.bytes_per_second * real(neighbours))};
  }
  return forecast::seconds_of(machine, link, real(ranks - 1) * times,
                              real(ranks - 1) / real(ranks) * bytes);
}

/// Two parties that mostly overlap: the longer, and more where both are as long.
double soft_maximum(double a, double b) {
  return std::pow(std::pow(a, 4.0) + std::pow(b, 4.0), 0.25);
}

/// A pass of a layer, or of a stage.
struct Passes {
  double forward = 0.0;
  double backward_input = 0.0;
  double backward_weight = 0.0;

  [[nodiscard]] double all() const { return forward + backward_input + backward_weight; }
  void add(const Passes& other, double times) {
    forward += times * other.forward;
    backward_input += times * other.backward_input;
    backward_weight += times * other.backward_weight;
  }
  [[nodiscard]] Passes times(double factor) const {
    Passes result;
    result.add(*this, factor);
    return result;
  }
};

}  // namespace

const Predictor::Layers& Predictor::layers_of(const Run& run) {
  const std::string key = fmt::format("{} {} {} {} {} {} {} {} {} {}", run.hidden, run.heads,
                                      run.kv_heads, run.ffn, run.vocabulary, run.sequence,
                                      run.gated, run.tensor, run.micro, static_cast<int>(run.mode));
  const auto [found, inserted] = layers_.try_emplace(key);
  if (inserted) {
    const bool rotary = run.gated || run.kv_heads != run.heads;
    const nn::TransformerOptions options{
        .preset = rotary ? nn::Preset::kLlama : nn::Preset::kGpt,
        .blocks = 1,
        .width = run.hidden,
        .heads = run.heads,
        .kv_heads = rotary ? run.kv_heads : 0,
        .hidden = run.ffn,
        .context = run.sequence,
        .vocabulary = run.vocabulary,
        .mlp = run.gated ? nn::MlpKind::kSwiglu : nn::MlpKind::kGelu};
    const bool shares = run.mode == TensorMode::kShareRows && run.tensor > 1;
    const nn::Model model(
        {.layers = nn::transformer_layers(nn::resolved(options)),
         .input_shape = Shape{run.sequence},
         .outputs = run.vocabulary,
         .input_kind = nn::InputKind::kTokenIds,
         .shards = run.tensor,
         .token_rows = shares ? nn::Placement::kTokens : nn::Placement::kReplicated});
    const std::int64_t head = model.layer_count() - 1;
    found->second.block = traced(model, run, 1, head - 1);
    found->second.head = traced(model, run, head, head + 1);
  }
  return found->second;
}

const pipeline::Schedule& Predictor::schedule_of(const Run& run) {
  const auto [found, inserted] = schedules_.try_emplace(fmt::format(
      "{} {} {} {}", static_cast<int>(run.schedule), run.pipeline, run.microbatches, run.chunks));
  if (inserted) {
    found->second = pipeline::make_schedule(
        run.schedule,
        {.stages = run.pipeline, .microbatches = run.microbatches, .chunks = run.chunks});
  }
  return found->second;
}

/// One prediction.
class Predictor::Step {
 public:
  Step(const Run& run, const Constants& constants, const Layers& layers)
      : run_(run),
        machine_(constants.machines.at(run.machine)),
        profile_(constants.profiles.at(run.profile)),
        blocks_(blocks_of(run, profile_.placing)) {
    const Passes block = layer(layers.block);
    const Passes head = passes(layers.head);
    const Passes loss{
        .forward = memory(logits() * profile_.loss_forward_bytes * profile_.pass_factor),
        .backward_input = memory(logits() * profile_.loss_backward_bytes * profile_.pass_factor)};
    // Ranks that share rows wait for the hosts of their peers, but not while the pipeline fills.
    const bool waits =
        run.mode == TensorMode::kShareRows && run.tensor > 1 && run.gpus > machine_.node_devices;
    const double wait = !waits ? 0.0
                               : real(run.tensor) * (run.tensor <= machine_.node_devices
                                                         ? profile_.host_peer
                                                         : profile_.host_peer_network);
    for (const StageBlocks& of : blocks_) {
      Passes gpu;
      gpu.add(block, of.layers);
      gpu.add(head, of.head ? 1.0 : 0.0);
      gpu.add(loss, of.loss ? 1.0 : 0.0);
      gpu.backward_weight += memory(profile_.accumulation_bytes * untied_parameters(of));
      if (run.zero == 3) {
        // Weights are gathered for each pass and gradients scattered, beside the passes.
        gpu = gpu.times(std::max(1.0, sharded_seconds(of) / gpu.all()));
      }
      const double host = of.layers * profile_.host_layer;
      const double busy = std::max(gpu.all(), 1e-9);
      stages_.push_back(gpu.times(soft_maximum(busy, host) / busy));
      steady_.push_back(soft_maximum(busy, host + of.layers * wait));
    }
  }

  [[nodiscard]] double seconds(const pipeline::Schedule* schedule) const {
    pipeline::StageCosts costs;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const Passes& of = stages_[s];
      const double chunks = real(run_.chunks);
      const bool split = schedule != nullptr && pipeline::defers_weight_gradients(*schedule);
      costs.times.push_back(
          {{.forward_seconds = of.forward / chunks,
            .backward_input_seconds =
                (of.backward_input + (split ? 0.0 : of.backward_weight)) / chunks,
            .backward_weight_seconds = (split ? of.backward_weight : 0.0) / chunks}});
      costs.reduce_seconds.push_back(reduction(s));
      costs.optimizer_seconds.push_back(update(s));
    }
    if (schedule == nullptr) {
      return real(run_.microbatches) * steady_.front() + costs.reduce_seconds.front() +
             costs.optimizer_seconds.front();
    }
    costs.links = links();
    return pipeline::simulate(*schedule, costs, pipeline::Record::kTotals).step_seconds +
           real(run_.microbatches) * observed();
  }

 private:
  [[nodiscard]] double memory(double bytes) const {
    return bytes / (machine_.memory_bytes_per_second * machine_.memory_efficiency);
  }
  [[nodiscard]] double tokens() const { return real(run_.micro * run_.sequence); }
  [[nodiscard]] double logits() const { return tokens() * real(run_.vocabulary / run_.tensor); }

  [[nodiscard]] double seconds_of(const ops::OperationWork& work) const {
    ops::OperationWork of = work;
    if (of.flops == 0.0) {
      of.bytes *= profile_.pass_factor;
    }
    if (profile_.flash || !of.name.starts_with("attention")) {
      return forecast::seconds_of(machine_, of);
    }
    // Products of whole rows and columns, and passes of scale, mask, softmax and dropout over the
    // scores of two bytes: 5 forward, 7 backward.
    const auto [heads, rows, size] = work.extents;
    const bool forward = of.name == "attention_forward";
    return forecast::seconds_of(machine_, {.name = "matmul_nt",
                                           .dtype = DType::kBfloat16,
                                           .extents = {rows, rows, size},
                                           .flops = (forward ? 4.0 : 8.0) * real(heads * rows) *
                                                    real(rows * size)}) +
           memory((forward ? 10.0 : 14.0) * real(heads * rows) * real(rows));
  }

  [[nodiscard]] Passes passes(const Work& work) const {
    Passes result;
    for (const ops::OperationWork& of : work.forward) {
      result.forward += seconds_of(of);
    }
    for (const ops::OperationWork& of : work.backward) {
      (of.name.starts_with("matmul_tn") ? result.backward_weight : result.backward_input) +=
          seconds_of(of);
    }
    return result;
  }

  /// A layer with its tensor messages.
  [[nodiscard]] Passes layer(const Work& work) const {
    Passes result = passes(work);
    const double bytes = 2.0 * tokens() * real(run_.hidden);
    const bool reduces = run_.mode == TensorMode::kAllReduce;
    // An all-reduce has the steps of two gathers.
    const double one = ring_seconds(machine_, run_.tensor, in_node(machine_, run_.tensor),
                                    reduces ? profile_.all_reduce * bytes : bytes,
                                    machine_.network.latency_seconds, reduces ? 2.0 : 1.0);
    // Of gathers and scatters 4 are forward; of all-reduces 2 forward and 2 backward.
    const double backward = reduces ? 2.0 : profile_.row_messages - 4.0;
    const double messages = (reduces ? 2.0 : 4.0) * one * (1.0 - profile_.tensor_hidden);
    const double forward = result.forward + messages;
    result.forward = forward;
    result.backward_input += backward * one * (1.0 - profile_.tensor_hidden);
    if (run_.recompute) {
      result.backward_input += forward;
    }
    return result;
  }

  /// Parameters with their gradients' accumulation: those of a tied matrix have two.
  [[nodiscard]] double untied_parameters(const StageBlocks& of) const {
    Run run = run_;
    run.tied = false;
    return rank_parameters(run, of);
  }

  /// Consecutive replicas of a stage in a node.
  [[nodiscard]] std::int64_t node_replicas() const {
    return std::clamp<std::int64_t>(machine_.node_devices / run_.tensor, 1, run_.data);
  }

  [[nodiscard]] double sharded_seconds(const StageBlocks& of) const {
    return ring_seconds(machine_, run_.data, node_replicas(),
                        (4.0 + profile_.gradient_bytes) * rank_parameters(run_, of),
                        profile_.bucket_step, 3.0 * std::max(1.0, of.layers));
  }

  /// Whether messages from a stage to the next one leave a node.
  [[nodiscard]] bool crosses(std::int64_t stage) const {
    const std::int64_t ranks = run_.gpus / run_.pipeline;
    return run_.gpus > machine_.node_devices &&
           (ranks >= machine_.node_devices || (stage + 1) * ranks % machine_.node_devices == 0);
  }

  [[nodiscard]] std::vector<pipeline::LinkTimes> links() const {
    std::vector<pipeline::LinkTimes> result;
    for (std::size_t s = 0; s + 1 < stages_.size(); ++s) {
      const bool logits_go = blocks_[s].head && !blocks_[s].loss;
      const double bytes =
          2.0 * tokens() * real(logits_go ? run_.vocabulary : run_.hidden) / real(run_.tensor);
      const bool out = crosses(static_cast<std::int64_t>(s));
      const forecast::Link link{
          .latency_seconds = (out ? machine_.network : machine_.node).latency_seconds,
          .bytes_per_second = out ? machine_.network.bytes_per_second * profile_.hop_network_share
                                  : machine_.node.bytes_per_second * profile_.hop_share};
      const double seconds = forecast::seconds_of(machine_, link, 1.0, bytes);
      result.push_back({seconds, seconds});
    }
    result.push_back(result.front());  // from the last stage to the first, where chunks follow
    return result;
  }

  /// What slows each microbatch down beyond the simulated step: the hosts' waits, and the stall.
  [[nodiscard]] double observed() const {
    const bool stalls = profile_.stall > 0.0 &&
                        (run_.gpus >= profile_.stall_gpus || run_.tensor >= profile_.stall_tensor);
    double pace = 0.0;
    double quiet = 0.0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const double sides = (s > 0 ? 1.0 : 0.0) + (s + 1 < stages_.size() ? 1.0 : 0.0);
      pace = std::max(pace, steady_[s] + (stalls ? sides * profile_.stall : 0.0));
      quiet = std::max(quiet, stages_[s].all());
    }
    return pace - quiet;
  }

  /// Of the gradients over replicas, less what the last backward pass hides.
  [[nodiscard]] double reduction(std::size_t s) const {
    const double bytes = profile_.gradient_bytes * rank_parameters(run_, blocks_[s]);
    double seconds = 0.0;
    if (run_.data > 1 && run_.zero < 3) {
      const double ring = data_ring(bytes, bytes / profile_.bucket_bytes);
      seconds = std::max(
          (run_.zero == 0 ? 2.0 : profile_.zero_factor) * ring -
              profile_.reduction_hidden * (stages_[s].backward_input + stages_[s].backward_weight),
          0.1 * ring);
    }
    if (run_.tied && run_.pipeline > 1 && (s == 0 || s + 1 == stages_.size())) {
      const forecast::Link& link =
          run_.gpus > machine_.node_devices ? machine_.network : machine_.node;
      seconds += forecast::seconds_of(
          machine_, link, 1.0,
          profile_.gradient_bytes * vocabulary_parameters(run_) / real(run_.tensor));
    }
    return seconds;
  }

  /// The optimizer, and ZeRO-1's gather of weights less what the first forward pass hides.
  [[nodiscard]] double update(std::size_t s) const {
    const double parameters = rank_parameters(run_, blocks_[s]);
    const double share = run_.zero > 0 ? real(run_.data) : 1.0;
    double seconds = memory(parameters * (profile_.optimizer_bytes / share + 8.0));
    if (run_.data > 1 && run_.zero > 0 && run_.zero < 3) {
      const double gather =
          profile_.zero_factor * data_ring(2.0 * parameters, profile_.gradient_bytes * parameters /
                                                                 profile_.bucket_bytes / 2.0);
      seconds += std::max(gather - profile_.gather_hidden * stages_[s].forward, 0.1 * gather);
    }
    return seconds;
  }

  [[nodiscard]] double data_ring(double bytes, double buckets) const {
    return ring_seconds(machine_, run_.data, node_replicas(), bytes, profile_.bucket_step,
                        std::max(1.0, buckets));
  }

  const Run& run_;
  const forecast::Machine& machine_;
  const Profile& profile_;
  std::vector<StageBlocks> blocks_;
  std::vector<Passes> stages_;  ///< while the pipeline fills
  std::vector<double> steady_;  ///< a microbatch's seconds later on
};

double Predictor::step_seconds(const Run& run, const Constants& constants) {
  return Step(run, constants, layers_of(run))
      .seconds(run.pipeline > 1 ? &schedule_of(run) : nullptr);
}

}  // namespace strata::bench
