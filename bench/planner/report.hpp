#pragma once

#include <string>
#include <vector>

#include "memory.hpp"
#include "run.hpp"

namespace strata::bench {

/// A run and what was predicted of it; 0: nothing.
struct Prediction {
  const Run* run = nullptr;
  double seconds = 0.0;

  [[nodiscard]] double error() const;
};

/// Prints scope, outliers, split, errors, choices and verdicts; last the bars.
void report(const std::vector<Prediction>& predictions, const Verdicts& fitted,
            const Verdicts& judged);

/// Writes one line for each run. Throws: Error where the file cannot be written.
void write_rows(const std::string& file, const std::vector<Prediction>& predictions);

}  // namespace strata::bench
