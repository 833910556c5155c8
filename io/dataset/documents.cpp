#include "strata/io/documents.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "strata/core/error.hpp"

namespace strata::io {
namespace {

/// The parts of all documents that fit a context, in the order of the stream.
std::vector<Piece> cut(const Documents& documents, std::int64_t context) {
  std::vector<Piece> pieces;
  for (std::int64_t d = 0; d < std::ssize(documents.ends); ++d) {
    const std::int64_t last = documents.end(d) - 1;  // a target alone
    for (std::int64_t first = documents.begin(d); first < last; first += context) {
      pieces.push_back({first, std::min(context, last - first)});
    }
  }
  return pieces;
}

/// The sample of each piece.
std::vector<std::int64_t> best_fit(std::span<const Piece> pieces, std::int64_t context) {
  std::vector<std::int64_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  const auto inputs = [&](std::int64_t piece) {
    return pieces[static_cast<std::size_t>(piece)].inputs;
  };
  std::ranges::stable_sort(order, std::ranges::greater(), inputs);
  // By room: the samples that have so much left, and which rooms there are.
  std::vector<std::vector<std::int64_t>> samples(static_cast<std::size_t>(context) + 1);
  std::set<std::int64_t> rooms;
  std::vector<std::int64_t> sample_of(pieces.size());
  std::int64_t count = 0;
  for (const std::int64_t piece : order) {
    const auto room = rooms.lower_bound(inputs(piece));
    std::int64_t left = context;
    std::int64_t sample = count;
    if (room == rooms.end()) {
      ++count;
    } else {
      left = *room;
      std::vector<std::int64_t>& fitting = samples[static_cast<std::size_t>(left)];
      sample = fitting.back();
      fitting.pop_back();
      if (fitting.empty()) {
        rooms.erase(room);
      }
    }
    left -= inputs(piece);
    if (left > 0) {
      samples[static_cast<std::size_t>(left)].push_back(sample);
      rooms.insert(left);
    }
    sample_of[static_cast<std::size_t>(piece)] = sample;
  }
  return sample_of;
}

}  // namespace

std::int64_t Documents::counted_tokens() const {
  if (counted.empty()) {
    return ends.back();
  }
  std::int64_t tokens = 0;
  for (std::size_t run = 0; run < counted.size(); run += 2) {
    tokens += counted[run + 1] - counted[run];
  }
  return tokens;
}

std::int64_t Documents::index_of(std::int64_t token) const {
  return std::ranges::upper_bound(ends, token) - ends.begin();
}

bool Documents::counts(std::int64_t token) const {
  return counted.empty() || (std::ranges::upper_bound(counted, token) - counted.begin()) % 2 == 1;
}

Documents Documents::part(std::int64_t first, std::int64_t tokens) const {
  Documents result{.pairs = pairs};
  for (auto end = std::ranges::upper_bound(ends, first); end != ends.end() && *end < first + tokens;
       ++end) {
    if (result.ends.empty() || result.ends.back() != *end - first) {  // those without tokens
      result.ends.push_back(*end - first);
    }
  }
  result.ends.push_back(tokens);
  for (std::size_t run = 0; run < counted.size(); run += 2) {
    const std::int64_t begin = std::max(counted[run], first);
    const std::int64_t end = std::min(counted[run + 1], first + tokens);
    if (begin < end) {
      result.counted.insert(result.counted.end(), {begin - first, end - first});
    }
  }
  // An empty list would count all.
  if (!counted.empty() && result.counted.empty()) {
    result.counted = {0, 0};
  }
  return result;
}

void Documents::add(const Documents& others, std::int64_t first, bool masked) {
  pairs = others.pairs;
  for (const std::int64_t end : others.ends) {
    ends.push_back(first + end);
  }
  if (masked && others.counted.empty()) {
    counted.insert(counted.end(), {first, ends.back()});
  }
  for (const std::int64_t bound : others.counted) {
    counted.push_back(first + bound);
  }
}

PackedSamples::PackedSamples(const Documents& documents, std::int64_t context, Packing packing) {
  require(context > 0 && packing != Packing::kBlocks, "documents packed into contexts of {}",
          context);
  if (packing == Packing::kPairs) {
    require(std::ssize(documents.ends) % 2 == 0, "pairs of {} documents", documents.ends.size());
    for (std::int64_t d = 0; d < std::ssize(documents.ends); ++d) {
      const std::int64_t inputs = documents.end(d) - documents.begin(d) - 1;
      pieces_.push_back({documents.begin(d), std::max<std::int64_t>(0, inputs)});
    }
  } else {
    pieces_ = cut(documents, context);
  }
  for (const Piece& piece : pieces_) {
    inputs_ += piece.inputs;
  }
  if (packing == Packing::kPairs) {
    for (std::int64_t end = 2; end <= std::ssize(pieces_); end += 2) {
      ends_.push_back(end);
    }
    return;
  }
  if (packing == Packing::kDocuments) {
    ends_.resize(pieces_.size());
    std::iota(ends_.begin(), ends_.end(), 1);
    return;
  }
  const std::vector<std::int64_t> sample_of = best_fit(pieces_, context);
  for (const std::int64_t sample : sample_of) {
    ends_.resize(std::max(ends_.size(), static_cast<std::size_t>(sample) + 1));
    ++ends_[static_cast<std::size_t>(sample)];
  }
  std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
  // In the order of the stream within a sample.
  std::vector<Piece> sorted(pieces_.size());
  std::vector<std::int64_t> next(ends_.size());
  std::copy(ends_.begin(), ends_.end() - (ends_.empty() ? 0 : 1),
            next.begin() + (next.empty() ? 0 : 1));
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    sorted[static_cast<std::size_t>(next[static_cast<std::size_t>(sample_of[i])]++)] = pieces_[i];
  }
  pieces_ = std::move(sorted);
}

std::span<const Piece> PackedSamples::pieces(std::int64_t sample) const {
  const auto index = static_cast<std::size_t>(sample);
  const std::int64_t begin = sample == 0 ? 0 : ends_[index - 1];
  return std::span(pieces_).subspan(static_cast<std::size_t>(begin),
                                    static_cast<std::size_t>(ends_[index] - begin));
}

}  // namespace strata::io
