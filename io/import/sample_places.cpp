#include "import/sample_places.hpp"

#include <algorithm>
#include <numeric>

namespace strata::io {
namespace {

RandomStream stream_of(std::uint64_t seed, std::string_view what) {
  return {seed, RandomPurpose::kShuffle, subject_of(what)};
}

/// How many of each class a split of `wanted` samples gets: its share, rounded so that the sum is
/// exact. Pre: wanted is at most the sum of `counts`.
std::vector<std::int64_t> shares_of(std::span<const std::int64_t> counts, std::int64_t wanted) {
  __extension__ using Wide = unsigned __int128;
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  std::vector<std::int64_t> shares;
  shares.reserve(counts.size());
  std::int64_t seen = 0;
  std::int64_t given = 0;
  for (const std::int64_t count : counts) {
    seen += count;
    const auto upto = static_cast<std::int64_t>(
        total == 0 ? 0
                   : Wide{static_cast<std::uint64_t>(wanted)} * static_cast<std::uint64_t>(seen) /
                         static_cast<std::uint64_t>(total));
    shares.push_back(upto - given);
    given = upto;
  }
  return shares;
}

}  // namespace

std::vector<std::int64_t> counts_of_labels(std::span<const std::int32_t> labels) {
  std::vector<std::int64_t> counts;
  for (const std::int32_t label : labels) {
    const auto index = static_cast<std::size_t>(label);
    counts.resize(std::max(counts.size(), index + 1));
    ++counts[index];
  }
  return counts;
}

SamplePlaces::SamplePlaces(const SplitCounts& counts, std::optional<std::uint64_t> seed)
    : counts_(counts) {
  if (seed) {
    train_.emplace(stream_of(*seed, "train places"), std::max<std::int64_t>(1, counts.train));
    test_.emplace(stream_of(*seed, "test places"), std::max<std::int64_t>(1, counts.test));
  }
}

SamplePlaces SamplePlaces::in_order(const SplitCounts& counts) {
  return {counts, std::nullopt};
}

SamplePlaces SamplePlaces::shuffled_apart(const SplitCounts& counts, std::uint64_t seed) {
  return {counts, seed};
}

SamplePlaces SamplePlaces::shuffled(const SplitCounts& counts, std::int64_t samples,
                                    std::span<const std::int32_t> labels, std::uint64_t seed) {
  SamplePlaces all(counts, seed);
  std::vector<std::int64_t> left = labels.empty() ? std::vector{samples} : counts_of_labels(labels);
  // One sample of each class stays in train, where there are enough others for test.
  std::vector<std::int64_t> others = left;
  std::int64_t kept = 0;
  for (std::int64_t& count : others) {
    kept += count > 0 ? 1 : 0;
    count -= count > 0 ? 1 : 0;
  }
  std::vector<std::int64_t> test =
      shares_of(counts.test <= samples - kept ? others : left, counts.test);
  for (std::size_t i = 0; i < left.size(); ++i) {
    left[i] -= test[i];
  }
  std::vector<std::int64_t> train = shares_of(left, counts.train);

  // Visited in random order, the first samples of a class are those of test.
  const Permutation visit(stream_of(seed, "import"), samples);
  all.places_.resize(static_cast<std::size_t>(samples), -1);
  std::int64_t train_done = 0;
  std::int64_t test_done = 0;
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto sample = static_cast<std::size_t>(visit(i));
    const auto label = labels.empty() ? 0 : static_cast<std::size_t>(labels[sample]);
    if (test[label] > 0) {
      --test[label];
      all.places_[sample] = counts.train + (*all.test_)(test_done++);
    } else if (train[label] > 0) {
      --train[label];
      all.places_[sample] = (*all.train_)(train_done++);
    }
  }
  return all;
}

std::int64_t SamplePlaces::operator()(std::int64_t sample) const {
  if (!places_.empty()) {
    return places_[static_cast<std::size_t>(sample)];
  }
  if (sample >= counts_.train + counts_.test) {
    return -1;
  }
  if (!train_) {
    return sample;
  }
  return sample < counts_.train ? (*train_)(sample)
                                : counts_.train + (*test_)(sample - counts_.train);
}

std::vector<std::int64_t> SamplePlaces::samples() const {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(counts_.train + counts_.test));
  for (std::int64_t sample = 0, found = 0; found < std::ssize(samples); ++sample) {
    if (const std::int64_t place = (*this)(sample); place >= 0) {
      samples[static_cast<std::size_t>(place)] = sample;
      ++found;
    }
  }
  return samples;
}

}  // namespace strata::io
