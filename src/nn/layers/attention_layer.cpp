#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/nn/attention_kinds.hpp"
#include "strata/nn/rotary_scaling.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/head_norm.hpp"

#include "layers/sublayer.hpp"

namespace strata::nn {
namespace {

/// As shards compute it: where several of them share a key-value head, each has it as its own.
struct AttentionOptions {
  std::int64_t kv_heads = 1;
  std::int64_t group = 1;  ///< shards that share a key-value head
  std::int64_t queries = 1;
  std::int64_t head_size = 1;
  /// Of rotary position embeddings; nothing: none.
  std::optional<ops::RotaryAngles> rotary;
  AttentionMaskKind mask = AttentionMaskKind::kCausal;
  /// Tokens that a token sees, itself included; 0: no limit.
  std::int64_t window = 0;
  Switch qkv_bias = Switch::kOn;
  QkNorm qk_norm = QkNorm::kNone;
  double scale = 0.0;    ///< of scores; 0: 1 / sqrt(head_size)
  double softcap = 0.0;  ///< bound of scores; 0: none
};

/// The weights of the norms of queries and keys.
std::vector<ParameterSpec> qk_norm_weights(const std::string& layer,
                                           const AttentionOptions& attention,
                                           const NormOptions& norms) {
  std::vector<ParameterSpec> weights;
  // `heads`: of a key-value head.
  const auto add = [&](std::string_view part, std::int64_t heads) {
    const bool all = attention.qk_norm == QkNorm::kWidth;
    const std::int64_t unit = (all ? heads : 1) * attention.head_size;
    weights.push_back({.name = parameter_name(parameter_name(layer, part), "weight"),
                       .shape = {all ? attention.kv_heads * unit : unit},
                       .initializer = norm_initializer(norms),
                       .split = all ? 0 : kNotSplit,
                       .unit = unit});
  };
  if (attention.qk_norm != QkNorm::kNone) {
    add("q_norm", attention.queries);
    add("k_norm", 1);
  }
  return weights;
}

/// Causal self-attention of query heads that share key-value heads in groups.
/// Parameters: norm; qkv, whose rows are for every key-value head its queries, its key, its value;
/// output; q_norm and k_norm. Source: Vaswani et al., "Attention is all you need", arXiv
/// 1706.03762; Radford et al., "Language models are unsupervised multitask learners", 2019
/// (pre-norm); Henry et al., "Query-key normalization for transformers", arXiv 2010.04245.
class Attention final : public Sublayer {
 public:
  Attention(const LayerSite& site, const SublayerOptions& options,
            const AttentionOptions& attention)
      : Sublayer(site, options,
                 {{"qkv", attention.kv_heads * (attention.queries + 2) * attention.head_size,
                   (attention.queries + 2) * attention.head_size, attention.qkv_bias}},
                 "output", attention.kv_heads * attention.queries * attention.head_size,
                 attention.queries * attention.head_size,
                 {.backward_reads_output = false,
                  .reads_document_starts = attention.mask == AttentionMaskKind::kDocument},
                 qk_norm_weights(site.name, attention, options.norms), shared_heads(attention)),
        attention_(attention),
        qk_norm_{.epsilon = options.norms.epsilon, .offset = weight_offset(options.norms)},
        tokens_(site.input.shape[0]) {}

  std::string text() const override {
    std::string text = fmt::format("attention {}", attention_.kv_heads * attention_.queries);
    const auto add_if = [&](bool has, const std::string& word) { text += has ? " " + word : ""; };
    add_if(attention_.queries > 1 || attention_.group > 1,
           fmt::format("kv_heads={}", attention_.kv_heads / attention_.group));
    add_if(attention_.rotary.has_value(), "rotary");
    add_if(norms_heads(), fmt::format("qk_norm={}", name_of(attention_.qk_norm)));
    add_if(attention_.softcap > 0.0, fmt::format("softcap={}", attention_.softcap));
    add_if(attention_.mask == AttentionMaskKind::kDocument, "mask=document");
    add_if(attention_.window > 0, fmt::format("window={}", attention_.window));
    return text + adapter_text();
  }

 protected:
  std::vector<TensorSpec> extras(const PassShape& pass, std::int64_t shard) const override {
    const ops::AttentionShape shape = shape_of(pass.microbatch, tokens_, pass.shards.count, shard);
    const std::int64_t normed = norms_heads() ? pass.microbatch * tokens_ : 0;
    return slot_list<Extra, TensorSpec>(
        {{Extra::kLogSums, {{pass.microbatch, shape.heads(), tokens_}, compute_dtype(pass.dtype)}},
         {Extra::kHeads, {{normed, shape.qkv_width()}, pass.dtype}}});
  }

