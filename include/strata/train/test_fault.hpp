#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strata/core/enum_names.hpp"

namespace strata::train {

/// Where a test damages a rank's memory.
enum class FaultPlace {
  kGradient,  ///< an own element of the reduced gradient becomes NaN
  kWeights,   ///< a bit of the rank's copy of the weights flips before replicas are compared
  kState,     ///< a bit of the own optimizer state flips after that
  kProduct    ///< a step that is repeated computes with one wrong weight, which is then put right
};

constexpr auto enum_names(FaultPlace) {
  return names_in_order("gradient", "weights", "state", "product");
}

/// A fault that a test injects into one rank: STRATA_TEST_FAULT=PLACE:STEP:RANK, which happens
/// once, or product:STEP:RANK:RUNS with the runs of a repeated step that it hits, as in 01.
class TestFault {
 public:
  /// Nothing without the variable, on another rank, and for a text of another form.
  [[nodiscard]] static std::optional<TestFault> of_rank(std::int64_t rank);

  /// Whether the fault happens now.
  [[nodiscard]] bool happens(FaultPlace place, std::int64_t step);
  /// Whether kProduct hits run `run` of the step, counted from 0.
  [[nodiscard]] bool hits_run(std::int64_t step, std::size_t run) const;

 private:
  FaultPlace place_ = FaultPlace::kGradient;
  std::int64_t step_ = 0;
  std::string runs_;
};

/// Seconds for which a rank sleeps in each step, for tests and benchmarks with uneven nodes:
/// STRATA_TEST_DELAY=RANK:SECONDS; 0 without it.
[[nodiscard]] double test_delay_seconds(std::int64_t rank);

}  // namespace strata::train
