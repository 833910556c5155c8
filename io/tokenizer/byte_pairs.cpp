#include "tokenizer/byte_pairs.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/narrow.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

namespace strata::io {
namespace {

std::uint64_t pair_of(std::uint32_t left, std::uint32_t right) {
  return std::uint64_t{left} << 32U | right;
}

/// Two characters of a text.
std::uint64_t neighbours_in(std::string_view text, std::size_t left, std::size_t right) {
  return pair_of(first_character(text.substr(left)).value,
                 first_character(text.substr(right)).value);
}

// Heap order: lowest rank first, then leftmost.
bool comes_later(const BytePairs::Scratch::Candidate& a, const BytePairs::Scratch::Candidate& b) {
  return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
}

}  // namespace

int byte_of(std::string_view token) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  constexpr std::size_t kLength = 6;
  if (token.size() != kLength || !token.starts_with("<0x") || token.back() != '>') {
    return -1;
  }
  const std::size_t high = kDigits.find(token[3]);
  const std::size_t low = kDigits.find(token[4]);
  return high == std::string_view::npos || low == std::string_view::npos
             ? -1
             : static_cast<int>(16 * high + low);
}

std::string CharacterRules::text_of(std::string_view token, bool is_first) const {
  if (const int byte = joins_bytes ? byte_of(token) : -1; byte >= 0) {
    return {static_cast<char>(byte)};
  }
  std::string result;
  while (!token.empty()) {
    const std::size_t at = space.empty() ? token.size() : std::min(token.find(space), token.size());
    result += token.substr(0, at);
    token.remove_prefix(at);
    if (!token.empty()) {
      result += is_first && drops_spaces ? "" : " ";
      token.remove_prefix(space.size());
    }
  }
  return result;
}

Unigram::Unigram(const BytePairTables& tables) : rules_(*tables.characters) {
  constexpr double kUnknownPenalty = 10.0;
  unknown_score_ = std::ranges::min(tables.scores) - kUnknownPenalty;
  for (std::size_t i = 0; i < tables.scores.size(); ++i) {
    const auto id = static_cast<std::uint32_t>(i);
    const std::string& token = tables.tokens[i];
    const AddedToken* added = find_added(tables.added, id);
    const bool is_special = added != nullptr && added->special;
    if (const int byte = byte_of(token); byte >= 0) {
      byte_ids_[static_cast<std::size_t>(byte)] = id;
    }
    if (!token.empty() && !is_special && rules_.unknown != id) {
      pieces_.push_back({token, id, tables.scores[i]});
    }
  }
  std::ranges::sort(pieces_, {}, &Piece::text);
}

void Unigram::encode(std::string_view word, std::vector<std::uint32_t>& ids) const {
  /// The best sequence of tokens up to a place.
  struct Best {
    double score = 0.0;
    std::size_t begin = std::string_view::npos;  // of its last token
    std::uint32_t id = 0;
  };
  const auto unknown = static_cast<std::uint32_t>(rules_.unknown);
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&](std::size_t begin, std::size_t size, std::uint32_t id, double score) {
    Best& known = best[begin + size];
    const double sum = score + best[begin].score;
    if (known.begin == std::string_view::npos || sum > known.score) {
      known = {sum, begin, id};
    }
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::string_view rest = word.substr(at);
    const std::size_t character = first_character(rest).bytes;
    bool is_token = false;
    // Those that begin with what was read are beside each other.
    auto first = pieces_.begin();
    auto last = pieces_.end();
    for (std::size_t size = 1; size <= rest.size() && first != last; ++size) {
      const auto byte_of_piece = [&](const Piece& piece) {
        return piece.text.size() < size ? -1 : static_cast<unsigned char>(piece.text[size - 1]);
      };
      const int byte = static_cast<unsigned char>(rest[size - 1]);
      first = std::ranges::lower_bound(first, last, byte, {}, byte_of_piece);
      last = std::ranges::upper_bound(first, last, byte, {}, byte_of_piece);
      if (first != last && first->text.size() == size) {
        offer(at, size, first->id, first->score);
        is_token = is_token || size == character;
      }
    }
    if (!is_token) {
      offer(at, character, unknown, unknown_score_);
    }
    at += character;
  }
  const std::size_t before = ids.size();
  bool after_unknown = false;
  for (std::size_t end = word.size(); end > 0; end = best[end].begin) {
    const Best& token = best[end];
    const bool is_unknown = token.id == unknown;
    if (is_unknown && rules_.has_bytes) {
      for (std::size_t at = end; at-- > token.begin;) {
        ids.push_back(byte_ids_[static_cast<unsigned char>(word[at])]);
      }
    } else if (!is_unknown || !after_unknown) {
      ids.push_back(token.id);
    }
    after_unknown = is_unknown;
  }
  std::reverse(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
}

