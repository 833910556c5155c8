#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "strata/comm/shard_group.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/grid/grid.hpp"
#include "strata/nn/gradient_sink.hpp"
#include "strata/nn/model.hpp"
#include "strata/ops/graph_cache.hpp"
#include "strata/ops/loss.hpp"

namespace strata::nn {

/// How many microbatches a stage keeps memory for. The one that is `turn`th in time uses slot turn
/// % slots of each kind.
struct StageSlots {
  std::int64_t activations = 1;  ///< between forward and backward-weight
  std::int64_t inputs =
      0;  ///< received activations; none on the first stage, whose input is the loader's
  std::int64_t gradients = 1;  ///< between the arrival of the output's gradient and backward-weight
  /// Between the loss and the end of a step, on the last stage; here the microbatch with a number
  /// uses slot number % slots.
  std::int64_t losses = 1;
};

/// Whether weight gradients are a pass of their own.
enum class BackwardOrder {
  kSplit,  ///< backward_input of all layers, then backward_weight of all: the stage before waits
           ///< less
  kFused   ///< both layer by layer in backward_input: gradients inside the stage share their memory
};

/// One line of the memory plan.
struct MemoryItem {
  std::string name;
  std::int64_t bytes = 0;
};

/// What of a model one stage holds, and how.
struct StageSpec {
  grid::Range layers;
  PassShape pass;
  StageSlots slots;
  BackwardOrder order = BackwardOrder::kSplit;
};

/// A microbatch on its way through a stage.
struct Microbatch {
  /// Among those of the rank in a step, in order of samples.
  std::int64_t number = 0;
  /// Among those of the rank in a step, in order of time.
  std::int64_t execution_index = 0;
  /// The loader's; empty but on the first stage.
  ConstTensorView input = {};
  /// Global index of the sample in row 0.
  std::int64_t first_sample = 0;
};

/// The tensors of one stage in its arenas, and its passes over microbatches.
class Stage {
 public:
  /// `weights` holds the weight_elements of layout_of(model.parameters(), layers, shards), in
  /// pass.dtype. `lanes` may be null where no layer joins them, or none is trained. Pre: the model
  /// was made for as many shards; shards.own() is pass.shards.own; lanes own pass.together.
  Stage(ops::Context& context, comm::ProgressEngine& engine, comm::ShardGroup& shards,
        const Model& model, const StageSpec& spec, const TensorView& weights,
        comm::PartitionedGroup* lanes = nullptr);

  /// The bytes that a Stage allocates, without allocating them.
  [[nodiscard]] static std::vector<MemoryItem> memory(const Model& model, const StageSpec& spec);
  /// What a Stage sends over its tensor group in one microbatch of training.
  [[nodiscard]] static LayerTraffic traffic(const Model& model, const StageSpec& spec);
  /// What it sends over its data group while one microbatch of each lane is trained on.
  [[nodiscard]] static LayerTraffic lane_traffic(const Model& model, const StageSpec& spec,
                                                 std::int64_t replicas);

  [[nodiscard]] const grid::Range& layers() const { return spec_.layers; }
  [[nodiscard]] bool is_first() const { return spec_.layers.begin == 0; }
  [[nodiscard]] bool is_last() const { return spec_.layers.end == model_.layer_count(); }
  [[nodiscard]] const StageSlots& slots() const { return spec_.slots; }
  [[nodiscard]] std::int64_t concurrent_lanes() const { return spec_.pass.concurrent_lanes; }
  [[nodiscard]] std::int64_t microbatch() const { return spec_.pass.microbatch; }

