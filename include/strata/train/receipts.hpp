#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/core/hash.hpp"
#include "strata/device/stream.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/text_file.hpp"
#include "strata/ops/context.hpp"
#include "strata/plan/plan.hpp"

/// Receipts of a run: one line for each step in receipts.jsonl, each with the SHA-256 of itself and
/// the line before. What they prove: docs/receipts.md.
namespace strata::train {

inline constexpr const char* kReceiptsFile = "receipts.jsonl";

/// The digest of a slice's elements: summed over the slices of a tensor it does not depend on how
/// the tensor is cut. Waits for the work on `stream`.
[[nodiscard]] Digest digest_of(const io::TensorSlice& slice, device::Stream& stream);
/// The same, where the slice is (ops::digest_of()).
[[nodiscard]] Digest digest_of(const io::TensorSlice& slice, ops::Context& context);
[[nodiscard]] Digest digest_of(std::span<const io::TensorSlice> slices, device::Stream& stream);

/// Digests of what a step begins with and of its reduced gradients, over all ranks.
struct StepDigests {
  Digest weights;
  Digest state;
  Digest gradients;

  StepDigests& operator+=(const StepDigests& other);
};

/// Digests as numbers that ranks may add: halves of 32 bits, exact in sums over 2^21 ranks; and
/// back.
[[nodiscard]] std::vector<double> halves_of(const StepDigests& digests);
[[nodiscard]] StepDigests digests_in(std::span<const double> halves);

/// Whether the receipt of `step` has digests.
[[nodiscard]] bool has_digests(const plan::Plan& plan, std::int64_t step);

/// What a receipt says of a step.
struct StepReceipt {
  std::int64_t step = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  bool skipped = false;
  std::uint64_t samples = 0;  ///< a hash of their places in the data set
  std::optional<StepDigests> digests;
};

/// A hash of the places in the data set of a step's samples, in order.
[[nodiscard]] std::uint64_t samples_hash(const plan::Plan& plan, const io::Dataset& data,
                                         std::int64_t step);

/// What a receipt says of a checkpoint: the digest of its tensors, and the SHA-256 of the names and
/// SHA-256s of its part files.
struct SaveReceipt {
  std::int64_t step = 0;
  Digest tensors;
  std::string files;
};

/// Whether a setting determines a run's numbers; those of the virtual grid stand apart.
[[nodiscard]] bool determines_numbers(std::string_view key);

/// SHA-256 of the settings that determine a run's numbers, and of the checksum of its training
/// data; the same on every grid, and in a run that is extended where the schedule is.
[[nodiscard]] std::string identity_hash(const plan::Plan& plan);

/// What a run is, for the line of a start; equal on all grids but for `environment`.
/// `environment`: build, instruction set, libraries, grid.
[[nodiscard]] nlohmann::ordered_json start_facts(const plan::Plan& plan,
                                                 const nlohmann::ordered_json& environment);

/// The file of a run that goes on, or of a new one, on rank 0.
class ReceiptsWriter {
 public:
  /// Opens the file to append after `step`; drops the lines of later steps. `tensors`: of the state
  /// that the run begins with, from the checkpoint in the directory `checkpoint`, whose line it
  /// adds where a kill left none; empty: none. Throws: Error(kCheckpoint) where the kept lines are
  /// no whole chain, or have another digest for the checkpoint; Error(kUsage) where the file cannot
  /// be written.
  ReceiptsWriter(const std::filesystem::path& path, std::int64_t step, const Digest& tensors,
                 const nlohmann::ordered_json& start, const std::filesystem::path& checkpoint,
                 io::Syncing syncing = io::Syncing::kOn);

  void write(const StepReceipt& receipt);
  void write(const SaveReceipt& receipt);
  /// Calls fsync, which a run does before each checkpoint; false where that fails.
  [[nodiscard]] bool sync() { return lines_->sync(); }
  /// Whether writing a line has failed, as on a full disk; the run continues.
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  void line(const nlohmann::ordered_json& object);

