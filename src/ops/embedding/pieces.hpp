#pragma once

// Shared by the CPU's and the GPU's gradient of a table.
namespace strata::ops {

/// The rows with one id are added in pieces of so many, and the pieces' sums to the table's row in
/// order.
inline constexpr int kEmbeddingPieceRows = 64;

}  // namespace strata::ops