  /// Where the received inputs of a microbatch go, a tensor for each that crosses the stage's
  /// begin.
  [[nodiscard]] const std::vector<TensorView>& inputs_of(std::int64_t execution_index) const;
  /// The tensors that cross the stage's end.
  [[nodiscard]] std::vector<ConstTensorView> outputs_of(const Microbatch& microbatch) const;
  /// Where the gradients of the outputs go, but for the model's input among them.
  [[nodiscard]] std::vector<TensorView> output_gradients_of(std::int64_t execution_index) const;
  /// The gradients of the inputs after backward_input, but for the model's.
  [[nodiscard]] const std::vector<TensorView>& input_gradients_of(
      std::int64_t execution_index) const;

  /// Lets a GPU be given the passes of training as CUDA graphs from the third step on
  /// (ops::GraphCache), and says whether it does: not where messages are part of a pass. Pre: the
  /// context is a GPU's.
  bool record_passes();
  /// Pieces of passes that are kept as CUDA graphs.
  [[nodiscard]] std::int64_t graphs() const { return graph_cache_.graphs(); }

  void forward(std::span<const Microbatch> concurrent, Mode mode);
  /// Computes the loss of the output, which losses() tells, and for training its gradient times
  /// gradient_scale. `valid` samples count. Pre: is_last(). Communication: where the logits are
  /// split, one gather over the tensor group.
  void loss(const Microbatch& microbatch, const ConstTensorView& targets, std::int64_t valid,
            double gradient_scale, Mode mode);
  /// What loss() came to for each slot, in order of the microbatches' numbers; nothing but on the
  /// last stage. Waits for all that was put on the context's stream. Pre: every slot's loss was
  /// computed. Throws: Error(kData) that names the first target which the model has no output for.
  [[nodiscard]] std::vector<ops::LossSums> losses();
  /// Under kFused hands the parameters' gradients to the sink, from the last layer to the first.
  void backward_input(std::span<const Microbatch> concurrent, GradientSink& sink);
  /// Under kSplit hands the parameters' gradients to the sink, from the last layer to the first.
  void backward_weight(std::span<const Microbatch> concurrent, GradientSink& sink);

  /// Waits until the device has done all that it was given.
  void synchronize() { context_.synchronize(); }

  /// The keys and values that one layer keeps while generating.
  struct LayerCache {
    std::vector<TensorView> keys;
    std::vector<TensorView> values;
  };
  /// Forward over new tokens of one sequence, which follow `past` others; caches[i] is layer i's.
  /// Returns the output for these tokens. Shapes: ids (int64) 1 x tokens. Pre: the stage holds all
  /// layers.
  [[nodiscard]] ConstTensorView decode(const ConstTensorView& ids, std::int64_t past,
                                       const std::vector<LayerCache>& caches);

 private:
  struct ActivationSlot {
    std::vector<TensorView> outputs;
    std::vector<std::vector<TensorView>> saved;
  };
  struct LayerGradients {
    TensorView output;
    TensorView input;
    /// Added to `input` once the layer has written it.
    TensorView input_sum;
    /// Where output's gradient is copied to for a second input; empty: it stays where it is.
    TensorView added;
    TensorView added_sum;
    std::vector<TensorView> inner;
  };
  struct GradientSlot {
    std::vector<LayerGradients> layers;
    std::vector<TensorView> received;
    std::vector<TensorView> sent;
  };
  /// One slice of a parameter in the arenas of weights and of gradients.
  struct ParameterSlice {
    Shape shape;
    std::int64_t weight_offset = 0;
    std::int64_t gradient_offset = 0;
  };
  /// The slices of each parameter of one layer, in the order of Layer::parameters().
  using LayerParameters = std::vector<std::vector<ParameterSlice>>;
  /// What split_cross_entropy() computes in, rows x kCrossEntropyParts each shard.
  struct LossWorkspace {
    TensorView all_shards;
    TensorView own_shards;
    TensorView log_sums;  ///< rows
  };
  /// The arenas of a stage, in the order of memory().
  enum class Arena { kActivations, kRecomputed, kInputs, kGradients, kShared, kWorkspace, kLosses };
  class ArenaAllocator;