  std::optional<io::AppendedFile> lines_;
  std::string last_;  ///< SHA-256 of the last line
  bool failed_ = false;
};

/// A receipts file that was read and found to be a whole chain.
class Receipts {
 public:
  /// Throws: Error(kCheckpoint) naming the first line that is missing, changed or not in order.
  [[nodiscard]] static Receipts read(const std::filesystem::path& path);

  /// The steps after which the run started or went on, in order.
  [[nodiscard]] std::vector<std::int64_t> starts() const;
  [[nodiscard]] bool has_step(std::int64_t step) const { return steps_.contains(step); }
  /// Whether a checkpoint was written while nothing wrote receipts: before the first start, or
  /// after a failure to write them, which lasts until the next start.
  [[nodiscard]] bool lack_checkpoint(std::int64_t step) const;
  /// The line of a start, a step; null where there is none.
  [[nodiscard]] nlohmann::json start(std::int64_t step) const { return line(starts_, step); }
  [[nodiscard]] nlohmann::json step(std::int64_t step) const { return line(steps_, step); }
  /// The newest line about the checkpoint of a step; null where there is none.
  [[nodiscard]] nlohmann::json save(std::int64_t step) const { return line(saves_, step); }
  /// The start before a step, which says what the run was there; else the first one.
  [[nodiscard]] nlohmann::json start_before(std::int64_t step) const;
  [[nodiscard]] std::int64_t last_step() const {
    return steps_.empty() ? 0 : steps_.rbegin()->first;
  }
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(steps_.size()); }
  /// SHA-256 of the last line, which stands for the whole file.
  [[nodiscard]] const std::string& head() const { return head_; }

 private:
  using Index = std::map<std::int64_t, std::size_t>;
  [[nodiscard]] nlohmann::json line(const Index& index, std::int64_t step) const;

  std::vector<std::string> lines_;  ///< parsed where they are asked for
  Index starts_;
  Index steps_;
  Index saves_;
  std::string head_;
};

/// SHA-256 of a file. Throws: Error(kCheckpoint) where it cannot be read.
[[nodiscard]] std::string file_sha256(const std::filesystem::path& path);
/// SaveReceipt::files of part files and their hashes, in the order of their names.
[[nodiscard]] std::string files_hash(std::vector<std::pair<std::string, std::string>> files);

/// SaveReceipt::files of a checkpoint. Throws: Error(kCheckpoint) where a file cannot be read.
[[nodiscard]] std::string checkpoint_files(const std::filesystem::path& directory);

/// Throws: Error(kCheckpoint) where a checkpoint is not the one that the receipts have.
void require_receipt(const Receipts& receipts, const io::CheckpointEntry& checkpoint);

/// The first field, in the order in which a step computes them, in which two receipts of a step
/// differ; empty: none. Digests that one of them lacks do not count.
[[nodiscard]] std::string differing_field(const nlohmann::json& left, const nlohmann::json& right);
/// As ", and not in one tensor alone", or " in" and the tensor; empty for fields without digests.
/// `tensors`: names of the tensors of a step's digests, gradients included.
[[nodiscard]] std::string differing_tensor(const std::string& field, const nlohmann::json& left,
                                           const nlohmann::json& right,
                                           const std::vector<std::string>& tensors);

/// Comparison::field where a step has no receipt, and all others are equal.
inline constexpr const char* kNoReceipt = "step";

/// What a comparison of receipts found.
struct Comparison {
  /// The first difference, as in "step 7: weights differ in weights/dense1.weight", else the first
  /// step without a receipt; empty: none.
  std::string difference;
  /// Steps and saves whose digests were compared.
  std::int64_t digests = 0;
  std::int64_t step = 0;  ///< of the difference
  std::string field;      ///< of the difference; "tensors" of a checkpoint or a start, kNoReceipt
  /// The last step before it that begins with a state of equal digests; 0: none.
  std::int64_t equal = 0;
};

/// Compares a run's receipts with those of its replay: the state that the replay began with, and
/// steps [first, last]. `tensors`: as of differing_tensor().
[[nodiscard]] Comparison compare_receipts(const Receipts& run, const Receipts& replay,
                                          std::int64_t first, std::int64_t last,
                                          const std::vector<std::string>& tensors);

}  // namespace strata::train
