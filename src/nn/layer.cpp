#include "strata/nn/layer.hpp"

#include "strata/core/error.hpp"

namespace strata::nn {

std::string shape_text(const Port& port) {
  const Shape& shape = port.shape;
  return is_image(port) ? Shape{shape[2], shape[0], shape[1]}.text() : shape.text();
}

std::int64_t rows_at(const Port& port, std::int64_t microbatch) {
  return microbatch * (port.shape.count() / port.shape.back());
}

std::int64_t local_rows(const Port& port, const PassShape& pass) {
  const std::int64_t rows = rows_at(port, pass.microbatch);
  const std::int64_t ranks = pass.shards.count / pass.shards.own.count();
  return port.placement == Placement::kTokens
             ? grid::even_part(rows, ranks, pass.shards.own.begin / pass.shards.own.count()).count()
             : rows;
}

Shape local_shape(const Port& port, const PassShape& pass) {
  switch (port.placement) {
    case Placement::kReplicated:
      return port.shape.prepended(pass.microbatch);
    case Placement::kTokens:
      return {local_rows(port, pass), port.shape.back()};
    case Placement::kFeatures:
      break;
  }
  const std::int64_t multiple = port.is_logits ? pass.logit_multiple : 1;
  std::int64_t width = 0;
  for (std::int64_t s = pass.shards.own.begin; s < pass.shards.own.end; ++s) {
    width += ops::padded_row(shard_part(port.shape.back(), port.unit, pass.shards.count, s).count(),
                             multiple);
  }
  return {rows_at(port, pass.microbatch) * width};
}

LogitBlocks logit_blocks(const Port& port, const PassShape& pass) {
  const bool split = port.placement == Placement::kFeatures;
  return {.rows = rows_at(port, pass.microbatch),
          .vocabulary = port.shape.back(),
          .shards = split ? pass.shards.count : 1,
          .own = split ? pass.shards.own : grid::Range{0, 1},
          .multiple = port.is_logits ? pass.logit_multiple : 1};
}

void Layer::forward(const LayerPass& /*pass*/) const {
  require(is_view(), "layer {} has no forward pass", name_);
}

void Layer::recompute(const LayerPass& pass) const {
  forward(pass);
}

void Layer::backward(const LayerPass& /*pass*/, Wants /*wants*/) const {
  require(is_view(), "layer {} has no backward pass", name_);
}

}  // namespace strata::nn
