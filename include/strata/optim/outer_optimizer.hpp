#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/device/buffer.hpp"
#include "strata/nn/layer.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/nn/stage.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/packing.hpp"
#include "strata/optim/buckets.hpp"

namespace strata::optim {

struct OuterOptions {
  double rate = 0.7;
  double momentum = 0.9;  ///< Nesterov's; 0: none
  ops::Packing exchange = ops::Packing::kFull;
};

/// The islands of a run and the consecutive ones that a rank holds.
struct IslandShare {
  std::int64_t count = 1;
  grid::Range own{0, 1};
};

/// What is averaged on one rank. Refers to the layout, the buckets and the fragments.
struct OuterShare {
  OuterOptions options;
  IslandShare islands;
  Ownership owned;
  std::span<const grid::Range> fragments;  ///< the layers that are averaged together
  DType dtype = DType::kFloat32;
};

/// Averages the weights of islands now and then: g = outer weights - mean of the islands' weights;
/// then SGD with Nesterov's momentum on the outer weights with g as the gradient. Each rank has the
/// outer weights and the momentum of what it owns on its island (ZeRO stage 1), in host memory; the
/// ranks with the same place in different islands have the same.
///
/// Islands send their differences, packed, to the ranks that add a slice of them, in the order of
/// one sum tree over the islands (design law 1); these send the sum on, packed. What packing rounds
/// off is added to the next difference or sum (error feedback). Running averages of layers are
/// averaged plainly.
/// Source: Douillard et al., "DiLoCo", arXiv 2311.08105, and "Streaming DiLoCo", arXiv 2501.18512.
class OuterOptimizer {
 public:
  /// Consecutive elements of a placed parameter that this rank owns.
  struct Piece {
    OwnedPiece owned;
    std::int64_t offset = 0;  ///< of its first element in this object's tensors
  };

  /// `group`: ranks with the same place in different islands, which hold equally many. `context`:
  /// of host memory, or planned.
  OuterOptimizer(comm::Communicator& group, const OuterShare& share,
                 ops::Context context = ops::Context(1));

  /// Its allocations, in host memory, in a group of `ranks`.
  [[nodiscard]] static std::vector<nn::MemoryItem> memory(std::int64_t ranks,
                                                          const OuterShare& share);

  /// Of a fragment, or of all, in the order of the tensors below.
  [[nodiscard]] std::span<const Piece> pieces(std::size_t fragment) const;
  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  /// The parts of pieces that this rank sums: of the ranks of the group, one has each element.
  [[nodiscard]] std::vector<Piece> summed_pieces() const;

  [[nodiscard]] TensorView weights(const Piece& piece) const { return part(weights_, piece); }
  [[nodiscard]] TensorView momentum(const Piece& piece) const { return part(momentum_, piece); }
  /// What packing has rounded off the differences of an own island, and off the sums; only where
  /// packing rounds.
  [[nodiscard]] TensorView difference_error(std::int64_t own_island, const Piece& piece) const {
    return part(errors_[static_cast<std::size_t>(own_island)], piece);
  }
  [[nodiscard]] TensorView sum_error(const Piece& piece) const {
    return part(errors_.back(), piece);
  }
  [[nodiscard]] bool has_momentum() const { return options_.momentum != 0.0; }
  [[nodiscard]] bool rounds() const { return options_.exchange != ops::Packing::kFull; }

  /// Copies an own island's weights of a piece to host memory.
  using ReadWeights = std::function<void(const Piece& piece, const TensorView& into)>;
  /// Packs the difference of an own island's fragment. Pre: no exchange is under way.
  void add(std::size_t fragment, std::int64_t own_island, const ReadWeights& read);
  /// Starts the exchange of a fragment by the islands `present`, of which all own ones were added.
  /// Communication: over the group.
  void start(std::size_t fragment, std::vector<std::int64_t> present);
  /// Makes progress.
  void advance();
  [[nodiscard]] bool is_under_way() const { return phase_ != Phase::kIdle; }
  /// Waits for the sum and updates the outer weights and momentum of the fragment.
  void finish();

  /// The difference that was added last, before it was packed.
  [[nodiscard]] TensorView difference(const Piece& piece) const { return part(scratch_, piece); }
  /// Copies the difference of the island present[at] to host memory.
  using ReadDifference =
      std::function<void(std::size_t at, const Piece& piece, const TensorView& into)>;
  /// Updates weights and momentum as the exchange does, from differences that are read. Pre: one
  /// fragment, one rank in the group.
  void average(std::span<const std::int64_t> present, const ReadDifference& read);

  /// into = mix own + (1 - mix) outer weights, of the elements of a piece from `first` on; the
  /// outer weights where it is a running average. `into` may be `own`.
  void merge(const Piece& piece, std::int64_t first, const ConstTensorView& own, double mix,
             const TensorView& into);

  /// Seconds since the last reset that the host waited.
  [[nodiscard]] double exposed_seconds() const { return exposed_seconds_; }
  void reset_clock() { exposed_seconds_ = 0.0; }

 private:
  enum class Phase { kIdle, kDifferences, kSums };

  [[nodiscard]] TensorView part(const TensorView& tensor, const Piece& piece) const {
    return tensor.flat_slice(piece.offset, piece.owned.range.count());
  }
  /// The elements of a fragment that a rank of the group sums, relative to the fragment.
  [[nodiscard]] grid::Range slice(std::size_t fragment, std::int64_t rank) const;
  [[nodiscard]] std::int64_t packed(std::int64_t elements) const;
  /// Packs values, with the error of the last time, and keeps what is rounded off.
  void pack(const TensorView& values, const TensorView& error, std::byte* into);
  [[nodiscard]] std::byte* packed_difference(std::int64_t own_island, std::int64_t element) const;
  void sum();
  /// Adds the parts in the order of the sum tree, into the first.
  void fold(std::span<const TensorView> parts);
  void update(std::size_t fragment, const ConstTensorView& sum, std::int64_t islands);
  void wait(comm::Request& messages);

  comm::Communicator& group_;
  ops::Context context_;
  OuterOptions options_;
  IslandShare islands_;
  DType dtype_;
  std::vector<bool> averages_;  ///< of each parameter of the layout: a running average
  std::vector<Piece> pieces_;
  /// Of each fragment: its pieces and its elements.
  std::vector<grid::Range> piece_ranges_;
  std::vector<grid::Range> element_ranges_;
  std::int64_t largest_ = 0;        ///< elements of a fragment
  std::int64_t largest_slice_ = 0;  ///< of any rank
  device::Buffer memory_;
  TensorView weights_;
  TensorView momentum_;
  std::vector<TensorView> errors_;  ///< of each own island, then of sums
  TensorView scratch_;              ///< of a fragment
  TensorView rounded_;              ///< of a fragment
  TensorView parts_;                ///< a slice of each island
  TensorView sent_;                 ///< packed, of each own island
  TensorView received_;             ///< packed, a slice of each island
  TensorView sums_;                 ///< packed, of the fragment
  Phase phase_ = Phase::kIdle;
  std::size_t fragment_ = 0;
  std::vector<std::int64_t> present_;
  comm::Request messages_;
  double exposed_seconds_ = 0.0;
};

}  // namespace strata::optim
