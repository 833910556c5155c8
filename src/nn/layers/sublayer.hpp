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
#include "layers/shard_parts.hpp"
#include "layers/shard_sum.hpp"

namespace strata::nn {

/// Options that attention and MLP sublayers share.
struct SublayerOptions {
  NormKind norm = NormKind::kLayerNorm;
  double epsilon = 1e-5;
  Switch bias = Switch::kOn;
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

/// y = x + dropout(W_out inner(norm(x)) + b_out): a pre-norm residual sublayer of a transformer.
/// The inner part is split by shard: column-parallel products, then work local to the shard; the
/// output projection is row-parallel. Adapters are split as their products: B of a column-parallel
/// one and A of a row-parallel one by shard, the other matrix is replicated. Shapes: x, y rows x
/// width; inner rows x inner_width, split by feature; W_out width x inner_width. Communication:
/// docs/tensor-parallel.md.
class Sublayer : public Layer {
 public:
  [[nodiscard]] std::vector<ParameterSpec> parameters() const final;
  [[nodiscard]] std::vector<SavedSpec> saved(const PassShape& pass) const final;
  [[nodiscard]] std::vector<TensorSpec> gradients(const PassShape& pass) const final;
  [[nodiscard]] std::vector<TensorSpec> workspace(const PassShape& pass) const final;
  [[nodiscard]] LayerCost cost() const final;

  void forward(const LayerPass& pass) const final;
  void recompute(const LayerPass& pass) const final;
  void backward(const LayerPass& pass, Wants wants) const final;

 protected:
  /// A column-parallel product of the inner part; all shards have `columns` together.
  struct InnerProduct {
    std::string name;
    std::int64_t columns = 0;
    /// Consecutive columns that one shard holds whole.
    std::int64_t unit = 1;
  };

  Sublayer(const LayerSite& site, const SublayerOptions& options,
           std::vector<InnerProduct> products, std::string output_name, std::int64_t inner_width,
           std::int64_t inner_unit, const LayerTraits& traits = {.backward_reads_output = false});

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
  /// Floating-point operations of the inner part without the products, for one row, forward.
  [[nodiscard]] virtual double inner_flops() const = 0;

  /// As in " lora=8"; empty without adapters.
  [[nodiscard]] std::string adapter_text() const;
  [[nodiscard]] std::int64_t width() const { return output().shape.back(); }
  [[nodiscard]] std::int64_t inner_width() const { return inner_width_; }

 private:
  /// kProducts: the products' results, then the extras of each own shard.
  enum class Saved { kMean, kRstd, kNormed, kMask, kResult, kProducts };
  /// kWhole: all rows of the output's gradient before dropout, where it is not the output's.
  enum class Gradient { kWhole, kNormed, kProducts };
  /// kLow: rows x rank of one adapter; kAdapterAllShards, kAdapterOwnShards: ShardParts of the
  /// replicated matrices' gradients; kSum: a ShardSum.
  enum class Workspace {
    kNormAllShards,
    kNormOwnShards,
    kResultGradient,
    kLow,
    kAdapterAllShards,
    kAdapterOwnShards,
    kSum
  };
  /// The indices of an adapter's matrices among the parameters, and where the gradient of the one
  /// that all shards share begins in a block of ShardParts.
  struct Adapter {
    std::size_t a = 0;
    std::size_t b = 0;
    std::int64_t first_element = 0;
  };

  [[nodiscard]] std::int64_t whole_rows(const PassShape& pass) const;
  [[nodiscard]] std::int64_t rows_of(const LayerPass& pass) const;
  [[nodiscard]] std::int64_t whole_rows(const LayerPass& pass) const;
  [[nodiscard]] bool is_split_by_tokens() const { return input().placement == Placement::kTokens; }
  [[nodiscard]] bool sums_shards(const PassShape& pass) const;
  /// Adapters add to `up` before the activation, and to the gradient of `down` before that of GELU.
  [[nodiscard]] bool applies_gelu() const {
    return product_activation() == ops::Activation::kGelu && adapted_.empty();
  }
  [[nodiscard]] std::size_t norm_parameters() const;
  [[nodiscard]] std::size_t parameters_of(std::size_t product) const;
  [[nodiscard]] std::size_t output_parameters() const;
  [[nodiscard]] const std::string& product_name(std::size_t product) const;
  /// The adapter of a product, of which the output projection is the last; nothing without one.
  [[nodiscard]] std::optional<Adapter> adapter_of(std::size_t product) const;
  /// Elements of the replicated matrices of all adapters: rank x width each.
  [[nodiscard]] std::int64_t adapter_elements() const {
    return std::ssize(adapted_) * options_.adapters.rank * width();
  }
  [[nodiscard]] TensorView bias_of(std::span<const ParameterViews> views, std::size_t weight,
                                   std::size_t local) const;

  [[nodiscard]] NormStatistics<TensorView> statistics(const LayerPass& pass) const;
  [[nodiscard]] std::vector<RowPiece> pieces(const LayerPass& pass) const;
  [[nodiscard]] ShardSum shard_sum(const LayerPass& pass) const;
  [[nodiscard]] ConstTensorView normalized(const LayerPass& pass) const;
  [[nodiscard]] Inner inner_of(const LayerPass& pass, std::int64_t shard) const;
  [[nodiscard]] std::vector<TensorView> product_gradients(const LayerPass& pass,
                                                          std::int64_t shard) const;
  [[nodiscard]] ConstTensorView whole_gradient(const LayerPass& pass,
                                               const ConstTensorView& output_gradient) const;

  /// Computes the norm of the rank's rows and starts to gather all rows.
  [[nodiscard]] RowGather begin_normed(const LayerPass& pass) const;
  void make_products(const LayerPass& pass, RowGather& normed) const;
  /// Computes the gradients of the products from the output's.
  void gradients_of_products(const LayerPass& pass, const TensorView& dy) const;
  void make_output(const LayerPass& pass) const;
  /// scale x op(w) in kLow: the input of an adapter's second product. Shapes: x the piece's rows x
  /// n, w rank x n or with kNo n x rank.
  [[nodiscard]] ConstTensorView low(const LayerPass& pass, const RowPiece& piece,
                                    const ConstTensorView& x, const TensorView& w,
                                    ops::Transpose transpose) const;
  /// Computes the products' gradients and starts the sum of the normed input's; empty where that is
  /// made.
  [[nodiscard]] std::optional<ShardSum> begin_normed_gradient(const LayerPass& pass,
                                                              const TensorView& dy) const;
  /// Ends the sum of the normed input's gradient.
  void end_normed_gradient(const LayerPass& pass, std::optional<ShardSum>& sum) const;
  /// Computes the gradients of input and norm from the normed input's.
  void norm_backward(const LayerPass& pass, Wants wants, const TensorView& dy) const;
  void product_weight_gradients(const LayerPass& pass) const;
  /// Computes the gradients of A and B from the inputs and the gradients of their products.
  void adapter_gradients(const LayerPass& pass, const ConstTensorView& output_gradient) const;

  SublayerOptions options_;
  NormPart norm_;
  std::vector<InnerProduct> products_;
  std::string output_name_;
  std::int64_t inner_width_;
  std::int64_t inner_unit_;
  /// The adapted products, ascending.
  std::vector<std::size_t> adapted_;
  RandomStream dropout_stream_;
};

}  // namespace strata::nn
