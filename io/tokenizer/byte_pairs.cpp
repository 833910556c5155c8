#include "tokenizer/byte_pairs.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/narrow.hpp"

namespace strata::io {
namespace {

std::uint64_t pair_of(std::uint32_t left, std::uint32_t right) {
  return std::uint64_t{left} << 32U | right;
}

// Heap order: lowest rank first, then leftmost.
bool comes_later(const BytePairs::Scratch::Candidate& a, const BytePairs::Scratch::Candidate& b) {
  return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
}

}  // namespace

BytePairs::BytePairs(BytePairTables tables) : tables_(std::move(tables)) {
  for (const SplitStep& step : tables_.splits) {
    splits_.emplace_back(step.expression);
  }
  const auto add = [&](std::uint32_t id) {
    const std::string& token = tables_.tokens[id];
    if (words_.emplace(token, id).second && token.size() == 1) {
      byte_ids_[static_cast<unsigned char>(token[0])] = id;
    }
  };
  for (std::size_t id = 0; id < tables_.tokens.size(); ++id) {
    if (!is_added(tables_.added, id)) {
      add(static_cast<std::uint32_t>(id));
    }
  }
  // An added token may have the bytes of another, or be that of a byte.
  for (const AddedToken& token : tables_.added) {
    add(token.id);
  }
  table_.resize(std::bit_ceil(2 * tables_.merges.size() + 2));
  for (std::size_t rank = 0; rank < tables_.merges.size(); ++rank) {
    const auto [left, right] = tables_.merges[rank];
    const auto result = words_.find(tables_.tokens[left] + tables_.tokens[right]);
    require(result != words_.end(), "the result of merge {} is no token", rank);
    Merge& merge = table_[slot_of(pair_of(left, right))];
    const bool by_result = tables_.order == MergeOrder::kLowestResult;
    merge = {pair_of(left, right), by_result ? result->second : static_cast<std::uint32_t>(rank),
             result->second};
  }
}

std::size_t BytePairs::slot_of(std::uint64_t pair) const {
  const std::size_t mask = table_.size() - 1;
  // Fibonacci hashing: the product's upper half mixes all of the pair's bits.
  std::size_t slot = static_cast<std::size_t>(pair * 0x9E3779B97F4A7C15U >> 32U) & mask;
  while (table_[slot].pair != pair && table_[slot].pair != kNoPair) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

void BytePairs::push_candidate(Scratch& scratch, std::int32_t at) const {
  const Scratch::Symbol& left = scratch.symbols[static_cast<std::size_t>(at)];
  if (left.next < 0) {
    return;
  }
  const Scratch::Symbol& right = scratch.symbols[static_cast<std::size_t>(left.next)];
  const Merge& merge = table_[slot_of(pair_of(left.id, right.id))];
  if (merge.pair != kNoPair) {
    scratch.heap.push_back({merge.rank, at, left.id, right.id});
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
  }
}

void BytePairs::encode(std::string_view word, Scratch& scratch,
                       std::vector<std::uint32_t>& ids) const {
  constexpr std::uint32_t kGone = ~std::uint32_t{0};
  if (tables_.whole_words == WholeWords::kYes) {
    const auto whole = words_.find(word);
    if (whole != words_.end() && !is_added(tables_.added, whole->second)) {
      ids.push_back(whole->second);
      return;
    }
  }
  const int count = checked_int(std::ssize(word), "a word's length");
  auto& symbols = scratch.symbols;
  symbols.clear();
  scratch.heap.clear();
  for (int i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    symbols.push_back({byte_ids_[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int i = 0; i + 1 < count; ++i) {
    push_candidate(scratch, i);
  }
  // With kAllOfPair, all pairs of one rank are merged, left to right, before new pairs are pushed:
  // a new pair may have a lower rank where two merges have the same result.
  while (!scratch.heap.empty()) {
    const std::uint32_t rank = scratch.heap.front().rank;
    scratch.merged.clear();
    while (!scratch.heap.empty() && scratch.heap.front().rank == rank) {
      const Scratch::Candidate candidate = scratch.heap.front();
      std::pop_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
      scratch.heap.pop_back();
      Scratch::Symbol& left = symbols[static_cast<std::size_t>(candidate.at)];
      if (left.id != candidate.left || left.next < 0) {
        continue;
      }
      Scratch::Symbol& right = symbols[static_cast<std::size_t>(left.next)];
      if (right.id != candidate.right) {
        continue;
      }
      left.id = table_[slot_of(pair_of(candidate.left, candidate.right))].result;
      left.next = right.next;
      right.id = kGone;
      if (left.next >= 0) {
        symbols[static_cast<std::size_t>(left.next)].previous = candidate.at;
      }
      scratch.merged.push_back(candidate.at);
      if (tables_.order != MergeOrder::kAllOfPair) {
        break;
      }
    }
    for (const std::int32_t at : scratch.merged) {
      const std::int32_t previous = symbols[static_cast<std::size_t>(at)].previous;
      if (previous >= 0) {
        push_candidate(scratch, previous);
      }
      push_candidate(scratch, at);
    }
  }
  for (std::int32_t at = count > 0 ? 0 : -1; at >= 0;
       at = symbols[static_cast<std::size_t>(at)].next) {
    ids.push_back(symbols[static_cast<std::size_t>(at)].id);
  }
}

std::size_t CachedBytePairs::Hash::operator()(std::string_view word) const {
  return hash_of(word);
}

void CachedBytePairs::encode(std::string_view word, std::vector<std::uint32_t>& ids) {
  // Longer words rarely repeat. The bound on words keeps the memory below about 100 MiB.
  constexpr std::size_t kLongestKept = 64;
  constexpr std::size_t kMostWords = std::size_t{1} << 19;
  if (word.size() > kLongestKept) {
    pairs_.encode(word, scratch_, ids);
    return;
  }
  const auto known = entries_.find(word);
  if (known != entries_.end()) {
    const auto first = ids_.begin() + known->second.first;
    ids.insert(ids.end(), first, first + known->second.count);
    return;
  }
  const std::size_t before = ids.size();
  pairs_.encode(word, scratch_, ids);
  if (entries_.size() < kMostWords) {
    entries_.emplace(word, Entry{static_cast<std::uint32_t>(ids_.size()),
                                 static_cast<std::uint32_t>(ids.size() - before)});
    ids_.insert(ids_.end(), ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
  }
}

}  // namespace strata::io
