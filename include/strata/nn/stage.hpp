#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/comm/shard_group.hpp"
#include "strata/device/buffer.hpp"
#include "strata/grid/grid.hpp"
#include "strata/nn/backward_order.hpp"
#include "strata/nn/gradient_sink.hpp"
#include "strata/nn/loss.hpp"
#include "strata/nn/model.hpp"
#include "strata/nn/weight_source.hpp"
#include "strata/ops/graph_cache.hpp"
#include "strata/ops/loss.hpp"

namespace strata::nn {

/// How many microbatches a stage has memory for. A microbatch uses slot execution_index % slots of
/// each kind.
struct StageSlots {
  std::int64_t activations = 1;  ///< between forward and backward-weight
  std::int64_t inputs =
      0;  ///< activation receive buffers; none on the first stage, which reads the loader's input
  std::int64_t gradients = 1;  ///< between the arrival of the output's gradient and backward-weight
  /// Between the loss and the end of a step, on the last stage; a microbatch uses slot number %
  /// slots.
  std::int64_t losses = 1;
};

/// One line of the memory plan.
struct MemoryItem {
  std::string name;
  std::int64_t bytes = 0;
};

[[nodiscard]] inline std::int64_t total_bytes(std::span<const MemoryItem> items) {
  return std::accumulate(items.begin(), items.end(), std::int64_t{0},
                         [](std::int64_t sum, const MemoryItem& item) { return sum + item.bytes; });
}

/// The weights of frozen matrices, which have no gradients.
struct FrozenWeights {
  const ParameterLayout* layout = nullptr;  ///< null: there are none
  TensorView weights;                       ///< its weight_elements
};

/// The layers of one stage, or of one of its chunks, and its memory and order of work.
struct StageSpec {
  grid::Range layers;
  PassShape pass;
  StageSlots slots;
  BackwardOrder order = BackwardOrder::kSplit;
};

/// One microbatch in a stage.
struct Microbatch {
  /// Its index among the rank's microbatches of a step, in sample order.
  std::int64_t number = 0;
  /// Its index among the rank's microbatches of a step, in the order in which they run.
  std::int64_t execution_index = 0;
  /// The loader's samples; empty except on the first stage.
  ConstTensorView input = {};
  /// Global index of the sample in row 0.
  std::int64_t first_sample = 0;
  /// Read by forward, which keeps them, and by loss.
  RowPlaces places = {};
  /// Of each sample, read by loss: what ops::preference_loss() compares with. Shape: microbatch,
  /// float64; else empty.
  ConstTensorView references = {};
};

/// The tensors of one stage, or of one of its chunks, in its arenas, and its passes over
/// microbatches. Of a chunk, read "chunk" for "stage".
class Stage {
 public:
  /// `weights` holds the weight_elements of the rank's `layout`, in pass.dtype. `lanes` may be null
  /// where no layer joins lanes or the stage only evaluates. Pre: model, shards and
  /// spec.pass.shards agree; `layout` and `frozen` hold the parameters of spec.layers; `lanes` has
  /// spec.pass.concurrent_lanes own lanes. `pass_buffers` are those of the rank's chunks and
  /// outlive the stage; null: it has its own.
  Stage(ops::Context& context, comm::ProgressEngine& engine, comm::ShardGroup& shards,
        const Model& model, const StageSpec& spec, const ParameterLayout& layout,
        const TensorView& weights, comm::PartitionedGroup* lanes = nullptr,
        const std::vector<device::Buffer>* pass_buffers = nullptr,
        const FrozenWeights& frozen = {});

  /// The bytes that the Stages of a rank's chunks allocate, and their pass_buffers(), without
  /// allocating them.
  [[nodiscard]] static std::vector<MemoryItem> memory(const Model& model,
                                                      std::span<const StageSpec> chunks);
  /// What a pass needs until its end, large enough for each of a rank's chunks.
  [[nodiscard]] static std::vector<device::Buffer> pass_buffers(const device::Device& device,
                                                                const Model& model,
                                                                std::span<const StageSpec> chunks);
  [[nodiscard]] const grid::Range& layers() const { return spec_.layers; }
  [[nodiscard]] bool is_first() const { return spec_.layers.begin == 0; }
  [[nodiscard]] bool is_last() const { return spec_.layers.end == model_.layer_count(); }
  [[nodiscard]] BackwardOrder order() const { return spec_.order; }
  [[nodiscard]] const StageSlots& slots() const { return spec_.slots; }
  [[nodiscard]] std::int64_t concurrent_lanes() const { return spec_.pass.concurrent_lanes; }
  [[nodiscard]] std::int64_t microbatch() const { return spec_.pass.microbatch; }
  [[nodiscard]] std::int64_t logit_multiple() const { return spec_.pass.logit_multiple; }

