#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/comm/shard_group.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/nn/slots.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::nn {

class Loss;

/// Whether a pass is part of training; dropout acts only then.
enum class Mode { kTraining, kEvaluation };

/// What the elements of a sample are.
enum class InputKind { kNumbers, kTokenIds };

/// How the tensors between layers lie on the ranks of a tensor group.
enum class Placement {
  kReplicated,  ///< every rank holds everything
  kFeatures,    ///< the last dimension is split: a contiguous rows x width / S block for every own
                ///< shard
  kTokens       ///< the rows are split (sequence parallel)
};

constexpr auto enum_names(Placement) {
  return names_in_order("replicated", "features", "tokens");
}

/// Which gradients a call of backward computes. kWeights follows kInput of the same microbatch.
enum class Wants { kInput, kWeights, kBoth };

[[nodiscard]] constexpr bool wants_input(Wants wants) {
  return wants != Wants::kWeights;
}
[[nodiscard]] constexpr bool wants_weights(Wants wants) {
  return wants != Wants::kInput;
}

/// Which activations forward discards and backward recomputes.
enum class Recompute { kNone, kSelective, kFull };

constexpr auto enum_names(Recompute) {
  return names_in_order("none", "selective", "full");
}

/// What determines the sizes of a layer's tensors, besides the layer itself.
struct PassShape {
  std::int64_t microbatch = 1;
  /// Of activations and their gradients.
  DType dtype = DType::kFloat32;
  Shards shards;
  Recompute recompute = Recompute::kNone;
  /// Lanes whose microbatches pass through each layer concurrently: the rank's lanes where a layer
  /// joins them, else 1.
  std::int64_t concurrent_lanes = 1;
  /// Rows of logits, and of their gradients, have a multiple of this many elements
  /// (`ops::kPaddedRow` on GPUs). What lies past a shard's ids counts nowhere.
  std::int64_t logit_multiple = 1;
  /// Pieces of a microbatch's rows: the products beside a sum or gather over shards are computed
  /// piece by piece, so that the messages of one piece overlap the products of the next. 1 with one
  /// shard.
  std::int64_t row_pieces = 1;
  /// kBfloat16: each shard's contribution to a sum over shards is rounded before it is added.
  DType shard_sums = DType::kFloat32;
  /// Pieces of the rows of a microbatch in which a head computes logits and their gradients, so
  /// that those of one piece exist at a time. They divide the rows.
  std::int64_t loss_pieces = 1;
};

/// A tensor that a layer asks its stage for.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kFloat32;
};

/// Where backward gets a saved tensor from.
enum class Keep {
  kKept,       ///< its memory lasts from forward to backward
  kRecomputed  ///< recompute() writes it again before backward
};

/// A tensor that forward writes for backward.
struct SavedSpec {
  TensorSpec tensor;
  Keep keep = Keep::kKept;
};

/// The sequences of a pass during generation. Its rows are the new tokens of each, one sequence
/// after the other, and then perhaps rows that nobody reads.
struct Decoding {
  /// A sequence with its key-value cache of one attention layer.
  struct Sequence {
    /// Tokens in the cache; the new ones follow them.
    std::int64_t past = 0;
    /// As cache() lists them.
    std::span<const TensorView> keys;
    std::span<const TensorView> values;
  };
  /// New tokens of each sequence.
  std::int64_t tokens = 1;
  std::span<const Sequence> sequences;

  [[nodiscard]] grid::Range rows(std::size_t sequence) const {
    const auto first = static_cast<std::int64_t>(sequence) * tokens;
    return {first, first + tokens};
  }
};

/// What the rows of a microbatch of tokens are, besides ids. Views are empty where no layer of the
/// model reads them, and in generation; then each sample is one document.
struct RowPlaces {
  /// The index within the sample of the first token of each token's document. Shape: microbatch x
  /// tokens, uint32.
  ConstTensorView document_starts = {};
  /// The position of each token within its document. Shape: microbatch x tokens, int64.
  ConstTensorView positions = {};
};

/// One parameter's memory on a rank: one tensor, or one for each own shard of a split parameter.
using ParameterViews = std::vector<TensorView>;

