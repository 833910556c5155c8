#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/grid/split.hpp"
#include "strata/nn/layer.hpp"
#include "strata/nn/loss.hpp"
#include "strata/nn/name_patterns.hpp"

namespace strata::nn {

/// A model as the config spells it.
struct ModelOptions {
  /// One `layer =` line each, as in "dense 128 relu name=hidden". Of a residual block every line
  /// but "residual" and "shortcut" is a layer; "end" is the one that adds.
  std::vector<std::string> layers;
  LossOptions loss;
  /// Shape of one sample as the data set has it, so images are channels x height x width.
  Shape input_shape;
  /// Outputs that the data's targets ask for: number of classes, or values of a regression target.
  std::int64_t outputs = 1;
  std::uint64_t seed = 0;
  /// Microbatches of a step over all lanes, of which each lane has as many; running statistics
  /// depend on them.
  std::int64_t step_microbatches = 1;
  std::int64_t lanes = 1;
  /// The default of batch_norm layers.
  Switch sync_batch_norm = Switch::kOff;
  InputKind input_kind = InputKind::kNumbers;
  /// Virtual shards that split layers are divided into.
  std::int64_t shards = 1;
  /// Placement of token rows between transformer layers: kReplicated, or kTokens for sequence
  /// parallelism.
  Placement token_rows = Placement::kReplicated;
};

/// The index of the model's input as a tensor; a layer's output has the layer's index.
inline constexpr std::int64_t kModelInput = -1;

/// The tensors that a layer reads; a view stands for the tensor whose memory it is.
struct LayerSources {
  std::int64_t input = kModelInput;
  /// The second input of a layer that has two.
  std::optional<std::int64_t> added;
};

/// A layer and its inputs.
struct ModelLayer {
  std::unique_ptr<Layer> layer;
  LayerSources sources;
};

/// A complete network, in an order in which its layers can run. Every rank builds it but holds
/// tensors for its own stage only.
class Model {
 public:
  /// Throws: Error(kUsage) for an invalid line, a duplicate name, or shapes that do not match.
  explicit Model(const ModelOptions& options);

  [[nodiscard]] std::int64_t layer_count() const {
    return static_cast<std::int64_t>(layers_.size());
  }
  [[nodiscard]] const Layer& layer(std::int64_t index) const {
    return *layers_[static_cast<std::size_t>(index)].layer;
  }
  [[nodiscard]] const LayerSources& sources(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)].sources;
  }
  /// The tensors that a stage beginning at `layer` receives, ascending: outputs of earlier layers
  /// that this layer or a later one reads. The model's output counts as read after the last layer.
  [[nodiscard]] std::vector<std::int64_t> boundary_tensors(std::int64_t layer) const;
  /// The shape and placement of a tensor.
  [[nodiscard]] const Port& port_of(std::int64_t tensor) const {
    return tensor == kModelInput ? layer(0).input() : layer(tensor).output();
  }
  /// All parameters, including borrowed ones, in canonical order.
  [[nodiscard]] const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  /// Takes the parameters of these names out of training. Running averages go on: they follow the
  /// inputs. Throws: Error(kUsage) where a pattern matches no parameter, or where none is
  /// left.
  void freeze(const NamePatterns& names);
  [[nodiscard]] bool has_adapters() const;
  /// Whether adapters are all that changes in training.
  [[nodiscard]] bool trains_only_adapters() const;
  /// Takes all parameters but adapters and those of these names out of training.
  /// Throws: Error(kUsage) where a pattern matches no parameter.
  void train_adapters_and(const NamePatterns& names);
  /// Whether a layer has parameters and all of them are frozen.
  [[nodiscard]] bool is_frozen(std::int64_t layer) const;
  /// The first layer that needs gradients: behind frozen parameters the first with others, else 0.
  [[nodiscard]] std::int64_t first_changing_layer() const;
  /// Elements of the owned parameters without running averages.
  [[nodiscard]] std::int64_t parameter_count() const;
  /// Elements of the parameters that are trained.
  [[nodiscard]] std::int64_t trainable_count() const;
  [[nodiscard]] const Shape& input_shape() const { return options_.input_shape; }
  [[nodiscard]] const Port& output() const { return layers_.back().layer->output(); }
  [[nodiscard]] std::int64_t shards() const { return options_.shards; }
  [[nodiscard]] std::int64_t lanes() const { return options_.lanes; }
  [[nodiscard]] LossKind loss() const { return options_.loss.kind; }
  [[nodiscard]] const LossOptions& loss_options() const { return options_.loss; }
  /// Sets LossOptions::per_sample.
  void keep_sample_losses() { options_.loss.per_sample = true; }
  /// Whether any layer joins the lanes.
  [[nodiscard]] bool joins_lanes() const;
  /// Whether some layer reads RowPlaces::document_starts or positions.
  [[nodiscard]] bool reads_document_starts() const { return reads_document_starts(all_layers()); }
  [[nodiscard]] bool reads_positions() const { return reads_positions(all_layers()); }
  /// Whether one of these does.
  [[nodiscard]] bool reads_document_starts(const grid::Range& layers) const;
  [[nodiscard]] bool reads_positions(const grid::Range& layers) const;

 private:
  [[nodiscard]] grid::Range all_layers() const { return {0, layer_count()}; }
  template <typename Predicate>
  [[nodiscard]] bool any_layer(const grid::Range& layers, const Predicate& is) const {
    for (std::int64_t i = layers.begin; i < layers.end; ++i) {
      if (is(layer(i))) {
        return true;
      }
    }
    return false;
  }
  void check_output() const;
  void check_parameter_names() const;
  /// The tensor whose memory a tensor is: for a view's output that of its input.
  [[nodiscard]] std::int64_t root_of(std::int64_t tensor) const;

  ModelOptions options_;
  std::vector<ModelLayer> layers_;
  std::vector<ParameterSpec> parameters_;
};

/// Whether a layer keeps running statistics.
[[nodiscard]] bool has_batch_norm(const Model& model);

/// The layers of each stage, or of each chunk: balanced by the layers' costs for "auto", else from
/// a list of first layers, by index or by name ("0, 2" or "dense1, dense3"); a residual block's
/// name stands for its first layer. Throws: Error(kUsage) for more parts than layers or an invalid
/// list.
[[nodiscard]] grid::StageSplit split_model(const Model& model, std::span<const double> costs,
                                           std::int64_t parts, const std::string& how);

/// The model as a table: layer, name, output shape, parameters, stage; then totals and the balance.
/// `stages`: of each chunk of the split; empty where each part is a stage.
[[nodiscard]] std::string model_table(const Model& model, const grid::StageSplit& split,
                                      std::span<const std::int64_t> stages = {});

}  // namespace strata::nn