  /// The receive buffers of a microbatch's inputs, one for each tensor that crosses the stage's
  /// begin.
  [[nodiscard]] const std::vector<TensorView>& inputs_of(std::int64_t execution_index) const;
  /// The tensors that cross the stage's end. Pre: on the last stage, loss_pieces is 1.
  [[nodiscard]] std::vector<ConstTensorView> outputs_of(const Microbatch& microbatch) const;
  /// The buffers of the outputs' gradients, except for the model's input.
  [[nodiscard]] std::vector<TensorView> output_gradients_of(std::int64_t execution_index) const;
  /// The gradients of the inputs after backward_input, except for the model's input.
  [[nodiscard]] const std::vector<TensorView>& input_gradients_of(
      std::int64_t execution_index) const;

  /// Captures training passes as CUDA graphs and replays them from the third step on
  /// (ops::GraphCache). Returns: whether it does; a pass that contains messages is not captured.
  /// Pre: the context is a GPU's.
  bool record_passes();
  /// Cached CUDA graphs.
  [[nodiscard]] std::int64_t graphs() const { return graph_cache_.graphs(); }
  /// Graphs hold the lanes that the rank computes: for other lanes, runs all passes eagerly.
  void suspend_graphs() { graph_cache_.suspend(); }
  void resume_graphs() { graph_cache_.resume(); }

  /// Loss::set_units(). Does nothing where the stage is not the last one.
  void set_units(std::span<const double> units) {
    if (loss_) {
      loss_->set_units(units);
    }
  }

  /// What the first forward pass of a step waits for, layer by layer; null where all weights are
  /// there. It outlives the stage's passes.
  void set_weight_source(WeightSource* source) { weight_source_ = source; }

  /// Called with each layer and its pass after the layer's forward pass of training, on the host;
  /// not for views, nor for a head that computes its logits in pieces. Pre: passes are not
  /// recorded.
  using OutputObserver = std::function<void(std::int64_t layer, const LayerPass& pass)>;
  /// Empty: ends it.
  void observe_outputs(OutputObserver observer) { output_observer_ = std::move(observer); }

  void forward(std::span<const Microbatch> concurrent, Mode mode);
  /// Computes the loss of the first `valid` samples for losses(), and in training the output's
  /// gradient times gradient_scale. With several loss_pieces backward_input() does so in training,
  /// and reads `targets` then. Pre: is_last(). Communication: where the logits are split, one
  /// all-gather over the tensor group for each piece.
  void loss(const Microbatch& microbatch, const ConstTensorView& targets, std::int64_t valid,
            double gradient_scale, Mode mode);
  /// Loss::sums(), of each slot; empty except on the last stage. Synchronises with the context's
  /// stream on every stage. Pre: loss() ran for every slot.
  [[nodiscard]] std::vector<MicrobatchLoss> losses();
  /// Under kFused also computes the parameters' gradients into the sink, from the last layer to the
  /// first.
  void backward_input(std::span<const Microbatch> concurrent, GradientSink& sink);
  /// Under kSplit computes the parameters' gradients into the sink, from the last layer to the
  /// first.
  void backward_weight(std::span<const Microbatch> concurrent, GradientSink& sink);

  /// Copies a tensor, in the order of the context's stream.
  void copy(const ConstTensorView& from, const TensorView& to);
  /// Waits for all work on the context's stream.
  void synchronize() { context_.synchronize(); }

