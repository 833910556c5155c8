#include "strata/nn/layer_trace.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace strata::nn {
namespace {

/// Takes gradients into one arena and reduces nothing.
class ArenaSink final : public GradientSink {
 public:
  explicit ArenaSink(Target target) : target_(target) {}

  Target begin_microbatch(std::int64_t /*m*/, const grid::Range& /*layers*/) override {
    return target_;
  }
  bool acts_on(std::int64_t /*m*/, std::int64_t /*layer*/) const override { return false; }
  void layer_done(std::int64_t /*m*/, std::int64_t /*layer*/) override {}
  void finish() override {}

 private:
  Target target_;
};

/// Memory for `shape` that is not there.
device::Buffer planned(const Shape& shape, DType dtype) {
  return {device::Device::planned(), std::max<std::int64_t>(1, shape.count()) * size_bytes(dtype)};
}

/// Calls use(layer, its trace, samples) for all layers of a model on one rank.
template <typename Use>
void for_traces(const Model& model, const Use& use) {
  // batch_norm needs several samples, and documents are compared in pairs.
  const StageSpec stage{.pass = {.microbatch = 2,
                                 .shards = {.count = model.shards(), .own = {0, model.shards()}},
                                 .concurrent_lanes = model.joins_lanes() ? model.lanes() : 1},
                        .order = BackwardOrder::kSplit};
  const auto samples = static_cast<double>(stage.pass.microbatch * stage.pass.concurrent_lanes);
  std::map<std::string, LayerTrace> known;
  for (std::int64_t layer = 0; layer < model.layer_count(); ++layer) {
    const auto [found, is_new] = known.try_emplace(trace_key(model, layer));
    if (is_new) {
      found->second = trace_layer(model, layer, stage, {}, ops::Accumulate::kAdd);
    }
    use(layer, found->second, samples);
  }
}

}  // namespace

std::string trace_key(const Model& model, std::int64_t layer) {
  const Layer& of = model.layer(layer);
  const LayerSources& sources = model.sources(layer);
  std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {}", of.text(), of.input_shape().text(),
                  of.output_shape().text(), name_of(of.input().placement),
                  name_of(of.output().placement), sources.input < 0, sources.added.has_value(),
                  layer + 1 == model.layer_count(), layer < model.first_changing_layer());
  for (const ParameterSpec& parameter : model.parameters()) {
    if (parameter.layer == layer) {
      key += parameter.rule == ParameterRule::kTrained ? " t"
             : has_gradient(parameter)                 ? " g"
                                                       : " f";
    }
  }
  // A tensor that several layers read has its gradients added.
  for (const std::int64_t tensor : model.boundary_tensors(layer)) {
    key += fmt::format(" {}", tensor < 0 ? -1 : layer - tensor);
  }
  return key;
}

