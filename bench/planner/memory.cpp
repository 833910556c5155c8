#include "memory.hpp"

#include <algorithm>
#include <cmath>

#include "statistics.hpp"
#include "step.hpp"

namespace strata::bench {
namespace {

/// What a parameter's states take, to a float32 weight's and two moments'.
double state_share(const Run& run) {
  return run.zero > 0 ? 1.0 / real(run.data) : 1.0;
}

/// Whether `run`, which worked, needed at least as much as `failed`.
bool needed_as_much(const Run& run, const Run& failed) {
  return run.model == failed.model && run.pipeline == failed.pipeline &&
         run.tensor == failed.tensor && failed.micro <= run.micro &&
         std::min(failed.microbatches, failed.pipeline) <=
             std::min(run.microbatches, run.pipeline) &&
         state_share(failed) <= state_share(run);
}

/// With the mode that is known before a run.
double planned_memory(Run run, const Constants& constants, const MemoryModel& memory) {
  run.mode = run.pipeline == 1 ? TensorMode::kAllReduce : TensorMode::kShareRows;
  return peak_memory(run, constants, memory);
}

}  // namespace

double peak_memory(const Run& run, const Constants& constants, const MemoryModel& memory) {
  const std::vector<StageBlocks> blocks =
      blocks_of(run, constants.profiles.at(run.profile).placing);
  const double tokens = real(run.micro * run.sequence);
  const double tensor = real(run.tensor);
  const double whole = run.mode == TensorMode::kAllReduce ? 1.0 : 1.0 / tensor;
  double peak = 0.0;
  for (std::size_t s = 0; s < blocks.size(); ++s) {
    const StageBlocks& of = blocks[s];
    const double under_way =
        real(std::min(run.microbatches, run.pipeline - static_cast<std::int64_t>(s)));
    const double activations =
        of.layers * tokens * under_way *
        (real(run.hidden) * (memory.hidden / tensor + memory.hidden_whole * whole) +
         real(run.ffn) * memory.ffn / tensor);
    const double logits =
        tokens * real(run.vocabulary) / tensor *
        ((of.head ? memory.logit_head * under_way : 0.0) + (of.loss ? memory.logit_loss : 0.0));
    peak = std::max(
        peak, rank_parameters(run, of) * (memory.parameter + memory.optimizer * state_share(run)) +
                  activations + logits + memory.rest);
  }
  return peak;
}

TensorMode tensor_mode(const Run& run, const Constants& constants, const MemoryModel& memory) {
  if (run.pipeline > 1) {
    return TensorMode::kShareRows;
  }
  const auto error = [&](TensorMode mode) {
    Run of = run;
    of.mode = mode;
    return std::log(peak_memory(of, constants, memory) / run.memory_bytes);
  };
  const double reduces = error(TensorMode::kAllReduce);
  const double shares = std::abs(error(TensorMode::kShareRows));
  return run.memory_bytes > 0.0 && reduces > 0.25 && shares < 0.2 && shares < reduces
             ? TensorMode::kShareRows
             : TensorMode::kAllReduce;
}

Verdicts verdicts(const std::vector<Run>& runs, const std::vector<Run>& failures, bool judged,
                  const Constants& constants, const MemoryModel& memory) {
  Verdicts result;
  std::vector<double> errors;
  for (const Run& run : runs) {
    if (run.judged == judged && run.profile == "nanotron" && run.outside.empty()) {
      const double planned = planned_memory(run, constants, memory);
      ++result.runs;
      result.refused += planned > memory.most ? 1 : 0;
      errors.push_back(std::abs(planned / run.memory_bytes - 1.0));
    }
  }
  result.error_median = quantile(errors, 0.5);
  result.error_p90 = quantile(errors, 0.9);
  for (const Run& run : failures) {
    if (run.judged != judged) {
      continue;
    }
    const auto blocks = blocks_of(run, constants.profiles.at(run.profile).placing);
    if (run.profile != "nanotron") {
      ++result.no_profile;
    } else if (run.microbatches < run.pipeline - 1) {
      ++result.few;
    } else if (!std::ranges::all_of(blocks, &StageBlocks::used)) {
      ++result.empty;
    } else if (std::ranges::any_of(runs, [&](const Run& ran) {
                 return ran.profile == "nanotron" && needed_as_much(ran, run);
               })) {
      ++result.no_more;
    } else {
      ++result.failures;
      result.missed += planned_memory(run, constants, memory) > memory.most ? 0 : 1;
    }
  }
  return result;
}

}  // namespace strata::bench
