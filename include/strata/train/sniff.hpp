#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/comm/summation.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/ops/context.hpp"

namespace strata::train {

/// The parts of a sniff test, in order.
enum class SniffPart { kProducts, kNorm, kReduction, kMessages };

constexpr auto enum_names(SniffPart) {
  return names_in_order("products", "norm and softmax", "reductions", "messages");
}

inline constexpr std::size_t kSniffParts = enum_table<SniffPart>().size();

/// What one rank computed in a sniff test.
struct SniffResult {
  /// Of the processor: ranks with one kind must have the same bits.
  std::uint64_t kind = 0;
  /// A hash of each part's results; of reductions and messages, whose results are known, 0 where
  /// they are right.
  std::array<std::uint64_t, kSniffParts> bits{};
  /// 1 where a part gave other bits when computed again.
  std::array<std::uint8_t, kSniffParts> varies{};
  std::array<double, kSniffParts> seconds{};  ///< of the fastest round
  std::int64_t sender = -1;                   ///< the rank whose message arrived wrong; -1: none
};

/// Where a sniff test runs.
struct SniffSetup {
  ops::Context& context;
  comm::Groups& groups;
  DType dtype = DType::kFloat32;
  comm::Summation sums = comm::Summation::kInvariant;
  std::span<const comm::Route> routes;  ///< open in the pipeline group
  /// Called in each round with the results of a part, which tests disturb.
  std::function<void(SniffPart, const TensorView&)> hook = {};
};

/// Every rank computes the same small problem three times: products as of a forward and a backward
/// pass, a norm and a softmax of them, sums over its data and tensor groups, and a message along
/// each route. Takes about 20 MB of a GPU's memory meanwhile. Returns: the results of all ranks.
/// Communication: collective over the world.
[[nodiscard]] std::vector<SniffResult> sniff(const SniffSetup& setup);

/// What a sniff test found of one rank.
struct SniffFinding {
  std::int64_t rank = 0;
  std::string what;

  friend bool operator==(const SniffFinding&, const SniffFinding&) = default;
};
struct SniffFindings {
  std::vector<SniffFinding> wrong;  ///< in order of the ranks; of each its first wrong part
  std::vector<SniffFinding> slow;
};

/// Compares the ranks of each kind: those without the majority's bits are wrong, or all of them
/// without a majority. A rank is slow where a part takes more than 3 times the median of its kind,
/// and 5 ms more than it, of reductions and messages 20 ms.
[[nodiscard]] SniffFindings findings_of(std::span<const SniffResult> ranks);

/// As in "rank 2 on n17 (cpu): products have ..; rank 3 on ..". `device`: of this rank.
/// Communication: an all-gather over the world.
[[nodiscard]] std::string text_of(comm::Communicator& world, const device::Device& device,
                                  std::span<const SniffFinding> findings);

}  // namespace strata::train
