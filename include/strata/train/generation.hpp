#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/device/buffer.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/rank_state.hpp"

namespace strata::train {

/// How the next token is chosen from the model's probabilities.
struct SamplingOptions {
  /// Logits are divided by it; 0: always the likeliest token.
  double temperature = 1.0;
  /// Only the so many likeliest tokens; 0: all.
  std::int64_t top_k = 0;
  /// Only the likeliest tokens whose probabilities together reach this. Source: Holtzman et al.,
  /// "The curious case of neural text degeneration", arXiv 1904.09751.
  double top_p = 1.0;
  std::uint64_t seed = 0;
  /// Texts of one seed differ by their number.
  std::int64_t text = 0;
};

/// The token that comes at `position`: a function of the logits, the options and the position
/// alone. Shapes: logits of all ids; ids from `vocabulary` on are never chosen.
/// Throws: Error(kDiverged) where a logit of the vocabulary is not finite.
[[nodiscard]] std::int64_t sample_token(std::span<const float> logits, std::int64_t vocabulary,
                                        const SamplingOptions& options, std::int64_t position);

/// Throws: Error(kUsage) for a prompt that is empty or longer than the model's context.
void require_prompt_fits(const plan::Plan& plan, std::span<const std::int64_t> prompt);

/// A language model on one rank that continues sequences of tokens, with the keys and values of the
/// tokens before kept.
class Generator {
 public:
  /// Pre: the plan is for one rank and a language model. Throws: Error(kCheckpoint) where the
  /// checkpoint's weights are not the plan's.
  Generator(ops::Context& context, const plan::Plan& plan, comm::Groups& groups,
            const io::Checkpoint& checkpoint);

  /// Continues `prompt` by up to `count` tokens, each handed to `take` as it comes, which returns
  /// whether to go on. A text that outgrows the context goes on from its latter half.
  /// Throws: Error(kUsage) as require_prompt_fits(); Error(kDiverged) as sample_token().
  void generate(std::span<const std::int64_t> prompt, std::int64_t count,
                const SamplingOptions& options, const std::function<bool(std::int64_t)>& take);

 private:
  /// Takes tokens in behind those before; the logits of the token after them.
  [[nodiscard]] std::vector<float> next_logits(std::span<const std::int64_t> tokens);

  ops::Context& context_;
  const plan::Plan& plan_;
  plan::RankPlan rank_;
  StageState state_;
  device::Buffer cache_memory_;
  std::vector<nn::Stage::LayerCache> caches_;
  std::int64_t past_ = 0;
};

}  // namespace strata::train