  Keep result_under_selective() const override { return Keep::kKept; }

  void inner_forward(const Inner& inner) const override {
    const ops::AttentionShape shape = shape_of(inner);
    const TensorView qkv = heads_of(inner);
    if (norms_heads()) {
      ops::head_norm_forward(inner.pass.context, shape, inner.product(Product::kQkv),
                             inner.weights[0], inner.weights[1], qk_norm_, qkv, sums_of(inner));
    }
    if (inner.pass.decoding != nullptr) {
      attend_to_past(inner, *inner.pass.decoding, qkv);
      return;
    }
    if (attention_.rotary) {
      ops::rotary(inner.pass.context, shape, *attention_.rotary, 0, ops::Rotation::kForward, qkv);
    }
    ops::causal_attention_forward(inner.pass.context, shape, qkv, inner.result,
                                  inner.extras.at(Extra::kLogSums), mask_of(inner.pass));
  }

  void inner_backward(const Inner& inner, const TensorView& result_gradient,
                      const TensorSlots& product_gradients) const override {
    if (inner.backward_sums.empty()) {
      heads_backward(inner, result_gradient, product_gradients);
    }
    if (norms_heads()) {
      ops::head_norm_backward(inner.pass.context, shape_of(inner), inner.product(Product::kQkv),
                              inner.weights[0], inner.weights[1], qk_norm_,
                              product_gradients.at(Product::kQkv), inner.weight_gradients[0],
                              inner.weight_gradients[1], ops::Accumulate::kOverwrite,
                              sums_of(inner));
    }
  }

  // Of queries and of keys, where one root mean square is of all heads.
  std::int64_t row_sums() const override { return attention_.qk_norm == QkNorm::kWidth ? 2 : 0; }

  void forward_terms(const Inner& inner, const TensorView& terms) const override {
    ops::head_norm_squares(inner.pass.context, shape_of(inner), inner.product(Product::kQkv),
                           terms);
  }

  void backward_terms(const Inner& inner, const TensorView& result_gradient,
                      const TensorSlots& product_gradients,
                      const TensorView& terms) const override {
    heads_backward(inner, result_gradient, product_gradients);
    ops::head_norm_products(inner.pass.context, shape_of(inner), inner.product(Product::kQkv),
                            inner.weights[0], inner.weights[1], qk_norm_,
                            product_gradients.at(Product::kQkv), terms);
  }

  std::vector<TensorSpec> cache(const PassShape& pass, std::int64_t capacity) const override {
    std::vector<TensorSpec> specs;
    for (std::int64_t s = pass.shards.own.begin; s < pass.shards.own.end; ++s) {
      specs.push_back(
          {{kv_heads_of(pass.shards.count, s), capacity, attention_.head_size}, pass.dtype});
    }
    return specs;
  }

 private:
  enum class Product { kQkv };
  static SharedHeads shared_heads(const AttentionOptions& attention) {
    SharedHeads shared{.heads = attention.kv_heads / attention.group,
                       .group = attention.group,
                       // The key and the value.
                       .product_rows = 2 * attention.head_size,
                       .unit = attention.head_size};
    if (attention.qk_norm == QkNorm::kWidth) {
      shared.own_rows = {0, attention.head_size};
    }
    return shared;
  }
  /// kLogSums: the logarithm of each score row's sum, from which backward recomputes the softmax.
  /// kHeads: qkv behind the norms of queries and keys and rotary positions, where there are norms;
  /// rotary positions alone turn qkv in place.
  enum class Extra { kLogSums, kHeads };

  std::int64_t kv_heads_of(std::int64_t shards, std::int64_t shard) const {
    return grid::even_part(attention_.kv_heads, shards, shard).count();
  }

  ops::AttentionMask mask_of(const LayerPass& pass) const {
    return {.document_starts = attention_.mask == AttentionMaskKind::kDocument
                                   ? pass.places.document_starts
                                   : ConstTensorView(),
            .window = attention_.window < tokens_ ? attention_.window : 0};
  }

