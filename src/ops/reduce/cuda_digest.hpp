#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/digest.hpp"

namespace strata::ops::cuda {

/// Enqueues the sums of ops::digest_of(). `tensor`: the hash of its name. Pre: x has elements.
/// Returns: DigestTerms as two int64 in the context's scratch memory.
[[nodiscard]] ConstTensorView digest_terms(Context& context, std::uint64_t tensor,
                                           const ConstTensorView& x, const DigestPlaces& places);

}  // namespace strata::ops::cuda
