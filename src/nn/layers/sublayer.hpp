#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/random.hpp"
#include "strata/core/switch.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/nn/layer.hpp"
#include "strata/ops/activation.hpp"

#include "layers/layer_kinds.hpp"
#include "layers/norm_part.hpp"
#include "layers/projection.hpp"
#include "layers/shard_parts.hpp"
#include "layers/shard_sum.hpp"
#include "layers/shared_rows.hpp"

namespace strata::nn {

/// Options that attention and MLP sublayers share.
struct SublayerOptions {
  NormKind norm = NormKind::kLayerNorm;  ///< of the input
  NormKind post_norm = NormKind::kNone;  ///< of the output, before the residual is added
  NormOptions norms;
  Switch bias = Switch::kOn;      ///< of products and layer norms
  Switch residual = Switch::kOn;  ///< whether the input is added to the output
  double dropout = 0.0;
  /// Standard deviation of the initial weights, and of the output projection's.
  double deviation = 0.02;
  double output_deviation = 0.02;
  AdapterOptions adapters;
};

/// Takes the options of every sublayer. `products`: its products, which may have adapters.
[[nodiscard]] SublayerOptions take_sublayer_options(
    LayerLine& line, const LayerSite& site, std::initializer_list<std::string_view> products);

/// y = x + dropout(post_norm(output(inner(norm(x))))): a residual sublayer of a transformer. The
/// inner part is split by shard: products whose outputs are divided, then work local to the shard;
/// the inputs of the output projection are divided. Shapes: x, y rows x width; inner rows x
/// inner_width, split by feature. Communication: docs/tensor-parallel.md.
class Sublayer : public Layer {
 public:
  [[nodiscard]] std::vector<ParameterSpec> parameters() const final;
  [[nodiscard]] std::vector<SavedSpec> saved(const PassShape& pass) const final;
  [[nodiscard]] std::vector<TensorSpec> gradients(const PassShape& pass) const final;
  [[nodiscard]] std::vector<TensorSpec> workspace(const PassShape& pass) const final;

  void forward(const LayerPass& pass) const final;
  void recompute(const LayerPass& pass) const final;
  void backward(const LayerPass& pass, Wants wants) const final;

 protected:
  /// A product of the inner part, whose outputs shards divide.
  struct InnerProduct {
    std::string name;
    std::int64_t outputs = 0;
    /// Consecutive outputs that one shard holds whole.
    std::int64_t unit = 1;
    std::optional<Switch> bias = {};  ///< nothing: as SublayerOptions::bias
  };

  /// `own`: parameters of the inner part itself, which shards either all share or all divide. With
  /// `shared_heads` it and the products are those of SharedRows' copies.
  Sublayer(const LayerSite& site, const SublayerOptions& options,
           const std::vector<InnerProduct>& products, const std::string& output_name,
           std::int64_t inner_width, std::int64_t inner_unit,
           const LayerTraits& traits = {.backward_reads_output = false},
           std::vector<ParameterSpec> own = {}, const SharedHeads& shared_heads = {});

  /// The tensors of the inner part for one shard, each of `rows` rows.
  struct Inner {
    const LayerPass& pass;
    std::int64_t rows = 0;
    std::int64_t shard = 0;
    /// The products' results, each rows x its share of the columns.
    std::vector<TensorView> products;
    /// The input of the output projection.
    TensorView result;
    /// As listed by extras().
    TensorSlots extras;
    /// With several shards: the sums of forward_terms(), and in inner_backward() of
    /// backward_terms(). Else empty.
    TensorView forward_sums;
    TensorView backward_sums;
    /// The inner part's own parameters or this shard's part of them, and in backward where this
    /// shard's part of their gradients goes.
    std::vector<TensorView> weights;
    std::vector<TensorView> weight_gradients;

    template <typename Slot>
    [[nodiscard]] const TensorView& product(Slot slot) const {
      return products[index_of(slot)];
    }
  };

