#pragma once

#include <cstdint>
#include <functional>
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

/// A rank's part of a language model that continues sequences of tokens, with a key-value cache of
/// its own layers and heads. The ranks of a replica make the same calls, and get the same tokens,
/// on every grid: each stage passes the new tokens on, and the last one samples.
class Generator {
 public:
  /// Pre: the plan is for a language model, with whole rows on each tensor rank and one chunk a
  /// stage. Throws: Error(kCheckpoint) where the checkpoint's weights are not the plan's.
  Generator(ops::Context& context, const plan::Plan& plan, comm::Groups& groups,
            const io::Checkpoint& checkpoint);

  /// Continues `prompt` by up to `count` tokens. Calls `take` with each token; it returns whether
  /// to continue. The penalty is for the tokens of prompt and text so far. When the text exceeds
  /// the context, generation continues from its second half. Communication: per token, messages of
  /// a forward pass, one all-gather over the last stage's tensor group, and one broadcast over the
  /// pipeline group. Throws on all ranks of the replica: Error(kUsage) as require_prompt_fits();
  /// Error(kDiverged) as sample_token().
  void generate(std::span<const std::int64_t> prompt, std::int64_t count,
                const SamplingOptions& options, const std::function<bool(std::int64_t)>& take,
                PastTokens past = PastTokens::kDropped);

  /// The logits after each token of a text on the last stage, else nothing. Shapes: tokens x
  /// vocabulary. Throws: Error(kUsage) as require_prompt_fits().
  [[nodiscard]] std::vector<double> logits(std::span<const std::int64_t> tokens);

 private:
  /// Appends tokens to the sequence. Returns: the logits after the last `rows` of them, as
  /// logits().
  [[nodiscard]] std::vector<double> append(std::span<const std::int64_t> tokens, std::int64_t rows);
  /// Appends tokens to the sequence and samples the next one, `used` being those to penalize.
  [[nodiscard]] std::int64_t next_token(std::span<const std::int64_t> tokens,
                                        const std::set<std::int64_t>& used,
                                        const SamplingOptions& options, std::int64_t position);

  ops::Context& context_;
  const plan::Plan& plan_;
  comm::Groups& groups_;
  plan::RankPlan rank_;
  StageState state_;
  device::Buffer cache_memory_;
  std::vector<nn::Stage::LayerCache> caches_;
  std::vector<std::int64_t> past_;  ///< the tokens whose keys and values are in the caches
};

}  // namespace strata::train