  static ActivationSlot allocate_activations(const Model& model, const StageSpec& spec,
                                             ArenaAllocator& allocator, ArenaAllocator& recomputed);
  static std::vector<TensorView> allocate_inputs(const Model& model, const StageSpec& spec,
                                                 ArenaAllocator& allocator);
  static GradientSlot allocate_gradients(const Model& model, const StageSpec& spec,
                                         ArenaAllocator& allocator, ArenaAllocator& shared);
  static std::vector<std::vector<TensorView>> allocate_workspace(const Model& model,
                                                                 const StageSpec& spec,
                                                                 ArenaAllocator& allocator);
  static LossWorkspace allocate_loss(const Model& model, const StageSpec& spec,
                                     ArenaAllocator& allocator);
  static TensorView allocate_losses(const Model& model, const StageSpec& spec,
                                    ArenaAllocator& allocator);
  [[nodiscard]] static bool gradient_overwrites_output(const Model& model, const StageSpec& spec);
  [[nodiscard]] TensorView output_gradient(std::int64_t layer, std::int64_t execution_index) const;
  [[nodiscard]] static std::vector<LayerParameters> group_parameters(const ParameterLayout& layout,
                                                                     const grid::Range& layers);
  /// One layer's parameters in an arena, at the offsets that `offset` names.
  [[nodiscard]] static std::vector<ParameterViews> views_of(const LayerParameters& parameters,
                                                            const TensorView& arena,
                                                            std::int64_t ParameterSlice::*offset);

  [[nodiscard]] ConstTensorView tensor_of(std::int64_t tensor, const Microbatch& microbatch) const;
  [[nodiscard]] LayerPass pass_of(std::int64_t layer, const Microbatch& microbatch, Mode mode);
  void split_cross_entropy(const ConstTensorView& logits, const ConstTensorView& targets,
                           std::int64_t valid_rows, double gradient_scale,
                           const TensorView& gradient, const TensorView& sums);
  [[nodiscard]] std::vector<LayerPass> passes_of(std::int64_t layer,
                                                 std::span<const Microbatch> concurrent, Mode mode);
  /// The layers of a pass that may be recorded, and those before them.
  [[nodiscard]] grid::Range recorded() const {
    return {std::clamp(first_recorded_, spec_.layers.begin, spec_.layers.end), spec_.layers.end};
  }
  [[nodiscard]] grid::Range before_recorded() const {
    return {spec_.layers.begin, recorded().begin};
  }
  /// Does the part of a training pass that is these layers', or has it done by a graph. `key`: what
  /// it follows from beside the layers and the microbatches.
  void run(ops::GraphCache::Key key, std::span<const Microbatch> concurrent,
           const grid::Range& layers, const std::function<void()>& work);
  void recompute(const LayerPass& pass, std::int64_t layer);
  void layer_backward_input(std::int64_t layer, std::span<const Microbatch> concurrent);
  /// Where a layer shares an input with others: adds up what they gave.
  void add_gradients(const LayerPass& pass, const LayerGradients& gradients);
  void layer_backward_weight(std::int64_t layer, const Microbatch& microbatch,
                             const GradientSink::Target& target);
  /// The pass that makes weight gradients; under kFused input gradients too.
  void backward_to_sink(std::span<const Microbatch> concurrent, GradientSink& sink);
  [[nodiscard]] static bool acts_after(std::span<const Microbatch> concurrent, std::int64_t layer,
                                       const GradientSink& sink);
  /// Keeps messages moving, but while work is recorded.
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
  LossWorkspace loss_workspace_;
  TensorView losses_;
  device::HostCopy losses_on_host_;
  std::vector<std::vector<ParameterViews>> weights_;
  ops::GraphCache graph_cache_;
  /// Layers before it read what lies elsewhere for every microbatch.
  std::int64_t first_recorded_ = 0;
  /// Whether a layer's operations follow from which microbatch of a step it is.
  bool counts_microbatches_ = false;
};

}  // namespace strata::nn
