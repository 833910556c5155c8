#pragma once

#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/core/tensor.hpp"
#include "strata/device/stream.hpp"
#include "strata/nn/layer.hpp"

namespace strata::train {

/// Some rows of a model's outputs, of all ids on every rank of the tensor group; bits are copied.
/// Waits for the stream. Shapes: rows x blocks.vocabulary. Communication: where shards of other
/// ranks have some of the ids, one all-gather over the tensor group. Pre: the transport is drained.
[[nodiscard]] std::vector<double> row_logits(const ConstTensorView& outputs,
                                             const grid::Range& rows, const nn::LogitBlocks& blocks,
                                             comm::Communicator& tensor_group,
                                             device::Stream& stream);

}  // namespace strata::train