BytePairs::BytePairs(BytePairTables tables) : tables_(std::move(tables)) {
  for (const SplitStep& step : tables_.splits) {
    splits_.emplace_back(step.expression);
  }
  if (!tables_.scores.empty()) {
    unigram_.emplace(tables_);
    return;
  }
  const bool of_characters = tables_.characters.has_value();
  const auto add = [&](std::uint32_t id) {
    const std::string& token = tables_.tokens[id];
    const int byte = of_characters       ? byte_of(token)
                     : token.size() == 1 ? static_cast<unsigned char>(token[0])
                                         : -1;
    if (words_.emplace(token, id).second && byte >= 0) {
      byte_ids_[static_cast<std::size_t>(byte)] = id;
    }
    for (std::size_t at = 0, next = 0; of_characters && at < token.size(); at = next) {
      next = at + first_character(std::string_view(token).substr(at)).bytes;
      if (next < token.size()) {
        neighbours_.insert(neighbours_in(token, at, next));
      }
    }
  };
  for (std::size_t id = 0; id < tables_.tokens.size(); ++id) {
    if (!is_added(tables_.added, id)) {
      add(static_cast<std::uint32_t>(id));
    }
  }
  // An added token may have the bytes of another, or be that of a byte.
  for (const AddedToken& token : tables_.added) {
    if (!of_characters || !token.special) {
      add(token.id);
    } else if (const int byte = byte_of(token.text); byte >= 0) {
      byte_ids_[static_cast<std::size_t>(byte)] = token.id;
    }
  }
  // Whether a token stands for other characters than it is written with.
  const auto stands_for_others = [&](std::uint32_t id) {
    return of_characters && (byte_of(tables_.tokens[id]) >= 0 || tables_.characters->unknown == id);
  };
  can_cut_ = of_characters && tables_.whole_words == WholeWords::kNo;
  table_.resize(std::bit_ceil(2 * tables_.merges.size() + 2));
  for (std::size_t rank = 0; rank < tables_.merges.size(); ++rank) {
    const auto [left, right] = tables_.merges[rank];
    const auto result = words_.find(tables_.tokens[left] + tables_.tokens[right]);
    if (of_characters && result == words_.end()) {
      continue;  // a special token stands for no text
    }
    can_cut_ = can_cut_ && !stands_for_others(left) && !stands_for_others(right);
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

std::size_t BytePairs::word_of(std::string_view text, End end) const {
  const std::size_t whole = end == End::kNotYet ? 0 : text.size();
  if (!can_cut_ || text.empty()) {
    return whole;
  }
  const auto is_unknown = [&](std::size_t begin, std::size_t size) {
    return !words_.contains(text.substr(begin, size));
  };
  // No merge joins characters that are beside each other in no token.
  const CharacterRules& rules = *tables_.characters;
  const bool fuses = !rules.has_bytes && rules.fuses_unknown;
  std::size_t at = 0;
  for (std::size_t next = first_character(text).bytes; next < text.size();) {
    const std::size_t size = first_character(text.substr(next)).bytes;
    if (!neighbours_.contains(neighbours_in(text, at, next)) &&
        !(fuses && is_unknown(at, next - at) && is_unknown(next, size))) {
      return next;
    }
    at = next;
    next += size;
  }
  return whole;
}

void BytePairs::push_symbols(std::string_view word, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  const auto push = [&](std::uint32_t id) {
    const auto place = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, place - 1, place + 1});
  };
  symbols.clear();
  const auto push_bytes = [&](std::string_view bytes) {
    for (const char byte : bytes) {
      push(byte_ids_[static_cast<unsigned char>(byte)]);
    }
  };
  if (!tables_.characters) {
    push_bytes(word);
  }
  bool after_unknown = false;
  while (tables_.characters && !word.empty()) {
    const std::string_view character = word.substr(0, first_character(word).bytes);
    const auto known = words_.find(character);
    const bool is_unknown = known == words_.end() && !tables_.characters->has_bytes;
    if (known != words_.end()) {
      push(known->second);
    } else if (!is_unknown) {
      push_bytes(character);
    } else if (!after_unknown || !tables_.characters->fuses_unknown) {
      push(static_cast<std::uint32_t>(tables_.characters->unknown));
    }
    after_unknown = is_unknown;
    word.remove_prefix(character.size());
  }
  if (!symbols.empty()) {
    symbols.back().next = -1;
  }
}

void BytePairs::encode(std::string_view word, Scratch& scratch,
                       std::vector<std::uint32_t>& ids) const {
  constexpr std::uint32_t kGone = ~std::uint32_t{0};
  if (unigram_) {
    unigram_->encode(word, ids);
    return;
  }
  if (tables_.whole_words == WholeWords::kYes) {
    const auto whole = words_.find(word);
    if (whole != words_.end() && !is_added(tables_.added, whole->second)) {
      ids.push_back(whole->second);
      return;
    }
  }
  static_cast<void>(checked_int(std::ssize(word), "a word's length"));
  push_symbols(word, scratch);
  auto& symbols = scratch.symbols;
  const auto count = static_cast<std::int32_t>(symbols.size());
  scratch.heap.clear();
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
