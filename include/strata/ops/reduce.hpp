#pragma once

#include <cstdint>
#include <span>

#include "strata/core/reduction_step.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// Performs the additions in order, element by element, over parts of equal shape and dtype. Reads
/// each part from memory once: by cache-sized chunks on a CPU, by elements on a GPU. A part that
/// was added to another is undefined afterwards.
/// Pre: parts do not overlap; each pair names two different parts.
void fold(Context& context, std::span<const TensorView> parts,
          std::span<const ReductionStep> steps);

/// out = the sum of all parts, added in float32 in the order of fold(). The parts do not change.
/// Shapes: parts (bfloat16) as out (float32). Pre: the steps add all parts into one, each once.
void fold_into(Context& context, std::span<const TensorView> parts,
               std::span<const ReductionStep> steps, const TensorView& out);

/// out[b] = sum of squares of elements [b * block_elements, (b + 1) * block_elements) of x, in
/// double, in an order that depends only on the block's length. The last block may be short.
/// Shapes: out (float64) as many as there are blocks. Pre: block_elements >= 1.
void sum_of_squares_blocks(Context& context, const ConstTensorView& x, std::int64_t block_elements,
                           const TensorView& out);

}  // namespace strata::ops
