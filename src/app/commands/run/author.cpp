#include "commands/run/author.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"

namespace strata::app {

Author::Author(comm::Groups& groups, train::Generator* generator, const io::Tokenizer& tokenizer,
               std::set<std::int64_t> ends, std::vector<std::string> stops,
               std::int64_t most_tokens)
    : groups_(groups),
      generator_(generator),
      tokenizer_(tokenizer),
      ends_(std::move(ends)),
      stops_(std::move(stops)),
      most_tokens_(most_tokens) {}

std::int64_t Author::write_one(const TextOrder& order,
                               const std::function<void(const std::string&)>& take) {
  io::Continues continues = order.continues;
  std::int64_t tokens = 0;
  generator_->generate(
      order.prompt, most_tokens_, order.sampling,
      [&](std::int64_t token) {
        ++tokens;
        if (ends_.contains(token)) {
          return false;
        }
        take(stops_.take(tokenizer_.decode(std::span(&token, 1),
                                           std::exchange(continues, io::Continues::kYes))));
        return !stops_.reached();
      },
      order.past);
  take(stops_.finish());
  return tokens;
}

void Author::write(std::int64_t texts, const std::function<TextOrder(std::int64_t text)>& order,
                   const std::function<void(std::int64_t text, const std::string& piece)>& take,
                   const std::function<void(std::int64_t text, std::int64_t tokens)>& end) {
  // Replicas wait for each other after so many texts, which are of unlike lengths.
  constexpr std::int64_t kMostOfRound = 8;
  const std::int64_t replicas = groups_.grid.data;
  const std::int64_t own = groups_.coordinates.data;
  comm::Communicator& peers = groups_.along(grid::Axis::kData);
  const double start = now_seconds();
  for (std::int64_t first = 0; first < texts;) {
    const std::int64_t each = std::min(kMostOfRound, (texts - first + replicas - 1) / replicas);
    const auto part_of = [&](std::int64_t replica) {
      const auto bound = [&](std::int64_t part) { return std::min(first + part * each, texts); };
      return grid::Range{bound(replica), bound(replica + 1)};
    };
    std::vector<std::string> written(static_cast<std::size_t>(each));
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(each));
    comm::agree_on_parts(*groups_.world, [&] {
      for (std::int64_t text = part_of(own).begin; text < part_of(own).end; ++text) {
        const auto slot = static_cast<std::size_t>(text - part_of(own).begin);
        tokens[slot] = write_one(order(text), [&](const std::string& piece) {
          written[slot] += piece;
          if (own == 0) {
            take(text, piece);
          }
        });
        if (own == 0) {
          end(text, tokens[slot]);
        }
      }
    });
    const std::vector<std::int64_t> all_tokens =
        comm::gathered_rows(peers, std::span<const std::int64_t>(tokens));
    std::vector<std::vector<std::string>> all_written;
    all_written.reserve(written.size());
    for (const std::string& text : written) {
      all_written.push_back(replicas > 1 ? peers.all_gather_texts(text) : std::vector{text});
    }
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
  return fmt::format(
      "{} tokens, {} tokens/s{}", count_text(tokens_),
      count_text(tokens_ == 0 ? 0 : std::llround(static_cast<double>(tokens_) / seconds_)),
      groups_.grid.ranks() == 1 ? "" : " on " + groups_.grid.text());
}

}  // namespace strata::app
