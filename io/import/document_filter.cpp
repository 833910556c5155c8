#include "import/document_filter.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

namespace strata::io {

void DocumentCounts::add(const DocumentCounts& others) {
  documents += others.documents;
  repeated += others.repeated;
  too_short += others.too_short;
  too_long += others.too_long;
  cut += others.cut;
  longer += others.longer;
}

bool DocumentFilter::takes(std::string_view text) {
  if (rules_ == DocumentRules()) {
    return true;
  }
  ++counts_.documents;
  const auto characters =
      std::ssize(text) - std::count_if(text.begin(), text.end(), continues_character);
  if (characters < rules_.min_characters) {
    ++counts_.too_short;
    return false;
  }
  if (characters > rules_.max_characters) {
    ++counts_.too_long;
    return false;
  }
  if (rules_.repeated == Repeated::kImported && rules_.held_out == 0.0) {
    return true;
  }
  const std::uint64_t hash = hash_of(text);
  const bool taken = is_new(hash);
  if (taken) {
    hashes_.push_back(hash);
  }
  return taken;
}

bool DocumentFilter::takes_of_piece(std::uint64_t hash) {
  const bool taken = is_new(hash);
  if (taken && rules_.held_out > 0.0) {
    held_out_.push_back(std::ldexp(static_cast<double>(hash >> 11U), -53) < rules_.held_out);
  }
  return taken;
}

bool DocumentFilter::is_new(std::uint64_t hash) {
  const bool repeats = rules_.repeated == Repeated::kLeftOut && !seen_.insert(hash).second;
  counts_.repeated += repeats ? 1 : 0;
  return !repeats;
}

std::vector<std::string> DocumentFilter::notes() const {
  std::vector<std::string> notes;
  const auto note = [&](std::int64_t count, const std::string& why) {
    if (count > 0) {
      notes.push_back(fmt::format("left out: {} of {} documents, which {}", count_text(count),
                                  count_text(counts_.documents), why));
    }
  };
  note(counts_.repeated, "repeat an earlier one");
  note(counts_.too_short,
       fmt::format("have fewer than {} characters", count_text(rules_.min_characters)));
  note(counts_.too_long,
       fmt::format("have more than {} characters", count_text(rules_.max_characters)));
  const std::string tokens = fmt::format("{} tokens", count_text(rules_.max_tokens));
  note(counts_.longer, rules_.too_long == TooLong::kCut
                           ? "have no whole message to learn in their first " + tokens
                           : "have more than " + tokens);
  if (counts_.cut > 0) {
    notes.push_back(fmt::format("cut: {} of {} documents, after the last learned message within {}",
                                count_text(counts_.cut), count_text(counts_.documents), tokens));
  }
  return notes;
}

SplitDocuments split_documents(const Documents& documents, const std::vector<bool>& held_out) {
  const std::size_t each = documents.pairs ? 2 : 1;
  require(documents.ends.size() == each * held_out.size(), "{} documents, {} of them chosen",
          documents.ends.size(), held_out.size());
  const std::vector<std::int64_t>& runs = documents.counted;
  SplitDocuments result{.documents = {.pairs = documents.pairs}};
  std::int64_t tokens = 0;
  for (const bool side : {false, true}) {
    std::size_t run = 0;
    for (std::size_t d = 0; d < documents.ends.size(); ++d) {
      const bool is_here = held_out[d / each] == side;
      const std::int64_t begin = documents.begin(static_cast<std::int64_t>(d));
      const std::int64_t end = documents.ends[d];
      for (; run < runs.size() && runs[run] < end; run += 2) {
        const std::int64_t first = tokens + std::max(runs[run], begin) - begin;
        const std::int64_t last = tokens + std::min(runs[run + 1], end) - begin;
        if (is_here && first < last) {
          std::vector<std::int64_t>& counted = result.documents.counted;
          if (!counted.empty() && counted.back() == first) {
            counted.back() = last;
          } else {
            counted.insert(counted.end(), {first, last});
          }
        }
        if (runs[run + 1] > end) {
          break;  // goes on in the next document
        }
      }
      if (is_here) {
        tokens += end - begin;
        result.documents.ends.push_back(tokens);
        if (!result.runs.empty() && result.runs.back().end == begin) {
          result.runs.back().end = end;
        } else {
          result.runs.push_back({begin, end});
        }
      }
    }
    result.train_tokens = side ? result.train_tokens : tokens;
  }
  return result;
}

}  // namespace strata::io
