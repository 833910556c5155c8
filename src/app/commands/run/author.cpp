#include "commands/run/author.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"

namespace strata::app {
namespace {

/// Replicas wait for each other after so many batches, as texts have different lengths.
constexpr std::int64_t kBatchesPerRound = 8;

}  // namespace

Author::Author(comm::Groups& groups, train::Generator* generator, const io::Tokenizer& tokenizer,
               std::set<std::int64_t> ends, std::vector<std::string> stops,
               std::int64_t most_tokens, std::int64_t texts_at_once)
    : groups_(groups),
      generator_(generator),
      tokenizer_(tokenizer),
      ends_(std::move(ends)),
      stops_(std::move(stops)),
      most_tokens_(most_tokens),
      texts_at_once_(texts_at_once) {}

void Author::write_range(
    const grid::Range& range, const Order& order, std::span<Draft> drafts,
    const std::function<void(std::size_t i, const std::string& piece)>& grown) {
  std::int64_t next = range.begin;
  const auto begin_text = [&]() -> std::optional<train::Continuation> {
    if (next == range.end) {
      return std::nullopt;
    }
    const auto i = static_cast<std::size_t>(next - range.begin);
    const TextOrder given = order(next);
    ++next;
    const auto take = [&, i, continues = given.continues,
                       stops = train::StopTexts(stops_)](std::int64_t token) mutable {
      Draft& draft = drafts[i];
      ++draft.tokens;
      std::string piece;
      bool ends = ends_.contains(token);
      if (!ends) {
        piece = stops.take(
            tokenizer_.decode(std::span(&token, 1), std::exchange(continues, io::Continues::kYes)));
        ends = stops.reached() || draft.tokens == most_tokens_;
      }
      if (ends) {
        piece += stops.finish();
      }
      draft.written += piece;
      draft.is_whole = ends;
      grown(i, piece);
      return !ends;
    };
    return train::Continuation{.prompt = {given.prompt.begin(), given.prompt.end()},
                               .count = most_tokens_,
                               .options = given.sampling,
                               .take = take,
                               .past = given.past};
  };
  if (range.count() > 0) {
    generator_->generate(begin_text);
  }
}

void Author::write(std::int64_t texts, const Order& order,
                   const std::function<void(std::int64_t text, const std::string& piece)>& take,
                   const std::function<void(std::int64_t text, std::int64_t tokens)>& end) {
  const std::int64_t most_of_round = kBatchesPerRound * texts_at_once_;
  const std::int64_t replicas = groups_.grid.data;
  const std::int64_t own = groups_.coordinates.data;
  comm::Communicator& peers = groups_.along(grid::Axis::kData);
  const double start = now_seconds();
  for (std::int64_t first = 0; first < texts;) {
    const std::int64_t each = std::min(most_of_round, (texts - first + replicas - 1) / replicas);
    const auto part_of = [&](std::int64_t replica) {
      const auto bound = [&](std::int64_t part) { return std::min(first + part * each, texts); };
      return grid::Range{bound(replica), bound(replica + 1)};
    };
    const grid::Range part = part_of(own);
    std::vector<Draft> drafts(static_cast<std::size_t>(each));
    std::size_t current = 0;  // of replica 0's drafts, the one that is passed on as it grows
    const auto pass_on = [&](std::size_t i, const std::string& piece) {
      const auto text_of = [&](std::size_t draft) {
        return part.begin + static_cast<std::int64_t>(draft);
      };
      if (own != 0 || i != current) {
        return;
      }
      take(text_of(i), piece);
      while (drafts[current].is_whole) {
        end(text_of(current), drafts[current].tokens);
        ++current;
        if (current == static_cast<std::size_t>(part.count())) {
          return;
        }
        take(text_of(current), drafts[current].written);
      }
    };
    comm::agree_on_parts(*groups_.world, [&] { write_range(part, order, drafts, pass_on); });
    std::vector<std::int64_t> tokens;
    std::vector<std::vector<std::string>> all_written;
    for (const Draft& draft : drafts) {
      tokens.push_back(draft.tokens);
      all_written.push_back(replicas > 1 ? peers.all_gather_texts(draft.written)
                                         : std::vector<std::string>());
    }
    const std::vector<std::int64_t> all_tokens =
        comm::gathered_rows(peers, std::span<const std::int64_t>(tokens));
    for (std::int64_t replica = own == 0 ? 1 : 0; replica < replicas; ++replica) {
      for (std::int64_t text = part_of(replica).begin; text < part_of(replica).end; ++text) {
        const std::int64_t slot = text - part_of(replica).begin;
        take(text, all_written[static_cast<std::size_t>(slot)][static_cast<std::size_t>(replica)]);
        end(text, all_tokens[static_cast<std::size_t>(replica * each + slot)]);
      }
    }
    tokens_ = std::accumulate(all_tokens.begin(), all_tokens.end(), tokens_);
    first = part_of(replicas - 1).end;
  }
  seconds_ += now_seconds() - start;
}

std::string Author::rate_text() const {
  std::string text = fmt::format(
      "{} tokens, {} tokens/s{}", count_text(tokens_),
      count_text(tokens_ == 0 ? 0 : std::llround(static_cast<double>(tokens_) / seconds_)),
      groups_.grid.ranks() == 1 ? "" : " on " + groups_.grid.text());
  if (texts_at_once_ > 1 && generator_ != nullptr) {
    text += fmt::format(", {} texts at once (keys and values: {} a rank)",
                        count_text(texts_at_once_), bytes_text(generator_->cache_bytes()));
  }
  return text;
}

std::vector<double> log_likelihoods(comm::Groups& groups, train::Generator* generator,
                                    std::span<const std::vector<train::ScoredTexts>> questions,
                                    std::int64_t questions_at_once) {
  const auto replicas = static_cast<std::size_t>(groups.grid.data);
  const auto own = static_cast<std::size_t>(groups.coordinates.data);
  const std::size_t round =
      replicas * static_cast<std::size_t>(kBatchesPerRound * questions_at_once);
  std::vector<double> sums;
  for (std::size_t first = 0; first < questions.size(); first += round) {
    const auto of_round = questions.subspan(first, std::min(round, questions.size() - first));
    std::vector<train::ScoredTexts> mine;
    // Of each text, its replica and its place among that replica's.
    std::vector<std::pair<std::size_t, std::size_t>> places;
    std::vector<std::size_t> counts(replicas, 0);
    for (std::size_t i = 0; i < of_round.size(); ++i) {
      const std::size_t replica = i % replicas;
      for (const train::ScoredTexts& texts : of_round[i]) {
        for (std::size_t text = 0; text < texts.texts.size(); ++text) {
          places.emplace_back(replica, counts[replica]++);
        }
        if (replica == own) {
          mine.push_back(texts);
        }
      }
    }
    std::vector<double> found;
    comm::agree_on_parts(*groups.world, [&] {
      if (!mine.empty()) {
        found = generator->log_likelihoods(mine);
      }
    });
    const std::size_t width = std::ranges::max(counts);
    found.resize(width);
    const std::vector<double> all =
        comm::gathered_rows(groups.along(grid::Axis::kData), std::span(std::as_const(found)));
    for (const auto& [replica, place] : places) {
      sums.push_back(all[replica * width + place]);
    }
  }
  return sums;
}

}  // namespace strata::app
