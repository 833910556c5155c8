#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/pipeline/schedule.hpp"

#include "table.hpp"

namespace strata::bench {

/// How a tensor group shares a layer: all-reduces of whole rows, or gathers and reduce-scatters of
/// rows that its ranks share (sequence parallelism).
enum class TensorMode { kAllReduce, kShareRows };

/// Why a run is set aside, by rules that read data alone.
enum class Outlier {
  kNone,
  kTwin,      ///< the same grid, batch and note in the same table, and times 1.6x apart
  kReplicas,  ///< twice the replicas of another run, and less than a quarter of its speed
  kStall      ///< twice the time per microbatch of a run of larger or equal microbatches
};

/// One line of a table: what ran, and what was measured.
struct Run {
  std::string source;
  std::string model;
  std::string note;
  std::string key;  ///< what decides its part of the split
  std::string profile;
  std::string machine;
  std::string outside;  ///< why it is out of scope; empty: it is in scope
  std::string unknown;  ///< what keeps it from being predicted at all; else empty
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  std::int64_t vocabulary = 0;
  std::int64_t sequence = 0;
  std::int64_t gpus = 0;
  std::int64_t data = 0;
  std::int64_t tensor = 0;
  std::int64_t pipeline = 0;
  std::int64_t chunks = 1;  ///< of a stage
  std::int64_t micro = 0;
  std::int64_t global = 0;
  std::int64_t microbatches = 0;  ///< of a replica
  std::int64_t zero = 0;
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::k1f1b;
  TensorMode mode = TensorMode::kShareRows;
  bool gated = false;      ///< a feed-forward layer with three matrices
  bool tied = false;       ///< one matrix for tokens and logits
  bool recompute = false;  ///< of whole layers
  double seconds = 0.0;    ///< of a step; 0: not measured
  double tokens_per_second = 0.0;
  double memory_bytes = 0.0;  ///< printed; 0: not
  bool judged = false;        ///< kept out of the fit
  Outlier outlier = Outlier::kNone;
};

/// FNV-1a, 64 bits. Source: draft-eastlake-fnv.
[[nodiscard]] std::uint64_t fnv1a(const std::string& text);

/// The runs of measured-steps.csv, with their outliers marked.
[[nodiscard]] std::vector<Run> measured_runs(const Table& table);
/// The grids of out-of-memory.csv, with the same split.
[[nodiscard]] std::vector<Run> failed_runs(const Table& table);

[[nodiscard]] constexpr double real(std::int64_t n) {
  return static_cast<double>(n);
}

}  // namespace strata::bench
