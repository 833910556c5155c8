#pragma once

#include <cstdint>

#include "strata/io/tokenizer.hpp"

namespace strata::io {

/// XXH3 of kind and tables; equal for equal tokenizers.
[[nodiscard]] std::uint64_t tokenizer_checksum(const Tokenizer& tokenizer);

}  // namespace strata::io