  /// Attends each sequence's new tokens to it, and to its past.
  void attend_to_past(const Inner& inner, const Decoding& decoding, const TensorView& qkv) const {
    ops::Context& context = inner.pass.context;
    const auto local = static_cast<std::size_t>(inner.shard - inner.pass.shards.own().begin);
    const auto shape_of_sequences = [&](std::int64_t sequences) {
      return shape_of(sequences, decoding.tokens, inner.pass.shards.shards(), inner.shard);
    };
    std::vector<ops::KeyValueCache> caches;
    for (const Decoding::Sequence& sequence : decoding.sequences) {
      caches.push_back({sequence.keys[local], sequence.values[local], sequence.past});
    }
    for (std::size_t i = 0; attention_.rotary && i < caches.size(); ++i) {
      ops::rotary(context, shape_of_sequences(1), *attention_.rotary, caches[i].past,
                  ops::Rotation::kForward, row_range(qkv, decoding.rows(i)));
    }
    const grid::Range rows{0, std::ssize(caches) * decoding.tokens};
    const ops::AttentionShape shape = shape_of_sequences(std::ssize(caches));
    ops::append_to_cache(context, shape, row_range(qkv, rows), caches);
    ops::cached_attention(context, shape, row_range(qkv, rows), caches, attention_.window,
                          row_range(inner.result, rows));
  }

  /// Computes the gradient of what attention reads, turned back to before rotary positions.
  void heads_backward(const Inner& inner, const TensorView& result_gradient,
                      const TensorSlots& product_gradients) const {
    const ops::AttentionShape shape = shape_of(inner);
    ops::causal_attention_backward(inner.pass.context, shape, heads_of(inner), inner.result,
                                   inner.extras.at(Extra::kLogSums), result_gradient,
                                   product_gradients.at(Product::kQkv), mask_of(inner.pass));
    if (attention_.rotary) {
      ops::rotary(inner.pass.context, shape, *attention_.rotary, 0, ops::Rotation::kBackward,
                  product_gradients.at(Product::kQkv));
    }
  }

  ops::HeadSums sums_of(const Inner& inner) const {
    return {.squares = inner.forward_sums,
            .products = inner.backward_sums,
            .query_width = inner_width(),
            .key_width = attention_.kv_heads * attention_.head_size};
  }

  bool norms_heads() const { return attention_.qk_norm != QkNorm::kNone; }

  /// What attention reads. Shape: rows x qkv_width.
  TensorView heads_of(const Inner& inner) const {
    const TensorView& product = inner.product(Product::kQkv);
    return norms_heads() ? inner.extras.at(Extra::kHeads)
                               .flat_slice(0, product.count())
                               .reshaped(product.shape())
                         : product;
  }

  ops::AttentionShape shape_of(std::int64_t sequences, std::int64_t tokens, std::int64_t shards,
                               std::int64_t shard) const {
    return {.sequences = sequences,
            .tokens = tokens,
            .kv_heads = kv_heads_of(shards, shard),
            .queries = attention_.queries,
            .head_size = attention_.head_size,
            .scale = attention_.scale,
            .softcap = attention_.softcap};
  }
  ops::AttentionShape shape_of(const Inner& inner) const {
    const std::int64_t tokens =
        inner.pass.decoding != nullptr ? inner.pass.decoding->tokens : tokens_;
    return shape_of(inner.rows / tokens, tokens, inner.pass.shards.shards(), inner.shard);
  }

