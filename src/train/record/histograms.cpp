#include "record/histograms.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "strata/device/host_copy.hpp"

namespace strata::train {
namespace {

constexpr std::int64_t kBlock = nn::ParameterLayout::kBlock;

// Exponent and the first three bits of the mantissa of a double, of 2^-40 and of 2^20.
constexpr int kShift = 49;
constexpr std::int64_t kSmallest = (1023 - 40) << 3;
constexpr std::int64_t kLargest = (1023 + 20) << 3;
/// Ranges of magnitude: those between, one below and one above.
constexpr std::int64_t kRanges = kLargest - kSmallest + 2;
static_assert(2 * kRanges == kHistogramBuckets);

/// The magnitude above range `range`.
double edge(std::int64_t range) {
  return range + 1 == kRanges ? std::numeric_limits<double>::max()
                              : std::bit_cast<double>((kSmallest + range) << kShift);
}

/// The numbers of a tensor: a count for each bucket, then least, greatest, sum and sum of squares
/// of each block. A rank fills in its own elements. Sums over ranks are exact: counts are whole
/// numbers, and each block is on one rank.
constexpr std::size_t size_of(std::int64_t blocks) {
  return kHistogramBuckets + 4 * static_cast<std::size_t>(blocks);
}

/// Counts elements that begin at a block.
void add(const ConstTensorView& elements, std::int64_t block, std::span<double> numbers) {
  with_stored(elements.dtype(), [&]<typename T>(T) {
    const std::span<const T> all = elements.host<T>();
    for (std::size_t first = 0; first < all.size(); first += kBlock) {
      const auto value_of = [&](std::size_t i) {
        return static_cast<double>(static_cast<Compute<T>>(all[i]));
      };
      double least = value_of(first);
      double greatest = least;
      double sum = 0.0;
      double squares = 0.0;
      for (std::size_t i = first; i < std::min<std::size_t>(first + kBlock, all.size()); ++i) {
        const double value = value_of(i);
        ++numbers[bucket_of(value)];
        least = std::min(least, value);
        greatest = std::max(greatest, value);
        sum += value;
        squares += value * value;
      }
      std::ranges::copy(std::array{least, greatest, sum, squares},
                        numbers.begin() + static_cast<std::ptrdiff_t>(size_of(block++)));
    }
  });
}

Histogram histogram_of(const std::string& name, std::span<const double> numbers) {
  Histogram result{.name = name, .limits = {}, .counts = {}};
  for (std::size_t i = 0; i < kHistogramBuckets; ++i) {
    const double count = numbers[i];
    result.count += count;
    if (count > 0.0 || (!result.counts.empty() && result.counts.back() > 0.0)) {
      result.limits.push_back(limit_of(i));
      result.counts.push_back(count);
    } else if (!result.counts.empty()) {
      result.limits.back() = limit_of(i);
    }
  }
  if (!result.counts.empty() && result.counts.back() == 0.0) {
    result.limits.pop_back();
    result.counts.pop_back();
  }
  for (std::size_t at = kHistogramBuckets; at < numbers.size(); at += 4) {
    const bool first = at == kHistogramBuckets;
    // Adding 0 makes -0 and 0 one.
    result.min = (first ? numbers[at] : std::min(result.min, numbers[at])) + 0.0;
    result.max = (first ? numbers[at + 1] : std::max(result.max, numbers[at + 1])) + 0.0;
    result.sum += numbers[at + 2];
    result.sum_squares += numbers[at + 3];
  }
  return result;
}

/// Blocks of the shards of a parameter before that which begins at index `end` of the split
/// dimension.
std::int64_t blocks_before(const nn::ParameterSpec& spec, std::int64_t shards, std::int64_t end) {
  if (spec.split == nn::kNotSplit) {
    return end > 0 ? (spec.shape.count() + kBlock - 1) / kBlock : 0;
  }
  const std::int64_t extent = spec.shape[static_cast<std::size_t>(spec.split)];
  std::int64_t blocks = 0;
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    const grid::Range part = nn::shard_part(extent, spec.unit, shards, shard);
    if (part.begin < end) {
      blocks += (spec.shape.count() / extent * part.count() + kBlock - 1) / kBlock;
    }
  }
  return blocks;
}

void add_slice(const io::TensorSlice& slice, std::int64_t block, device::Stream& stream,
               std::span<double> numbers) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 21;
  static_assert(kMostElements % kBlock == 0);
  for (std::int64_t first = 0; first < slice.data.count(); first += kMostElements) {
    const std::int64_t count = std::min(kMostElements, slice.data.count() - first);
    const device::HostView piece(slice.data.flat_slice(first, count), stream);
    add(piece.view(), block + (slice.range.begin + first) / kBlock, numbers);
  }
}

}  // namespace

std::size_t bucket_of(double value) {
  const bool negative = value < 0.0;
  // A bucket begins with its least number: among negative ones with the largest magnitude.
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(std::abs(value)) - (negative ? 1 : 0);
  const std::int64_t range = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(bits >> kShift) - kSmallest + 1, 0, kRanges - 1);
  return static_cast<std::size_t>(negative ? kRanges - 1 - range : kRanges + range);
}

double limit_of(std::size_t bucket) {
  const std::int64_t range = static_cast<std::int64_t>(bucket) - kRanges;
  return range >= 0 ? edge(range) : range == -1 ? 0.0 : -edge(-range - 2);
}

std::vector<Histogram> histograms_of(const std::string& prefix,
                                     std::span<const io::TensorSlice> slices,
                                     const plan::Plan& plan, comm::Communicator& world,
                                     device::Stream& stream) {
  constexpr std::size_t kMostNumbers = std::size_t{1} << 20;  // of a message, or one parameter
  const std::int64_t shards = plan.config.numerics.shards;
  std::vector<Histogram> histograms;
  std::vector<std::string> names;
  std::vector<std::size_t> ends;
  std::vector<double> numbers;
  const auto add_up = [&] {
    world.all_reduce(
        TensorView(std::span(numbers), Shape{static_cast<std::int64_t>(numbers.size())}));
    std::size_t begin = 0;
    for (std::size_t i = 0; i < names.size(); begin = ends[i++]) {
      Histogram histogram =
          histogram_of(names[i], std::span(numbers).subspan(begin, ends[i] - begin));
      if (world.rank() == 0 && histogram.count > 0.0) {
        histograms.push_back(std::move(histogram));
      }
    }
    names.clear();
    ends.clear();
    numbers.clear();
  };
  for (const nn::ParameterSpec& spec : plan.model->parameters()) {
    if (spec.ownership == nn::Ownership::kBorrowed) {
      continue;
    }
    const std::size_t size =
        size_of(blocks_before(spec, shards, std::numeric_limits<std::int64_t>::max()));
    if (!names.empty() && numbers.size() + size > kMostNumbers) {
      add_up();
    }
    names.push_back(prefix + "/" + spec.name);
    numbers.resize(numbers.size() + size);
    ends.push_back(numbers.size());
    for (const io::TensorSlice& slice : slices) {
      if (slice.name == names.back()) {
        add_slice(slice, blocks_before(spec, shards, slice.shard.first), stream,
                  std::span(numbers).last(size));
      }
    }
  }
  add_up();
  return histograms;
}

}  // namespace strata::train
