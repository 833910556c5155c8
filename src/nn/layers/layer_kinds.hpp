#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "strata/nn/layer.hpp"

#include "layer_line.hpp"

namespace strata::nn {

/// What a layer is made from, beside its line.
struct LayerSite {
  std::string name;
  Port input;
  InputKind input_kind = InputKind::kNumbers;
  /// The model's seed, for layers that draw random numbers.
  std::uint64_t seed = 0;
  /// S, which must divide what shards split.
  std::int64_t shards = 1;
  /// Whether sequence parallelism is on: where token rows are placed behind an embedding.
  Placement token_rows = Placement::kReplicated;
  /// Microbatches of a step, of all lanes.
  std::int64_t microbatches = 1;
  std::int64_t lanes = 1;
  /// Of a batch_norm layer whose line does not say.
  SyncLanes sync_batch_norm = SyncLanes::kNo;
  /// Ids that the data may hold; 0 where the data are no tokens.
  std::int64_t vocabulary = 0;
  /// The owner of the table that a tied head uses, as far as there is one before it.
  const ParameterSpec* table = nullptr;

  /// Refuses token ids as input.
  void require_numbers(const LayerLine& line) const;
  /// Refuses an input that is split by feature.
  void require_whole_rows(const LayerLine& line) const;
  /// Refuses an input that is no sequence of tokens' vectors.
  void require_token_rows(const LayerLine& line) const;
  /// Refuses an input that is no image.
  void require_image(const LayerLine& line) const;
  /// Refuses a vocabulary that is smaller than the data's, or than the number of shards.
  void check_vocabulary(const LayerLine& line, std::int64_t given) const;
  /// Refuses to split `count` things, named by `what`, that the shards do not divide.
  void require_shards_divide(const LayerLine& line, std::int64_t count,
                             std::string_view what) const;
  /// The refusal; `why` tells what would become of it.
  [[noreturn]] void refuse_split(const LayerLine& line, std::int64_t count, std::string_view what,
                                 std::string_view why = {}) const;
};

/// Each takes what it understands out of the line. Throws: Error(kUsage) where the line or the
/// input does not fit.
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