  AttentionOptions attention_;
  ops::HeadNorm qk_norm_;
  std::int64_t tokens_;
};

/// `tokens`: of a sample.
std::optional<ops::RotaryAngles> take_rotary(LayerLine& line, std::int64_t head_size,
                                             std::int64_t tokens) {
  const double base = line.take_option_number("rotary", 0.0);
  const std::string text = line.take_option("rotary_scaling", "none");
  if (base < 0.0) {
    line.refuse(
        fmt::format("rotary is {}; give the base of the angles, as 10000, or leave it out", base));
  }
  const std::optional<ops::RotaryScaling> scaling = parse_rotary_scaling(text);
  if (!scaling) {
    line.refuse(fmt::format("rotary_scaling is \"{}\"; expected {}", text, kRotaryScalings));
  }
  if (base == 0.0 && scaling->kind != ops::RotaryScalingKind::kNone) {
    line.refuse("rotary_scaling needs rotary positions; give rotary=BASE, or leave it out");
  }
  if (scaling->kind == ops::RotaryScalingKind::kYarn && base <= 1.0) {
    line.refuse(fmt::format("rotary is {}, but yarn needs a base above 1", base));
  }
  const double share = line.take_option_number("rotary_share", 1.0);
  if (base == 0.0) {
    if (share != 1.0) {
      line.refuse("rotary_share needs rotary positions; give rotary=BASE, or leave it out");
    }
    return std::nullopt;
  }
  if (!(share > 0.0 && share <= 1.0)) {
    line.refuse(fmt::format("rotary_share is {}, it must be above 0 and at most 1", share));
  }
  const ops::RotaryAngles angles{.theta = base,
                                 .scaling = scaling->in_samples_of(static_cast<double>(tokens)),
                                 .share = share};
  if (const std::int64_t turned = angles.rotated(head_size); turned == 0 || turned % 2 != 0) {
    line.refuse(
        fmt::format("rotary positions turn pairs of elements, but {} has {}; use an even {}",
                    share == 1.0 ? "a head" : "the share of a head that they turn", turned,
                    share == 1.0 ? "head size" : "number"));
  }
  if (const std::int64_t pairs = angles.rotated(head_size) / 2, factors = scaling->factors.count;
      scaling->kind == ops::RotaryScalingKind::kLongrope && factors != pairs) {
    line.refuse(
        fmt::format("rotary_scaling has {} factors, but {} pairs of a head's elements turn; "
                    "give {} short and {} long ones",
                    factors, pairs, pairs, pairs));
  }
  return angles;
}

/// Takes what a family's attention computes besides. `options`: the sublayer's.
void take_family_options(LayerLine& line, const SublayerOptions& options,
                         AttentionOptions& attention) {
  attention.qkv_bias = line.take_enum("qkv_bias", options.bias);
  attention.qk_norm = line.take_enum("qk_norm", QkNorm::kNone);
  attention.scale = line.take_option_number("scale", 0.0);
  attention.softcap = line.take_option_number("softcap", 0.0);
  if (attention.scale < 0.0 || attention.softcap < 0.0) {
    line.refuse(fmt::format("scale is {} and softcap {}; give numbers above 0, or leave them out",
                            attention.scale, attention.softcap));
  }
}

}  // namespace

std::unique_ptr<Layer> make_attention(LayerLine& line, const LayerSite& site) {
  site.require_token_rows(line);
  const std::int64_t heads = line.take_count("the number of heads");
  const std::int64_t width = site.input.shape.back();
  AttentionOptions attention;
  attention.kv_heads = line.take_option_count("kv_heads", heads);
  if (heads % attention.kv_heads != 0) {
    line.refuse(
        fmt::format("{} heads do not share {} key-value heads evenly; give a kv_heads that "
                    "divides {}",
                    heads, attention.kv_heads, heads));
  }
  attention.queries = heads / attention.kv_heads;
  if (!line.has_option("head_size") && width % heads != 0) {
    line.refuse(
        fmt::format("its input of width {} does not divide into {} heads; change the width "
                    "or the heads, or give head_size=",
                    width, heads));
  }
  attention.head_size = line.take_option_count("head_size", width / heads);
  attention.rotary = take_rotary(line, attention.head_size, site.input.shape[0]);
  attention.mask = line.take_enum("mask", AttentionMaskKind::kCausal);
  attention.window = line.take_option_count_or_none("window", 0);
  // Shards of unequal size stall each other; one head of many more or less is acceptable.
  constexpr double kMostImbalance = 1.1;
  const auto even = static_cast<double>(attention.kv_heads) / static_cast<double>(site.shards);
  const std::int64_t largest = grid::even_part(attention.kv_heads, site.shards, 0).count();
  const char* what = attention.queries > 1 ? "key-value heads" : "heads";
  if (attention.kv_heads < site.shards) {
    if (attention.queries == 1) {
      site.refuse_split(line, heads, what, ": some shards would have none");
    }
    if (site.shards % attention.kv_heads != 0 || heads % site.shards != 0) {
      std::vector<std::int64_t> allowed;
      for (std::int64_t shards = 1; shards <= heads; ++shards) {
        if (attention.kv_heads % shards == 0 ||
            (shards % attention.kv_heads == 0 && heads % shards == 0)) {
          allowed.push_back(shards);
        }
      }
      line.refuse(fmt::format(
          "its {} heads with {} key-value heads cannot be split into numerics.shards = {} (by "
          "default parallel.tensor); use a number that divides the key-value heads, or a multiple "
          "of them that divides the heads: {}",
          heads, attention.kv_heads, site.shards, fmt::join(allowed, ", ")));
    }
    attention.group = site.shards / attention.kv_heads;
  } else if (static_cast<double>(largest) > kMostImbalance * even) {
    site.refuse_split(
        line, attention.kv_heads, what,
        fmt::format(": one shard would have {}, over 10 % more than its share", largest));
  }
  const SublayerOptions options = take_sublayer_options(line, site, {"qkv", "output"});
  take_family_options(line, options, attention);
  if (attention.qk_norm == QkNorm::kWidth &&
      attention.kv_heads * attention.head_size < site.shards) {
    site.refuse_split(line, attention.kv_heads * attention.head_size, "elements of keys");
  }
  attention.kv_heads *= attention.group;
  attention.queries /= attention.group;
  return std::make_unique<Attention>(site, options, attention);
}

}  // namespace strata::nn