  /// The key-value cache of one layer.
  struct LayerCache {
    std::vector<TensorView> keys;
    std::vector<TensorView> values;
  };
  /// A sequence of decode(); caches[i] is that of the stage's layer i.
  struct CachedSequence {
    std::int64_t past = 0;  ///< tokens in the caches
    std::span<const LayerCache> caches;
  };
  /// The part of the receive buffers for so many new tokens, which decode() reads; none on the
  /// first stage.
  [[nodiscard]] std::vector<TensorView> decode_inputs(std::int64_t rows) const;
  /// Forward over the new tokens of sequences, each of which follow its cached ones. With one token
  /// of each sequence, the bits of a sequence depend on no other, nor on their number. Returns: the
  /// tensors that cross the stage's end, of all rows. Shapes: ids (int64) 1 x rows, `tokens` of
  /// each sequence and then perhaps ids that do not count; only the first stage reads their values.
  /// Pre: on a GPU rows is a multiple of ops::kRowTile where `tokens` is 1.
  [[nodiscard]] std::vector<ConstTensorView> decode(const ConstTensorView& ids, std::int64_t tokens,
                                                    std::span<const CachedSequence> sequences);

 private:
  struct ActivationSlot {
    std::vector<TensorView> outputs;
    std::vector<std::vector<TensorView>> saved;
    /// RowPlaces, at the same addresses in every step.
    TensorView document_starts;
    TensorView positions;
  };
  struct LayerGradients {
    TensorView output;
    TensorView input;
    /// Added to `input` once the layer has written it.
    TensorView input_sum;
    /// The copy of the output's gradient for a second input; empty where none is needed.
    TensorView added;
    TensorView added_sum;
    std::vector<TensorView> inner;
  };
  struct GradientSlot {
    std::vector<LayerGradients> layers;
    std::vector<TensorView> received;
    std::vector<TensorView> sent;
  };
  /// One slice of a parameter.
  struct ParameterSlice {
    std::int64_t parameter = 0;  ///< its canonical index
    TensorView weight;
    /// In the arena of gradients; nothing where it has none.
    std::optional<std::int64_t> gradient_offset;
  };
  /// The slices of one layer's parameters, in the order of Layer::parameters() and of shards.
  using LayerParameters = std::vector<ParameterSlice>;
  /// The arenas of a stage, in the order of memory().
  enum class Arena { kActivations, kRecomputed, kInputs, kGradients, kShared, kWorkspace, kLosses };
  class ArenaAllocator;
  /// By Arena.
  using Arenas = std::vector<ArenaAllocator>;
  /// Whether what lies in the arena is needed until the end of a pass only.
  [[nodiscard]] static bool is_of_a_pass(Arena arena) {
    return arena == Arena::kRecomputed || arena == Arena::kShared || arena == Arena::kWorkspace;
  }
  [[nodiscard]] static std::vector<MemoryItem> arenas_of(const Model& model, const StageSpec& spec);

  static ActivationSlot allocate_activations(const Model& model, const StageSpec& spec,
                                             Arenas& arenas);
  static std::vector<TensorView> allocate_inputs(const Model& model, const StageSpec& spec,
                                                 Arenas& arenas);
  static GradientSlot allocate_gradients(const Model& model, const StageSpec& spec, Arenas& arenas);
  static std::vector<std::vector<TensorView>> allocate_workspace(const Model& model,
                                                                 const StageSpec& spec,
                                                                 Arenas& arenas);
  /// The loss's workspace and what it keeps; nothing on a stage without the last layer.
  static std::pair<std::vector<TensorView>, std::vector<TensorView>> allocate_loss(
      const Model& model, const StageSpec& spec, Arenas& arenas);
  [[nodiscard]] static bool gradient_overwrites_output(const Model& model, const StageSpec& spec);
  /// Whether a layer is a head that computes its logits in pieces, within the pass that needs them.
  [[nodiscard]] static bool in_pieces(const Model& model, const StageSpec& spec,
                                      std::int64_t layer);
  /// Copies what layers read of RowPlaces to a microbatch's slot.
  void keep_places(const Microbatch& microbatch);
  [[nodiscard]] TensorView output_gradient(std::int64_t layer, std::int64_t execution_index) const;
  void add_parameters(const ParameterLayout& layout, const TensorView& weights, Placed which);
  /// view(slice) of one layer's parameters.
  template <typename View>
  [[nodiscard]] static std::vector<ParameterViews> views_of(const LayerParameters& parameters,
                                                            const View& view);
  /// Of one layer; empty where a parameter has none.
  [[nodiscard]] std::vector<ParameterViews> gradients_in(const TensorView& arena,
                                                         std::int64_t layer) const;

