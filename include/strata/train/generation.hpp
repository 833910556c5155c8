#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/device/buffer.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/rank_state.hpp"

namespace strata::train {

/// How the next token is sampled from the model's probabilities: first the penalty, then the
/// temperature, then what top_k, top_p and min_p all keep.
struct SamplingOptions {
  /// Divides the logits; 0: greedy decoding.
  double temperature = 1.0;
  /// Samples from the top_k most likely tokens; 0: from all.
  std::int64_t top_k = 0;
  /// Samples from the most likely tokens whose probabilities sum to at least top_p (nucleus
  /// sampling). Source: Holtzman et al., "The curious case of neural text degeneration", arXiv
  /// 1904.09751.
  double top_p = 1.0;
  /// Samples from the tokens at least min_p times as probable as the most likely one. Source:
  /// Nguyen et al., "Turning up the heat: min-p sampling", arXiv 2407.01082.
  double min_p = 0.0;
  /// For penalize_repetitions().
  double repetition_penalty = 1.0;
  std::uint64_t seed = 0;
  /// The number of the text; texts of the same seed differ by it.
  std::int64_t text = 0;
};

/// Divides the positive logits of the tokens by `penalty` and multiplies the others. Source: Keskar
/// et al., "CTRL: a conditional transformer language model", arXiv 1909.05858, section 4.1, with
/// the sign as in Hugging Face's transformers.
void penalize_repetitions(std::span<float> logits, const std::set<std::int64_t>& tokens,
                          double penalty);

/// Samples the token at `position`. The result depends only on the logits, the options and the
/// position. Shapes: logits of all ids; ids from `vocabulary` on are never sampled.
/// Throws: Error(kDiverged) where a logit of the vocabulary is not finite.
[[nodiscard]] std::int64_t sample_token(std::span<const float> logits, std::int64_t vocabulary,
                                        const SamplingOptions& options, std::int64_t position);

/// Throws: Error(kUsage) for a prompt that is empty or longer than the model's context.
void require_prompt_fits(const plan::Plan& plan, std::span<const std::int64_t> prompt);

/// Whether generate() keeps the keys and values of the tokens with which both its prompt and the
/// text before begin. Logits then differ in the last bits from those of the whole prompt at once.
enum class PastTokens { kDropped, kKept };

/// A text to generate.
struct Continuation {
  std::vector<std::int64_t> prompt;
  /// Tokens, at most.
  std::int64_t count = 0;
  SamplingOptions options = {};
  /// Takes each token; returns whether to continue.
  std::function<bool(std::int64_t)> take;
  PastTokens past = PastTokens::kDropped;
};

/// Texts that each follow the same context. Pre: no text is empty, nor is the context.
struct ScoredTexts {
  std::vector<std::int64_t> context;
  std::vector<std::vector<std::int64_t>> texts;
};

/// The most texts at once where the user does not say: as many as products compute for about the
/// time of one, and as keys and values fit into as much memory as the weights take.
[[nodiscard]] std::int64_t default_texts_at_once(const plan::Plan& plan);

/// A rank's part of a language model that continues sequences of tokens, with key-value caches of
/// its own layers and heads. The ranks of a replica make the same calls, and get the same tokens,
/// on every grid: each stage passes the new tokens on, and the last one samples.
class Generator {
 public:
  /// A generator of up to `most_texts` texts at once. Pre: the plan is for a language model, with
  /// whole rows on each tensor rank and one chunk a stage. Throws: Error(kCheckpoint) where the
  /// checkpoint's weights are not the plan's; Error(kPeer) where memory lacks.
  Generator(ops::Context& context, const plan::Plan& plan, comm::Groups& groups,
            const io::Checkpoint& checkpoint, std::int64_t most_texts = 1);

  /// Generates the texts that next() returns until it returns nothing. It is called whenever fewer
  /// than most_texts are being generated; one pass decodes the next token of each. A text's tokens
  /// do not depend on the others. The penalty is for the tokens of prompt and text so far. When a
  /// text exceeds the context, it continues from its second half. Communication: per pass, messages
  /// of a forward pass, one all-gather over the last stage's tensor group, and one broadcast over
  /// the pipeline group; a prompt has a pass of its own. Throws on all ranks of the replica:
  /// Error(kUsage) as require_prompt_fits(); Error(kDiverged) as sample_token().
  void generate(const std::function<std::optional<Continuation>()>& next);
  /// Generates one text.
  void generate(Continuation text);

  /// The logits after each token of a text on the last stage, else nothing. Shapes: tokens x
  /// vocabulary. Throws: Error(kUsage) as require_prompt_fits().
  [[nodiscard]] std::vector<double> logits(std::span<const std::int64_t> tokens);

  /// The log-likelihood of each text behind its context, of all texts in order, on all ranks. A
  /// context has one pass for all of its texts, and so has a long text; the next tokens of up to
  /// most_texts short texts of several contexts have one together. A text's bits do not depend on
  /// the others. Communication: as generate(), with one broadcast for all texts. Pre: a context and
  /// a text of it have at most one token more than the model's context.
  [[nodiscard]] std::vector<double> log_likelihoods(std::span<const ScoredTexts> all);

  /// Bytes of all key-value caches of this rank.
  [[nodiscard]] std::int64_t cache_bytes() const { return cache_memory_.bytes(); }

 private:
  /// Caches, and the text that is generated with them.
  struct Slot {
    std::vector<nn::Stage::LayerCache> caches;
    std::vector<std::int64_t> past;  ///< the tokens whose keys and values are in the caches
    std::optional<Continuation> text;
    std::vector<std::int64_t> tokens;  ///< of prompt and text
    std::set<std::int64_t> used;       ///< those to penalize
    std::int64_t sampled = 0;
  };

  /// Appends new tokens to sequences, as many to each. Returns: the logits after the last `rows` of
  /// all of them, as logits(). Pre: several sequences get one token each.
  [[nodiscard]] std::vector<double> append(std::span<Slot* const> slots,
                                           std::span<const std::int64_t> tokens, std::int64_t rows);
  /// Appends new tokens to texts and samples the next one of each.
  void advance(std::span<Slot* const> slots, std::span<const std::int64_t> tokens);
  void begin(Slot& slot, Continuation text);

  ops::Context& context_;
  const plan::Plan& plan_;
  comm::Groups& groups_;
  plan::RankPlan rank_;
  StageState state_;
  device::Buffer cache_memory_;
  std::vector<Slot> slots_;
};

}  // namespace strata::train
