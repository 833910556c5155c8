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
  /// `generator`: null on a replica that writes nothing; all else outlives the author.
  Author(comm::Groups& groups, train::Generator* generator, const io::Tokenizer& tokenizer,
         std::set<std::int64_t> ends, std::vector<std::string> stops, std::int64_t most_tokens);

  /// Writes `texts` texts. On every rank, and in their order, passes the pieces of each on to
  /// take(text, piece), then its tokens, with the one that ends it, to end(text, tokens). Replica 0
  /// passes on each token of its own texts; others are whole. Replica r writes texts only where
  /// r < texts. Communication: as Generator::generate(), and in each round of some texts a replica
  /// one `agree` over the world and gathers over the data group. Throws: AgreedError of what
  /// generate() throws.
  void write(std::int64_t texts, const std::function<TextOrder(std::int64_t text)>& order,
             const std::function<void(std::int64_t text, const std::string& piece)>& take,
             const std::function<void(std::int64_t text, std::int64_t tokens)>& end);

  /// Of all texts, as in "1,200 tokens, 340 tokens/s on 1 data x 2 pipeline x 2 tensor".
  [[nodiscard]] std::string rate_text() const;

 private:
  /// Writes one text on this replica. Returns its tokens.
  std::int64_t write_one(const TextOrder& order,
                         const std::function<void(const std::string&)>& take);

  comm::Groups& groups_;
  train::Generator* generator_;
  const io::Tokenizer& tokenizer_;
  std::set<std::int64_t> ends_;
  train::StopTexts stops_;
  std::int64_t most_tokens_;
  std::int64_t tokens_ = 0;  ///< of all texts
  double seconds_ = 0.0;
};

}  // namespace strata::app
