#include <algorithm>

#include "step.hpp"

namespace strata::bench {
namespace {

/// nanotron (models/base.py) walks embedding, layers, norm, head, cast and loss by cumulated cost.
/// The cost of the head often leaves the loss a stage of its own, which then receives the logits.
std::vector<StageBlocks> cumulated(const Run& run) {
  const auto h = static_cast<double>(run.hidden);
  const double layer = 4.0 * h * h + 3.0 * h * static_cast<double>(run.ffn);
  const double head = vocabulary_parameters(run);
  const auto stages = static_cast<std::size_t>(run.pipeline);
  const double all = layer * static_cast<double>(run.layers) + head;
  std::vector<StageBlocks> result(stages, {.used = false});
  std::size_t stage = 0;
  double cost = 0.0;
  const auto place = [&](double of, const auto& set) {
    cost += of;
    set(result[stage]);
    result[stage].used = true;
    if (cost >= all * (static_cast<double>(stage + 1) / static_cast<double>(stages)) &&
        stage + 1 < stages) {
      ++stage;
    }
  };
  place(0.0, [](StageBlocks& b) { b.embedding = true; });
  for (std::int64_t i = 0; i < run.layers; ++i) {
    place(layer, [](StageBlocks& b) { b.layers += 1.0; });
  }
  const auto nothing = [](StageBlocks&) {};
  place(0.0, nothing);
  place(head, [](StageBlocks& b) { b.head = true; });
  place(0.0, nothing);
  place(0.0, [](StageBlocks& b) { b.loss = true; });
  return result;
}

}  // namespace

double layer_parameters(const Run& run) {
  const auto h = static_cast<double>(run.hidden);
  const double kv = static_cast<double>(run.kv_heads) / static_cast<double>(run.heads);
  return h * h * (2.0 + 2.0 * kv) + (run.gated ? 3.0 : 2.0) * h * static_cast<double>(run.ffn);
}

double vocabulary_parameters(const Run& run) {
  return static_cast<double>(run.vocabulary) * static_cast<double>(run.hidden);
}

std::vector<StageBlocks> blocks_of(const Run& run, Placing placing) {
  if (placing == Placing::kCumulated) {
    return cumulated(run);
  }
  const auto stages = static_cast<double>(run.pipeline);
  const auto layers = static_cast<double>(run.layers);
  const bool ends_less = placing == Placing::kEndsLess && run.pipeline > 1;
  std::vector<StageBlocks> result(static_cast<std::size_t>(run.pipeline),
                                  {.layers = (layers + (ends_less ? 2.0 : 0.0)) / stages});
  if (ends_less) {
    result.front().layers -= 1.0;
    result.back().layers -= 1.0;
  }
  result.front().embedding = true;
  result.back().head = true;
  result.back().loss = true;
  return result;
}

double rank_parameters(const Run& run, const StageBlocks& blocks) {
  const double both = (blocks.embedding ? 1.0 : 0.0) + (blocks.head ? 1.0 : 0.0);
  return (blocks.layers * layer_parameters(run) +
          vocabulary_parameters(run) * (run.tied ? std::min(1.0, both) : both)) /
         static_cast<double>(run.tensor);
}

}  // namespace strata::bench
