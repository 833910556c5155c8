#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "strata/nn/layer.hpp"
#include "strata/nn/layer_line.hpp"

namespace strata::nn {

/// What a layer is built from, besides its line.
struct LayerSite {
  std::string name;
  Port input;
  InputKind input_kind = InputKind::kNumbers;
  /// The model's seed, for layers that draw random numbers.
  std::uint64_t seed = 0;
  /// Virtual shards; they must divide what they split.
  std::int64_t shards = 1;
  /// Placement of token rows after an embedding: kTokens with sequence parallelism.
  Placement token_rows = Placement::kReplicated;
  /// Microbatches of a step over all lanes.
  std::int64_t microbatches = 1;
  std::int64_t lanes = 1;
  /// The default of batch_norm layers.
  Switch sync_batch_norm = Switch::kOff;
  /// Token ids of the data set; 0 where the data are no tokens.
  std::int64_t vocabulary = 0;
  /// The embedding table that a head can be tied to; null where there is none.
  const ParameterSpec* table = nullptr;

  /// Rejects token ids as input.
  void require_numbers(const LayerLine& line) const;
  /// Rejects an input that is split by feature.
  void require_whole_rows(const LayerLine& line) const;
  /// Rejects an input that is not tokens x width.
  void require_token_rows(const LayerLine& line) const;
  /// Rejects an input that is no image.
  void require_image(const LayerLine& line) const;
  /// Rejects a vocabulary smaller than the data set's or than the number of shards.
  void check_vocabulary(const LayerLine& line, std::int64_t given) const;
  /// Rejects `count` of `what`, as "heads", if the shards do not divide it.
  void require_shards_divide(const LayerLine& line, std::int64_t count,
                             std::string_view what) const;
  /// Rejects a split of `count` of `what`; `why` may give the consequence.
  [[noreturn]] void refuse_split(const LayerLine& line, std::int64_t count, std::string_view what,
                                 std::string_view why = {}) const;
};

/// Each takes its values and options from the line. Throws: Error(kUsage) where the line or the
/// input is not valid for the layer.
std::unique_ptr<Layer> make_dense(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_activation(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_softmax(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_dropout(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_flatten(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_norm(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_embedding(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_attention(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_mlp(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_head(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_convolution(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_pooling(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_global_pooling(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_zero_pad(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_zero_channels(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_batch_norm(LayerLine& line, const LayerSite& site);
std::unique_ptr<Layer> make_group_norm(LayerLine& line, const LayerSite& site);

/// The end of a residual block: y = activation(input + added), of the site's input shape.
/// Pre: the activation is kNone or kRelu.
std::unique_ptr<Layer> make_sum(const LayerSite& site, ops::Activation activation);

}  // namespace strata::nn
