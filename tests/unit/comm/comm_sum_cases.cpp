#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "strata/comm/ordered_reduction.hpp"
#include "strata/core/random.hpp"

#include "comm_cases.hpp"

namespace strata::comm::test {
namespace {

/// Numbers of very different sizes, so that each order of addition gives other bits.
float value_of(std::int64_t lane, std::int64_t element) {
  const auto words = RandomStream(3, RandomPurpose::kSynthesise, static_cast<std::uint64_t>(lane))
                         .words(static_cast<std::uint64_t>(element));
  const int exponent = static_cast<int>(words[0] % 24) - 12;
  return std::ldexp(static_cast<float>(static_cast<std::int32_t>(words[1])), exponent - 31);
}

float tree_sum(std::int64_t begin, std::int64_t end, std::int64_t element) {
  if (end - begin == 1) {
    return value_of(begin, element);
  }
  const std::int64_t middle = begin + (end - begin) / 2;
  return tree_sum(begin, middle, element) + tree_sum(middle, end, element);
}

/// Slices of unequal length: rank 1's is empty and the last rank's the longest.
std::vector<grid::Range> uneven_slices(std::int64_t elements, std::int64_t ranks) {
  std::vector<grid::Range> slices;
  std::int64_t begin = 0;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const std::int64_t count = r == 1 ? 0 : elements / (2 * ranks);
    slices.push_back({begin, r + 1 == ranks ? elements : begin + count});
    begin += count;
  }
  return slices;
}

void require_ordered_sum(Communicator& world, const grid::Assignment& assignment,
                         std::int64_t node_ranks, const std::vector<grid::Range>& slices,
                         Findings& findings) {
  const std::int64_t lanes = assignment.tree().leaves();
  const std::int64_t elements = slices.back().end;
  OrderedReduction reduction(world, assignment, node_ranks);
  const std::vector<grid::Range> nodes = assignment.nodes_of(world.rank());
  findings.require_equal(reduction.own_parts(), static_cast<std::int64_t>(nodes.size()), "parts");
  std::vector<std::vector<float>> partials;
  for (const grid::Range& node : nodes) {
    partials.emplace_back();
    for (std::int64_t i = 0; i < elements; ++i) {
      partials.back().push_back(tree_sum(node.begin, node.end, i));
    }
  }
  std::vector<TensorView> views;
  for (std::vector<float>& partial : partials) {
    views.emplace_back(std::span(partial), Shape{elements});
  }
  const std::int64_t largest = std::ranges::max(slices, {}, &grid::Range::count).count();
  std::vector<float> received(static_cast<std::size_t>(reduction.receive_elements(largest)));
  ops::Context context(1);
  OrderedReduction::Pending pending = reduction.start(
      views, slices, TensorView(std::span(received), Shape{reduction.receive_elements(largest)}));
  reduction.cross_nodes(context, pending);
  OrderedReduction::wait(pending);
  reduction.fold(context, pending);
  SliceGather(world, views[0], slices, node_ranks).wait();
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < elements; ++i) {
    wrong += partials[0][static_cast<std::size_t>(i)] == tree_sum(0, lanes, i) ? 0 : 1;
  }
  findings.require_equal(wrong, 0,
                         fmt::format("sums of other bits, {} lanes, nodes of {}, slices to {}",
                                     lanes, node_ranks, elements));
}

}  // namespace

