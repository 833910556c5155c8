#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/nn/name_patterns.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/rank_state.hpp"

namespace strata::train {

/// Tensors of a step.
enum class DumpKind {
  kActivation,  ///< the output of each layer for all samples of the step, in order
  kGradient,    ///< reduced over all lanes and not scaled, of the mean loss
  kState,       ///< of the optimizer, that the step begins with
  kWeight       ///< masters, that the step begins with
};

constexpr auto enum_names(DumpKind) {
  return names_in_order("activations", "gradients", "state", "weights");
}

/// The kinds of tensors that a dump holds, each of the names that match. A name is that of a layer
/// or a parameter.
using DumpedKinds = std::map<DumpKind, nn::NamePatterns>;

/// From "KIND[:PATTERN]" with commas between them, as in "gradients,activations:blocks.0.*".
/// Throws: Error(kUsage).
[[nodiscard]] DumpedKinds dumped_kinds(std::string_view text);

/// The tensors of one training step, whole and by their names in receipts, on any grid.
/// Activations are "activations/LAYER", samples first, images channels last. A head that computes
/// its logits in pieces (numerics.loss_pieces) has none.
class StepDump {
 public:
  /// Throws: Error(kUsage) where a kind has no tensor that matches.
  StepDump(const plan::Plan& plan, DumpedKinds kinds, std::int64_t step);

  /// The file in `directory`, as step-00000012.safetensors.
  [[nodiscard]] static std::filesystem::path file_in(const std::filesystem::path& directory,
                                                     std::int64_t step);

  [[nodiscard]] std::int64_t step() const { return step_; }
  /// Begins to keep the activations of the samples of `part` (plan::part_prefix), which forget what
  /// was kept of it before.
  void begin(const std::string& part, RankState& state);
  /// Keeps the rest of the part. Pre: its gradients are reduced. Waits for the work that writes
  /// them.
  void end(const std::string& part, RankState& state, device::Stream& stream);
  /// Whether the step was computed.
  [[nodiscard]] bool is_complete() const { return is_complete_; }

  /// Writes the file. Communication: collective over the world. Pre: is_complete(); all ranks reach
  /// the directory, which is made where there is none. Throws: AgreedError(kUsage) where it cannot
  /// be written.
  void write(comm::Communicator& world, const std::filesystem::path& directory) const;

 private:
  /// Slices of this rank, and the memory that they lie in.
  struct Kept {
    std::vector<io::TensorSlice> slices;
    std::vector<std::vector<std::byte>> memory;
  };

  [[nodiscard]] bool has(DumpKind kind, std::string_view tensor) const;
  void keep_output(Kept& kept, const nn::Layer& layer, const nn::LayerPass& pass) const;

  const plan::Plan& plan_;
  DumpedKinds kinds_;
  std::int64_t step_;
  std::map<std::string, Kept> parts_;
  bool is_complete_ = false;
};

}  // namespace strata::train
