#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/io/tokenizer.hpp"
#include "strata/train/generation.hpp"
#include "strata/train/stop_texts.hpp"

namespace strata::app {

/// What a text goes on from, and how.
struct TextOrder {
  std::span<const std::int64_t> prompt;
  train::SamplingOptions sampling;
  io::Continues continues = io::Continues::kYes;
  train::PastTokens past = train::PastTokens::kDropped;
};

/// A language model on all ranks that writes texts, each of them on one replica.
class Author {
 public:
  using Order = std::function<TextOrder(std::int64_t text)>;

  /// `generator`: null on a replica that writes nothing, of `texts_at_once` on the others; all else
  /// outlives the author.
  Author(comm::Groups& groups, train::Generator* generator, const io::Tokenizer& tokenizer,
         std::set<std::int64_t> ends, std::vector<std::string> stops, std::int64_t most_tokens,
         std::int64_t texts_at_once);

  /// Writes `texts` texts. On every rank, and in their order, passes the pieces of each on to
  /// take(text, piece), then its tokens, with the one that ends it, to end(text, tokens). Replica 0
  /// passes on each token of its own text that comes next; others are whole. Replica r writes texts
  /// only where r < texts. Communication: as Generator::generate(), and in each round of some texts
  /// a replica one `agree` over the world and gathers over the data group. Throws: AgreedError of
  /// what generate() throws.
  void write(std::int64_t texts, const Order& order,
             const std::function<void(std::int64_t text, const std::string& piece)>& take,
             const std::function<void(std::int64_t text, std::int64_t tokens)>& end);

  /// Of all texts, as in "1,200 tokens, 340 tokens/s on 1 data x 2 pipeline x 2 tensor, 8 texts at
  /// once (keys and values: 1.50 MiB a rank)".
  [[nodiscard]] std::string rate_text() const;

 private:
  /// A text of a round.
  struct Draft {
    std::string written;
    std::int64_t tokens = 0;
    bool is_whole = false;
  };
  /// Writes the texts in `range` on this replica, `drafts` being theirs. Calls grown(i, piece)
  /// whenever draft i has grown or ended.
  void write_range(const grid::Range& range, const Order& order, std::span<Draft> drafts,
                   const std::function<void(std::size_t i, const std::string& piece)>& grown);

  comm::Groups& groups_;
  train::Generator* generator_;
  const io::Tokenizer& tokenizer_;
  std::set<std::int64_t> ends_;
  std::vector<std::string> stops_;
  std::int64_t most_tokens_;
  std::int64_t texts_at_once_;
  std::int64_t tokens_ = 0;  ///< of all texts
  double seconds_ = 0.0;
};

/// The log-likelihoods of the texts of all questions, in order, on every rank. Replicas share the
/// questions. `generator`: as Author's. Communication: as Generator::log_likelihoods(), and in each
/// round of some questions a replica one `agree` over the world and one gather over the data group.
/// Throws: AgreedError of what a rank's passes throw.
[[nodiscard]] std::vector<double> log_likelihoods(
    comm::Groups& groups, train::Generator* generator,
    std::span<const std::vector<train::ScoredTexts>> questions, std::int64_t questions_at_once);

}  // namespace strata::app