  /// Further saved tensors of one shard, kept or recomputed like products; the same number for
  /// every shard.
  [[nodiscard]] virtual std::vector<TensorSpec> extras(const PassShape& pass,
                                                       std::int64_t shard) const;
  /// GELU where it is all that lies between the only product and `result`, so that the product can
  /// apply it; else none.
  [[nodiscard]] virtual ops::Activation product_activation() const {
    return ops::Activation::kNone;
  }
  /// Whether selective recompute recomputes `result` from the products.
  [[nodiscard]] virtual Keep result_under_selective() const = 0;
  /// Computes `result` from the products' results.
  virtual void inner_forward(const Inner& inner) const = 0;
  /// Computes the products' gradients from the gradient of `result`, which it may overwrite. Not
  /// called where products apply product_activation().
  virtual void inner_backward(const Inner& inner, const TensorView& result_gradient,
                              const TensorSlots& product_gradients) const = 0;
  /// Numbers of each row that the inner part sums over shards before either pass, if there are
  /// several.
  [[nodiscard]] virtual std::int64_t row_sums() const { return 0; }
  /// Computes this shard's terms of the sums that inner_forward() reads. Shape: rows x row_sums().
  virtual void forward_terms(const Inner& /*inner*/, const TensorView& /*terms*/) const {}
  /// The same for inner_backward(), which goes on with what this leaves in the gradients.
  virtual void backward_terms(const Inner& /*inner*/, const TensorView& /*result_gradient*/,
                              const TensorSlots& /*product_gradients*/,
                              const TensorView& /*terms*/) const {}

  /// As in " lora=8"; empty without adapters.
  [[nodiscard]] std::string adapter_text() const;
  [[nodiscard]] std::int64_t width() const { return output().shape.back(); }
  [[nodiscard]] std::int64_t inner_width() const { return output_projection().inputs(); }

 private:
  /// kProjected: the argument of the post norm; kSums: of forward_terms(); kProducts: the products'
  /// results, then the extras of each own shard.
  enum class Saved {
    kMean,
    kRstd,
    kNormed,
    kMask,
    kPostMean,
    kPostRstd,
    kProjected,
    kSums,
    kResult,
    kProducts
  };
  /// kDropped: the gradient of dropout's argument, where a post norm makes that; kProjected: of the
  /// post norm's; kWhole: all rows of the output projection's, where it is not one of these or the
  /// output's; kOwn: of the inner part's own parameters, a block for each own shard unless shards
  /// divide them.
  enum class Gradient { kDropped, kProjected, kWhole, kNormed, kOwn, kProducts };
  /// kLow: rows x rank of one adapter; kAdapter...: ShardParts of the shared matrices' gradients;
  /// kTerms...: ShardParts of forward_terms() or backward_terms(); kSharedRows: SharedRows;
  /// kSum: a ShardSum.
  enum class Workspace {
    kNormAllShards,
    kNormOwnShards,
    kPostAllShards,
    kPostOwnShards,
    kResultGradient,
    kLow,
    kAdapterAllShards,
    kAdapterOwnShards,
    kOwnAllShards,
    kTermsAllShards,
    kTermsOwnShards,
    kSharedRows,
    kSum = kSharedRows + SharedRows::kTensors
  };

  /// The parameters as passes see them.
  [[nodiscard]] std::vector<ParameterSpec> computed_parameters() const;
  [[nodiscard]] static TensorSlots shared_workspace(const LayerPass& pass) {
    return TensorSlots(pass.workspace.from(Workspace::kSharedRows));
  }
  [[nodiscard]] std::int64_t whole_rows(const PassShape& pass) const;
  [[nodiscard]] std::int64_t rows_of(const LayerPass& pass) const;
  [[nodiscard]] std::int64_t whole_rows(const LayerPass& pass) const;
  [[nodiscard]] bool is_split_by_tokens() const { return input().placement == Placement::kTokens; }
  [[nodiscard]] bool sums_shards(const PassShape& pass) const;
  /// Adapters add to `up` before the activation, and to the gradient of `down` before that of GELU.
  [[nodiscard]] bool applies_gelu() const {
    return product_activation() == ops::Activation::kGelu && !is_adapted();
  }
  [[nodiscard]] const Projection& output_projection() const { return projections_.back(); }
  /// Those of the inner part.
  [[nodiscard]] std::span<const Projection> products() const {
    return std::span(projections_).first(projections_.size() - 1);
  }
  [[nodiscard]] bool has_post_norm() const { return post_norm_.kind() != NormKind::kNone; }
  [[nodiscard]] bool is_adapted() const { return adapter_elements_ > 0; }
  /// Elements of the inner part's own parameters.
  [[nodiscard]] std::int64_t own_elements() const;
  [[nodiscard]] bool divides_own() const { return !own_.empty() && own_[0].split != kNotSplit; }
  /// Where a shard's part of their gradients goes.
  [[nodiscard]] std::vector<TensorView> own_gradients(const LayerPass& pass,
                                                      std::int64_t shard) const;