/// What a layer computes with in one microbatch.
struct LayerPass {
  ops::Context& context;
  comm::ProgressEngine& engine;
  comm::ShardGroup& shards;
  const PassShape& shape;
  Mode mode = Mode::kTraining;
  /// The model's loss; null on stages without it.
  Loss* loss = nullptr;
  /// The microbatch's number in the step.
  std::int64_t number = 0;
  /// The lanes of all replicas, for layers that join them; else null.
  comm::PartitionedGroup* lanes = nullptr;
  /// Global index of the sample in row 0; further samples follow it.
  std::int64_t first_sample = 0;
  /// Shapes: local_shape() of the layer's input and output.
  ConstTensorView input;
  RowPlaces places = {};
  /// The second input of a layer that has two, of the same shape; else empty.
  ConstTensorView added = {};
  TensorView output;
  /// As listed by saved(), gradients() and workspace().
  TensorSlots saved;
  TensorSlots gradients;
  TensorSlots workspace;
  /// The layer's parameters, in the order of parameters().
  std::span<const ParameterViews> weights;
  /// What backward reads: the gradient of the output. It may change it in place to what it reads
  /// later for kWeights. A layer with two inputs leaves the gradient of the second there.
  TensorView output_gradient = {};
  /// What backward writes: the gradients of the input, empty where nobody reads it, and of
  /// `weights`, that of a frozen matrix empty (has_gradient()).
  TensorView input_gradient = {};
  std::vector<ParameterViews> weight_gradients = {};
  ops::Accumulate accumulate = ops::Accumulate::kOverwrite;
  /// Null except during generation, where forward saves nothing.
  const Decoding* decoding = nullptr;

  /// Sequences that are decoded together, by one token each, do not see each other in their bits.
  [[nodiscard]] ops::RowBits row_bits() const {
    return decoding != nullptr && decoding->tokens == 1 ? ops::RowBits::kOfRow
                                                        : ops::RowBits::kOfShape;
  }
};

/// The shape of a layer's input or output for one sample, and how it lies on the tensor ranks.
/// Three dimensions are an image, which lies channels last: height x width x channels.
struct Port {
  Shape shape;
  Placement placement = Placement::kReplicated;
  /// Features that stay together where they are split.
  std::int64_t unit = 1;
  /// Whether a row of a shard is padded to PassShape::logit_multiple; only of the model's last
  /// layer, and with kFeatures.
  bool is_logits = false;

  friend bool operator==(const Port&, const Port&) = default;
};

[[nodiscard]] inline bool is_image(const Port& port) {
  return port.shape.rank() == 3;
}
/// The shape as users write it: images as channels x height x width.
[[nodiscard]] std::string shape_text(const Port& port);

/// Rows of a microbatch at a port: all dimensions but the last.
[[nodiscard]] std::int64_t rows_at(const Port& port, std::int64_t microbatch);
/// The rows of a microbatch that a rank with these shards holds.
[[nodiscard]] std::int64_t local_rows(const Port& port, const PassShape& pass);
/// The shape of a rank's memory for one microbatch at a port. For kFeatures it is flat and holds
/// the blocks of the own shards one after the other.
[[nodiscard]] Shape local_shape(const Port& port, const PassShape& pass);

/// The block of one own shard in a tensor that is split by feature. Shapes: rows x the shard's
/// share of `width`.
template <typename View>
[[nodiscard]] View shard_block(const View& tensor, std::int64_t rows, std::int64_t width,
                               std::int64_t shards, const grid::Range& own, std::int64_t shard,
                               std::int64_t unit = 1) {
  const std::int64_t first = shard_part(width, unit, shards, own.begin).begin;
  const grid::Range columns = shard_part(width, unit, shards, shard);
  return tensor.flat_slice(rows * (columns.begin - first), rows * columns.count())
      .reshaped(Shape{rows, columns.count()});
}

/// How the outputs of a model that are split by feature, as a head's logits, lie in a rank's
/// memory.
struct LogitBlocks {
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  std::int64_t shards = 1;
  grid::Range own{0, 1};
  std::int64_t multiple = 1;

  /// The ids of a shard.
  [[nodiscard]] grid::Range ids(std::int64_t shard) const {
    return shard_part(vocabulary, 1, shards, shard);
  }
  /// Elements of a shard's row.
  [[nodiscard]] std::int64_t columns(std::int64_t shard) const {
    return ops::padded_row(ids(shard).count(), multiple);
  }
  /// The block of one own shard. Shape: rows x columns.
  template <typename View>
  [[nodiscard]] View block(const View& tensor, std::int64_t shard) const {
    std::int64_t before = 0;
    for (std::int64_t s = own.begin; s < shard; ++s) {
      before += columns(s);
    }
    return tensor.flat_slice(rows * before, rows * columns(shard))
        .reshaped(Shape{rows, columns(shard)});
  }
};