LayerTrace trace_layer(const Model& model, std::int64_t layer, const StageSpec& stage,
                       const LayerSites& sites, ops::Accumulate accumulate) {
  StageSpec spec = stage;
  spec.layers = {layer, layer + 1};
  const bool first = layer == 0;
  const bool last = layer + 1 == model.layer_count();
  const std::int64_t concurrent = spec.pass.concurrent_lanes;
  spec.slots = {.activations = 1, .inputs = first ? 0 : 1, .gradients = 1, .losses = concurrent};

  comm::Trace trace;
  ops::Context context = ops::Context::planned(trace);
  comm::ProgressEngine engine;
  const Shards& own = spec.pass.shards;
  comm::PlannedGroup tensor_group(trace, sites.tensor);
  comm::ShardGroup shards =
      sites.tensor.ranks == 1 ? comm::ShardGroup(own.count)
                              : comm::ShardGroup(tensor_group, engine, own.count, sites.summation);
  comm::PlannedGroup data_group(trace, sites.data);
  comm::PartitionedGroup lanes =
      sites.data.ranks == 1
          ? comm::PartitionedGroup(concurrent)
          : comm::PartitionedGroup(data_group, engine, concurrent * sites.data.ranks);

  const ParameterLayout layout = layout_of(model.parameters(), spec.layers, own);
  const ParameterLayout frozen =
      layout_of(model.parameters(), std::span(&spec.layers, 1), own, Placed::kWithoutGradients);
  const device::Buffer weights = planned({layout.weight_elements}, spec.pass.dtype);
  const device::Buffer frozen_weights = planned({frozen.weight_elements}, spec.pass.dtype);
  const DType gradient_dtype = compute_dtype(spec.pass.dtype);
  const device::Buffer gradients = planned({layout.elements}, gradient_dtype);
  Stage passes(context, engine, shards, model, spec, layout,
               weights.view(0, {layout.weight_elements}, spec.pass.dtype),
               model.joins_lanes() ? &lanes : nullptr, nullptr,
               {.layout = &frozen,
                .weights = frozen_weights.view(0, {frozen.weight_elements}, spec.pass.dtype)});

  const bool tokens = model.layer(0).text().starts_with("embedding");
  const Shape samples = model.layer(0).input_shape().prepended(spec.pass.microbatch);
  const DType sample_dtype = tokens ? DType::kInt64 : spec.pass.dtype;
  const device::Buffer inputs = planned(samples, sample_dtype);
  const bool labels = model.loss() == LossKind::kCrossEntropy;
  const Shape target_shape{labels ? rows_at(model.output(), spec.pass.microbatch)
                                  : spec.pass.microbatch * model.output().shape.count()};
  const DType target_dtype = labels ? DType::kInt64 : spec.pass.dtype;
  const device::Buffer targets = planned(target_shape, target_dtype);
  const bool compares = last && model.loss_options().compares_documents();
  const device::Buffer starts = planned(target_shape, DType::kUint32);
  const device::Buffer references = planned({spec.pass.microbatch}, DType::kFloat64);

  std::vector<Microbatch> microbatches;
  for (std::int64_t k = 0; k < concurrent; ++k) {
    microbatches.push_back({.number = k, .execution_index = k});
    if (first) {
      microbatches.back().input = inputs.view(0, samples, sample_dtype);
    }
    if (compares) {
      microbatches.back().places.document_starts = starts.view(0, target_shape, DType::kUint32);
      microbatches.back().references = references.view(0, {spec.pass.microbatch}, DType::kFloat64);
    }
  }
  ArenaSink sink({.gradients = gradients.view(0, {layout.elements}, gradient_dtype),
                  .accumulate = accumulate});
  LayerTrace result;
  passes.forward(microbatches, Mode::kTraining);
  for (std::int64_t k = 0; last && k < concurrent; ++k) {
    passes.loss(microbatches[static_cast<std::size_t>(k)],
                targets.view(0, target_shape, target_dtype), spec.pass.microbatch, 1.0,
                Mode::kTraining);
  }
  result.forward = trace.take();
  passes.backward_input(microbatches, sink);
  result.backward_input = trace.take();
  passes.backward_weight(microbatches, sink);
  result.backward_weight = trace.take();
  return result;
}

std::vector<double> layer_costs(const Model& model) {
  // On current cores and GPUs, moving an element takes about as long as 16 floating-point
  // operations of a matrix product; traced elements are float32.
  constexpr double kFlopsPerByte = 4.0;
  std::vector<double> costs;
  for_traces(model, [&](std::int64_t /*layer*/, const LayerTrace& trace, double samples) {
    costs.push_back(0.0);
    for (const auto* events : {&trace.forward, &trace.backward_input, &trace.backward_weight}) {
      for (const comm::TraceEvent& event : *events) {
        const ops::OperationWork& work = event.work;
        costs.back() += (work.flops > 0.0 ? work.flops : kFlopsPerByte * work.bytes) / samples;
      }
    }
  });
  return costs;
}

double training_flops(const Model& model) {
  double all = 0.0;
  for_traces(model, [&](std::int64_t layer, const LayerTrace& trace, double samples) {
    double scores = 0.0;
    bool multiplies = false;
    for (const comm::TraceEvent& event : trace.forward) {
      const bool attends = event.work.name.starts_with("attention");
      scores += attends ? event.work.flops / samples : 0.0;
      multiplies = multiplies || (!attends && event.work.flops > 0.0);
    }
    // Each row meets each element of a matrix once, however shards divide the product.
    std::int64_t forward = 0;
    std::int64_t trained = 0;
    for (const ParameterSpec& spec : model.parameters()) {
      if (multiplies && spec.layer == layer && is_matrix(spec)) {
        forward += spec.shape.count();
        trained += has_gradient(spec) ? spec.shape.count() : 0;
      }
    }
    const std::int64_t rows = rows_at(model.layer(layer).output(), 1);
    const bool is_behind = layer >= model.first_changing_layer();
    all += static_cast<double>(2 * rows * (is_behind ? 2 * forward + trained : forward)) +
           (is_behind ? 3.0 : 1.0) * scores;
  });
  return all;
}

}  // namespace strata::nn