  [[nodiscard]] NormStatistics<TensorView> statistics(const LayerPass& pass) const;
  [[nodiscard]] NormStatistics<TensorView> post_statistics(const LayerPass& pass) const;
  /// A matrix of the rank's rows, of which memory may have more.
  [[nodiscard]] TensorView local_matrix(const LayerPass& pass, const TensorView& tensor) const;
  [[nodiscard]] std::vector<RowPiece> pieces(const LayerPass& pass) const;
  [[nodiscard]] ShardSum shard_sum(const LayerPass& pass) const;
  [[nodiscard]] ConstTensorView normalized(const LayerPass& pass) const;
  [[nodiscard]] Inner inner_of(const LayerPass& pass, std::int64_t shard) const;
  [[nodiscard]] std::vector<TensorView> product_gradients(const LayerPass& pass,
                                                          std::int64_t shard) const;
  /// The gradient of the output projection's result, of the rank's rows and of all rows.
  [[nodiscard]] ConstTensorView projected_gradient(const LayerPass& pass) const;
  [[nodiscard]] ConstTensorView whole_gradient(const LayerPass& pass) const;
  /// Memory for the low side of an adapter.
  [[nodiscard]] TensorView low_rows(const LayerPass& pass, const RowPiece& piece) const;

  /// Computes the norm of the rank's rows and starts to gather all rows.
  [[nodiscard]] RowGather begin_normed(const LayerPass& pass) const;
  void make_products(const LayerPass& pass, RowGather& normed) const;
  /// The sums over shards of what make(shard, terms) writes, rows x row_sums(); empty with one
  /// shard. Communication: an all-gather over the tensor group.
  template <typename Make>
  [[nodiscard]] TensorView summed_terms(const LayerPass& pass, const Make& make) const;
  /// What the sublayer adds to: its input, or that of a parallel residual; empty without one.
  [[nodiscard]] ConstTensorView residual(const LayerPass& pass) const;
  void make_output(const LayerPass& pass) const;
  /// Computes the output from the post norm's argument.
  void apply_post_norm(const LayerPass& pass) const;
  void post_norm_backward(const LayerPass& pass, Wants wants) const;
  /// Computes the gradients of the products from the output's.
  void gradients_of_products(const LayerPass& pass) const;
  /// Computes the products' gradients and starts the sum of the normed input's; empty where that is
  /// made.
  [[nodiscard]] std::optional<ShardSum> begin_normed_gradient(const LayerPass& pass) const;
  /// Ends the sum of the normed input's gradient.
  void end_normed_gradient(const LayerPass& pass, std::optional<ShardSum>& sum) const;
  /// Computes the gradients of input and norm from the normed input's.
  void norm_backward(const LayerPass& pass, Wants wants, const TensorView& dy) const;
  void product_weight_gradients(const LayerPass& pass) const;
  void adapter_gradients(const LayerPass& pass) const;
  void own_weight_gradients(const LayerPass& pass) const;

  SublayerOptions options_;
  NormPart norm_;
  NormPart post_norm_;
  /// Of the inner part, then the output's.
  std::vector<Projection> projections_;
  std::int64_t inner_unit_;
  std::vector<ParameterSpec> own_;
  std::size_t own_first_ = 0;  ///< index of the first of them among the parameters
  /// Of the matrices of all adapters that all shards share.
  std::int64_t adapter_elements_ = 0;
  SharedRows shared_rows_;
  RandomStream dropout_stream_;
};

}  // namespace strata::nn
