#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strata/pipeline/simulator.hpp"

namespace strata::pipeline {

/// Times as a user writes them.
struct TimesText {
  std::string name;  ///< of the option or the setting
  std::string text;
};

/// Reads numbers from 0 to 10^9 with commas between them: as many as `counts` allows.
/// Throws: Error(kUsage) that names the option.
[[nodiscard]] std::vector<double> parse_times(const TimesText& times,
                                              std::span<const std::int64_t> counts);

/// Reads the times of each stage and chunk: one for all, or one for each stage with commas between
/// them; instead of one, a stage has one for each chunk with slashes between them, as in 1/2.
/// Units: as in the texts. Throws: Error(kUsage) that names the option.
[[nodiscard]] std::vector<std::vector<ChunkTimes>> parse_chunk_times(
    const TimesText& forward, const TimesText& backward_input, const TimesText& backward_weight,
    std::int64_t stages, std::int64_t chunks);

}  // namespace strata::pipeline
