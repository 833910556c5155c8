#pragma once

#include <string>
#include <vector>

#include "profile.hpp"
#include "run.hpp"

namespace strata::bench {

/// Peak memory of the rank that needs most, in bytes: parameters and their states, activations of
/// the microbatches under way, logits.
[[nodiscard]] double peak_memory(const Run& run, const Constants& constants,
                                 const MemoryModel& memory);

/// The tensor mode, which nanotron's table does not print: ranks of pipelines share rows; others
/// reduce, unless the memory that the run printed is too small for that.
[[nodiscard]] TensorMode tensor_mode(const Run& run, const Constants& constants,
                                     const MemoryModel& memory);

/// Of grids that failed and grids that ran.
struct Verdicts {
  int failures = 0;  ///< without those that are left out
  int missed = 0;    ///< of these, told to fit
  int runs = 0;
  int refused = 0;            ///< of these, told not to fit
  int few = 0;                ///< left out: fewer microbatches than nanotron's 1F1B accepts
  int empty = 0;              ///< left out: a stage without blocks
  int no_more = 0;            ///< left out: needed no more than a grid of the model that ran
  int no_profile = 0;         ///< left out: another system's
  double error_median = 0.0;  ///< of the runs' memory
  double error_p90 = 0.0;

  [[nodiscard]] double missed_share() const { return share(missed, failures); }
  [[nodiscard]] double refused_share() const { return share(refused, runs); }
  [[nodiscard]] double right_share() const {
    return 1.0 - share(missed + refused, failures + runs);
  }

 private:
  [[nodiscard]] static double share(int part, int all) {
    return all == 0 ? 0.0 : static_cast<double>(part) / all;
  }
};

/// Of one part of the split.
[[nodiscard]] Verdicts verdicts(const std::vector<Run>& runs, const std::vector<Run>& failures,
                                bool judged, const Constants& constants, const MemoryModel& memory);

}  // namespace strata::bench
