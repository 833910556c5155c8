#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "operands.hpp"

namespace strata::bench {

/// What is timed.
struct Operation {
  std::string name;
  /// Of its matrix products; 0 for what is bound by memory alone.
  double flops = 0.0;
  /// Makes operands and gives a call that uses them.
  std::function<std::function<void()>(Operands&)> prepare;
  /// What does it.
  ops::LibraryKernels kernels = ops::LibraryKernels::kLibrary;
};

/// How long an operation is measured.
struct Effort {
  /// A sample repeats the call until it takes as long.
  double least_seconds = 0.02;
  /// Repetitions take turns on sets of operands that are as large together: no cache holds them.
  std::int64_t cold_bytes = std::int64_t{256} << 20;
};

/// An operation's time.
struct Timing {
  std::string name;
  double flops = 0.0;
  double bytes = 0.0;
  /// Of one call, in each of the samples, in order of size.
  std::vector<double> samples_seconds;

  [[nodiscard]] double seconds() const { return samples_seconds[samples_seconds.size() / 2]; }
};

/// Warms up, then takes five samples, each of repetitions between two waits for the GPU. Where
/// calls are so short that the host is slower to give them, this is the time that giving them
/// takes.
[[nodiscard]] Timing measure(Machine& machine, const Operation& operation, const Effort& effort);

/// The rates that nothing can exceed, as measured.
struct Ceilings {
  double flops_per_second = 0.0;
  double bytes_per_second = 0.0;

  /// The least time of so much work. Source: Williams, Waterman, Patterson, "Roofline: an
  /// insightful visual performance model for multicore architectures", CACM 52 (4), 2009.
  [[nodiscard]] double least_seconds(const Timing& work) const;
  /// Whether the products of it take longer than the bytes.
  [[nodiscard]] bool is_bound_by_products(const Timing& work) const;
  /// How many times as long as the least time it took.
  [[nodiscard]] double ratio(const Timing& work) const;
};

/// From a bfloat16 product of square matrices of `extent`, and a copy of `bytes` within the GPU's
/// memory, which reads and writes as many.
[[nodiscard]] Ceilings measure_ceilings(Machine& machine, std::int64_t extent, std::int64_t bytes,
                                        const Effort& effort);

}  // namespace strata::bench