void sums_have_the_same_bits_on_every_number_of_ranks(Communicator& world, Findings& findings) {
  constexpr std::int64_t kElements = 97;
  for (std::int64_t node_ranks = 1; node_ranks <= world.size(); ++node_ranks) {
    if (world.size() % node_ranks != 0) {
      continue;
    }
    const std::vector<grid::Range> uneven = uneven_slices(kElements, world.size());
    const auto blocked = [](std::int64_t lanes, std::int64_t ranks) {
      return grid::Assignment::blocked(grid::SumTree(lanes), ranks);
    };
    for (std::int64_t lanes = world.size(); lanes <= 24; lanes += world.size()) {
      require_ordered_sum(world, blocked(lanes, world.size()), node_ranks, uneven, findings);
      require_ordered_sum(world, grid::Assignment::interleaved(grid::SumTree(lanes), world.size()),
                          node_ranks, uneven, findings);
    }
    for (std::int64_t outer = 1; outer <= world.size(); ++outer) {
      if (world.size() % outer == 0) {
        require_ordered_sum(world,
                            grid::Assignment::product(
                                blocked(2 * outer, outer),
                                grid::Assignment::interleaved(
                                    grid::SumTree(3 * world.size() / outer), world.size() / outer)),
                            node_ranks, uneven, findings);
      }
    }
    // All elements in one slice, the others empty; and fewer elements than ranks.
    std::vector<grid::Range> slices(static_cast<std::size_t>(world.size()), {0, 0});
    slices.back() = {0, kElements};
    require_ordered_sum(world, blocked(2 * world.size(), world.size()), node_ranks, slices,
                        findings);
    slices.assign(slices.size(), {1, 1});
    slices.front() = {0, 1};
    require_ordered_sum(world, blocked(world.size(), world.size()), node_ranks, slices, findings);
  }
}

namespace {

/// Numbers that any order of additions sums to the same bits: element i of rank r's tensor.
template <typename T>
T exact_value(std::int64_t rank, std::int64_t element) {
  return static_cast<T>((rank + 1) * (element % 1000 - 300));
}

template <typename T>
std::vector<T> exact_values(std::int64_t rank, std::int64_t elements) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    values.push_back(exact_value<T>(rank, i));
  }
  return values;
}

template <typename T>
std::vector<T> exact_sums(std::int64_t ranks, const grid::Range& range) {
  std::vector<T> sums;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    sums.push_back(exact_value<T>(ranks * (ranks + 1) / 2 - 1, i));
  }
  return sums;
}

template <typename T>
void require_library_sums(Communicator& world, std::int64_t elements, Findings& findings) {
  std::vector<T> values = exact_values<T>(world.rank(), elements);
  world.all_reduce(TensorView(std::span(values), Shape{elements}));
  findings.require_that(values == exact_sums<T>(world.size(), {0, elements}),
                        fmt::format("all-reduce of {} elements", elements));
  // Two at once, of which the second is waited for first.
  const std::vector<grid::Range> uneven = uneven_slices(elements, world.size());
  std::vector<grid::Range> even;
  for (std::int64_t r = 0; r < world.size(); ++r) {
    even.push_back(grid::even_part(elements, world.size(), r));
  }
  std::vector<T> first = exact_values<T>(world.rank(), elements);
  std::vector<T> second = first;
  Request reduce_first =
      world.reduce_scatter(TensorView(std::span(first), Shape{elements}), uneven);
  Request reduce_second =
      world.reduce_scatter(TensorView(std::span(second), Shape{elements}), even);
  reduce_second.wait();
  reduce_first.wait();
  const auto require_own = [&](const std::vector<T>& sums, const std::vector<grid::Range>& slices) {
    const grid::Range own = slices[static_cast<std::size_t>(world.rank())];
    const std::vector<T> own_sums = exact_sums<T>(world.size(), own);
    std::vector<T> expected = exact_values<T>(world.rank(), elements);
    std::copy(own_sums.begin(), own_sums.end(), expected.begin() + own.begin);
    findings.require_that(sums == expected, fmt::format("reduce-scatter of {} elements to [{}, {})",
                                                        elements, own.begin, own.end));
  };
  require_own(first, uneven);
  require_own(second, even);
}

}  // namespace

void the_library_sums(Communicator& world, Findings& findings) {
  for (const std::int64_t elements : {1, 7, 97, 1000, 40000}) {
    require_library_sums<float>(world, elements, findings);
    require_library_sums<double>(world, elements, findings);
  }
  std::vector<float> values(10);
  const TensorView tensor{std::span(values), Shape{10}};
  std::vector<grid::Range> slices(static_cast<std::size_t>(world.size()), {10, 10});
  for (const grid::Range& first : {grid::Range{0, 9}, grid::Range{1, 10}, grid::Range{0, 11}}) {
    slices.front() = first;
    bool refused = false;
    try {
      static_cast<void>(world.reduce_scatter(tensor, slices));
    } catch (const std::logic_error&) {
      refused = true;
    }
    findings.require_that(refused, "slices that do not make up the tensor");
  }
}

}  // namespace strata::comm::test
