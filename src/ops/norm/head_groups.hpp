#pragma once

#include <array>
#include <cstdint>

#include "strata/ops/attention.hpp"
#include "strata/ops/head_norm.hpp"

namespace strata::ops {

/// The groups of a row of qkv that have a root mean square each: its query heads, its key heads, or
/// all of one kind. A group is `runs` runs of `count` elements, `stride` elements apart.
struct HeadGroups {
  std::int64_t groups;   ///< of a row
  std::int64_t of_head;  ///< of these, of one key-value head
  std::int64_t first;    ///< the column of the first group
  std::int64_t runs;
  std::int64_t count;
  std::int64_t stride;  ///< between key-value heads

  /// Elements of a group, and of its weight.
  [[nodiscard]] constexpr std::int64_t elements() const { return runs * count; }
  /// The column of a group's first element.
  [[nodiscard]] constexpr std::int64_t column(std::int64_t group) const {
    return first + group / of_head * stride + group % of_head * count;
  }
};

/// Of the heads [first, end) of every key-value head, with a weight of `elements` elements.
constexpr HeadGroups head_groups(const AttentionShape& shape, std::int64_t first, std::int64_t end,
                                 std::int64_t elements) {
  const std::int64_t heads = end - first;
  const bool each = elements == shape.head_size;
  return {.groups = each ? shape.kv_heads * heads : 1,
          .of_head = each ? heads : 1,
          .first = first * shape.head_size,
          .runs = each ? 1 : shape.kv_heads,
          .count = each ? shape.head_size : heads * shape.head_size,
          .stride = (shape.queries + 2) * shape.head_size};
}

constexpr HeadGroups query_groups(const AttentionShape& shape, std::int64_t elements) {
  return head_groups(shape, 0, shape.queries, elements);
}
constexpr HeadGroups key_groups(const AttentionShape& shape, std::int64_t elements) {
  return head_groups(shape, shape.queries, shape.queries + 1, elements);
}
/// All in one group.
constexpr HeadGroups all_queries(const AttentionShape& shape) {
  return query_groups(shape, shape.width());
}
constexpr HeadGroups all_keys(const AttentionShape& shape) {
  return key_groups(shape, shape.kv_heads * shape.head_size);
}
constexpr HeadGroups value_heads(const AttentionShape& shape) {
  return head_groups(shape, shape.queries + 1, shape.queries + 2, shape.head_size);
}

/// The queries or the keys, and what their root mean squares are of.
template <typename C>
struct HeadKind {
  HeadGroups heads;
  std::int64_t elements = 0;  ///< of a group, on all shards
  double epsilon = 0.0;
  /// HeadSums, those of row r at 2 r; null where qkv has all heads.
  const C* squares = nullptr;
  const C* products = nullptr;
};

/// Queries, then keys. address(tensor) is null for an empty tensor.
template <typename C, typename Address>
std::array<HeadKind<C>, 2> head_kinds(const AttentionShape& shape,
                                      const ConstTensorView& query_weight,
                                      const ConstTensorView& key_weight, const HeadNorm& norm,
                                      const HeadSums& sums, const Address& address) {
  const bool is_whole = sums.squares.empty();
  const C* const squares = address(sums.squares);
  const C* const products = address(sums.products);
  const auto kind = [&](const HeadGroups& heads, std::int64_t width, std::int64_t place) {
    return HeadKind<C>{.heads = heads,
                       .elements = is_whole ? heads.elements() : width,
                       .epsilon = norm.epsilon,
                       .squares = squares == nullptr ? nullptr : squares + place,
                       .products = products == nullptr ? nullptr : products + place};
  };
  return {kind(query_groups(shape, query_weight.count()), sums.query_width, 0),
          kind(key_groups(shape, key_weight.count()), sums.key_width, 1)};
}

}  // namespace strata::ops