  [[nodiscard]] ConstTensorView tensor_of(std::int64_t tensor, const Microbatch& microbatch) const;
  [[nodiscard]] LayerPass pass_of(std::int64_t layer, const Microbatch& microbatch, Mode mode);
  [[nodiscard]] std::vector<LayerPass> passes_of(std::int64_t layer,
                                                 std::span<const Microbatch> concurrent, Mode mode);
  /// The begin of a microbatch's tensor: what one sequence of so many tokens takes.
  [[nodiscard]] TensorView part_of_tokens(const TensorView& whole, const Port& port,
                                          std::int64_t tokens) const;
  /// The layers whose passes can be captured as CUDA graphs, and the layers before them.
  [[nodiscard]] grid::Range recorded() const {
    // A loss in pieces reads targets, whose address changes with every microbatch.
    const bool loss = in_pieces(model_, spec_, spec_.layers.end - 1);
    const std::int64_t end = spec_.layers.end - (loss ? 1 : 0);
    return {std::clamp(first_recorded_, spec_.layers.begin, end), end};
  }
  [[nodiscard]] grid::Range before_recorded() const {
    return {spec_.layers.begin, recorded().begin};
  }
  /// Runs `work`, the part of a training pass over `layers`, or replays its CUDA graph. `key`: what
  /// the work depends on besides layers and microbatches.
  void run(ops::GraphCache::Key key, std::span<const Microbatch> concurrent,
           const grid::Range& layers, const std::function<void()>& work);
  void recompute(const LayerPass& pass, std::int64_t layer);
  void layer_forward(std::int64_t layer, std::span<const Microbatch> concurrent, Mode mode);
  /// The gradients of a layer that are wanted and that it has; those of its parameters go to
  /// `targets`, one for each of `concurrent`.
  void layer_backward(std::int64_t layer, std::span<const Microbatch> concurrent, Wants wants,
                      std::span<const GradientSink::Target> targets);
  /// Sums the gradients of inputs that several layers read.
  void add_gradients(const LayerPass& pass, const LayerGradients& gradients);
  /// Computes weight gradients, and under kFused input gradients too.
  void backward_to_sink(std::span<const Microbatch> concurrent, GradientSink& sink);
  [[nodiscard]] static bool acts_after(std::span<const Microbatch> concurrent, std::int64_t layer,
                                       const GradientSink& sink);
  /// Progresses messages, except during capture.
  void progress();
  [[nodiscard]] std::size_t local(std::int64_t layer) const {
    return static_cast<std::size_t>(layer - spec_.layers.begin);
  }
  [[nodiscard]] const ActivationSlot& slot_of(std::int64_t execution_index) const;
  [[nodiscard]] const GradientSlot& gradients_of(std::int64_t execution_index) const;

  ops::Context& context_;
  comm::ProgressEngine& engine_;
  comm::ShardGroup& shards_;
  comm::PartitionedGroup* lanes_;
  WeightSource* weight_source_ = nullptr;
  OutputObserver output_observer_;
  const Model& model_;
  StageSpec spec_;
  std::vector<LayerParameters> parameters_;
  std::vector<device::Buffer> memory_;
  std::vector<ActivationSlot> activation_slots_;
  std::vector<std::int64_t> input_tensors_;
  std::vector<std::int64_t> output_tensors_;
  std::vector<std::vector<TensorView>> input_slots_;
  std::vector<GradientSlot> gradient_slots_;
  std::vector<std::vector<TensorView>> workspace_;
  /// On the last stage.
  std::optional<Loss> loss_;
  std::vector<std::vector<ParameterViews>> weights_;
  ops::GraphCache graph_cache_;
  /// Earlier layers read memory whose address changes with every microbatch.
  std::int64_t first_recorded_ = 0;
  /// Whether a layer's operations depend on the microbatch's index in the step.
  bool counts_microbatches_ = false;
};

}  // namespace strata::nn