/// Of a model's output; logits that are not split are one block.
[[nodiscard]] LogitBlocks logit_blocks(const Port& port, const PassShape& pass);

/// What a stage knows of a layer besides its tensors.
struct LayerTraits {
  /// Whether the output is a reshaped view of the input; such a layer has no passes.
  bool is_view = false;
  /// Whether backward reads the output; if not, the output's gradient may overwrite it.
  bool backward_reads_output = true;
  /// Whether a pass depends on the microbatch's index in the step, besides the tensors.
  bool counts_microbatches = false;
  /// Which of RowPlaces a pass reads.
  bool reads_document_starts = false;
  bool reads_positions = false;
};

/// The training passes of a layer that computes one microbatch of every lane at once. Passes are
/// those of the own lanes, in order.
class JoinedPasses {
 public:
  virtual ~JoinedPasses() = default;
  virtual void forward_lanes(std::span<const LayerPass> passes) const = 0;
  /// Layer::backward() with Wants::kInput.
  virtual void backward_lanes(std::span<const LayerPass> passes) const = 0;
};

/// One layer of a model: its shapes, parameters and passes. A layer holds neither tensors nor
/// state.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const Port& input() const { return input_; }
  [[nodiscard]] const Port& output() const { return output_; }
  /// Without the microbatch dimension.
  [[nodiscard]] const Shape& input_shape() const { return input_.shape; }
  [[nodiscard]] const Shape& output_shape() const { return output_.shape; }
  /// The layer in tables, as in "dense 128 relu".
  [[nodiscard]] virtual std::string text() const = 0;
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters() const { return {}; }
  /// Tensors that forward writes for backward.
  [[nodiscard]] virtual std::vector<SavedSpec> saved(const PassShape& /*pass*/) const { return {}; }
  /// Tensors that backward writes with kInput and reads with kWeights.
  [[nodiscard]] virtual std::vector<TensorSpec> gradients(const PassShape& /*pass*/) const {
    return {};
  }
  /// Scratch memory of one call.
  [[nodiscard]] virtual std::vector<TensorSpec> workspace(const PassShape& /*pass*/) const {
    return {};
  }
  [[nodiscard]] bool is_view() const { return traits_.is_view; }
  [[nodiscard]] bool backward_reads_output() const { return traits_.backward_reads_output; }
  [[nodiscard]] bool counts_microbatches() const { return traits_.counts_microbatches; }
  [[nodiscard]] bool reads_document_starts() const { return traits_.reads_document_starts; }
  [[nodiscard]] bool reads_positions() const { return traits_.reads_positions; }
  /// Throws: Error(kUsage) where the layer cannot train on microbatches of this size.
  virtual void check(const PassShape& /*pass*/) const {}
  /// Where the layer computes one microbatch of every lane at once, else null. All stages then run
  /// their own lanes concurrently.
  [[nodiscard]] virtual const JoinedPasses* joined() const { return nullptr; }
  /// The key cache of `capacity` tokens, one tensor for each own shard; the value cache is alike.
  /// Empty for layers that process rows independently.
  [[nodiscard]] virtual std::vector<TensorSpec> cache(const PassShape& /*pass*/,
                                                      std::int64_t /*capacity*/) const {
    return {};
  }

  virtual void forward(const LayerPass& pass) const;
  /// Recomputes the tensors that saved() lists as kRecomputed.
  virtual void recompute(const LayerPass& pass) const;
  /// Computes gradients of the pass. Only layers with parameters are asked for more than kInput.
  /// With kBoth, messages of the input's gradient may travel while those of weights are computed.
  virtual void backward(const LayerPass& pass, Wants wants) const;

 protected:
  Layer(std::string name, const Port& input, const Port& output, const LayerTraits& traits = {})
      : name_(std::move(name)), input_(input), output_(output), traits_(traits) {}

 private:
  std::string name_;
  Port input_;
  Port output_;
  LayerTraits traits_;
};

}  // namespace strata::nn
