#include "strata/train/generation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "strata/comm/values.hpp"
#include "strata/core/error.hpp"
#include "strata/core/random.hpp"

#include "loop/row_logits.hpp"

namespace strata::train {
namespace {

/// Ids in order of descending logits; of equal logits the smaller id first.
std::vector<std::int64_t> ranked(std::span<const float> logits, std::int64_t vocabulary,
                                 std::int64_t most) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(vocabulary));
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&](std::int64_t a, std::int64_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto count = std::min(most, vocabulary);
  if (count == vocabulary) {
    std::ranges::sort(ids, before);  // faster than a partial sort of all
  } else {
    std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), before);
  }
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

/// The first logit that is not finite.
struct BadLogit {
  std::int64_t token = -1;  ///< -1: all are finite
  float logit = 0.0F;
};

BadLogit bad_logit(std::span<const float> logits) {
  const auto bad =
      std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  return bad == logits.end() ? BadLogit{} : BadLogit{bad - logits.begin(), *bad};
}

void refuse(const BadLogit& bad) {
  if (bad.token >= 0) {
    fail(
        ExitCode::kDiverged,
        "the model's logit of token {} is {}, but it must be finite; the training diverged. Use an "
        "earlier checkpoint, or train with a smaller learning rate",
        bad.token, bad.logit);
  }
}

/// The plan of a rank with memory for one sequence and no backward pass.
plan::RankPlan generating_rank(const plan::Plan& plan, std::int64_t number) {
  plan::RankPlan rank = rank_plan(plan, number);
  require(rank.chunks.size() == 1, "generation by a stage of {} chunks", rank.chunks.size());
  nn::StageSpec& stage = rank.chunks.front();
  stage.pass.microbatch = 1;
  stage.pass.concurrent_lanes = 1;
  stage.pass.loss_pieces = 1;
  stage.pass.row_pieces = 1;
  stage.slots = {
      .activations = 1, .inputs = stage.layers.begin == 0 ? 0 : 1, .gradients = 0, .losses = 0};
  stage.order = nn::BackwardOrder::kSplit;
  return rank;
}

}  // namespace

void penalize_repetitions(std::span<float> logits, const std::set<std::int64_t>& tokens,
                          double penalty) {
  for (const std::int64_t token : tokens) {
    float& logit = logits[static_cast<std::size_t>(token)];
    logit = static_cast<float>(logit > 0.0F ? logit / penalty : logit * penalty);
  }
}

std::int64_t sample_token(std::span<const float> logits, std::int64_t vocabulary,
                          const SamplingOptions& options, std::int64_t position) {
  refuse(bad_logit(logits.first(static_cast<std::size_t>(vocabulary))));
  const bool greedy = options.temperature == 0.0;
  const std::int64_t most = greedy ? 1 : options.top_k > 0 ? options.top_k : vocabulary;
  const std::vector<std::int64_t> ids = ranked(logits, vocabulary, most);
  if (greedy) {
    return ids.front();
  }
  const auto logit = [&](std::int64_t id) {
    return static_cast<double>(logits[static_cast<std::size_t>(id)]);
  };
  const double largest = logit(ids.front());
  const auto weight = [&](std::int64_t id) {
    // Subtract first: a logit divided by a tiny temperature overflows.
    return std::exp((logit(id) - largest) / options.temperature);
  };
  std::vector<double> reached;
  double total = 0.0;
  for (const std::int64_t id : ids) {
    total += weight(id);
    reached.push_back(total);
  }
  const auto kept = std::find_if(reached.begin(), reached.end(),
                                 [&](double sum) { return sum >= options.top_p * total; });
  std::size_t last =
      kept == reached.end() ? reached.size() - 1 : static_cast<std::size_t>(kept - reached.begin());
  while (weight(ids[last]) < options.min_p) {
    --last;  // not below the first, whose weight is 1
  }
  const RandomStream stream(options.seed, RandomPurpose::kSample,
                            static_cast<std::uint64_t>(options.text));
  const double drawn = stream.uniform(static_cast<std::uint64_t>(position)) * reached[last];
  const auto chosen =
      std::upper_bound(reached.begin(), reached.begin() + static_cast<std::ptrdiff_t>(last), drawn);
  return ids[static_cast<std::size_t>(chosen - reached.begin())];
}

void require_prompt_fits(const plan::Plan& plan, std::span<const std::int64_t> prompt) {
  const std::int64_t context = plan.model->input_shape()[0];
  if (prompt.empty() || std::ssize(prompt) > context) {
    fail(ExitCode::kUsage,
         "the prompt has {} tokens, but it must have 1 to {}, the model's context; {} it",
         prompt.size(), context, prompt.empty() ? "lengthen" : "shorten");
  }
}

Generator::Generator(ops::Context& context, const plan::Plan& plan, comm::Groups& groups,
                     const io::Checkpoint& checkpoint)
    : context_(context),
      plan_(plan),
      groups_(groups),
      rank_(generating_rank(plan, groups.world->rank())),
      state_(context, plan, rank_, groups) {
  require(
      is_language_model(plan) && plan.token_rows == nn::Placement::kReplicated, "generation by {}",
      is_language_model(plan) ? "ranks that share rows" : "a model that is not a language model");
  state_.load_weights(checkpoint);
  const std::int64_t capacity = plan.model->input_shape()[0];
  const nn::StageSpec& stage = rank_.chunks.front();
  constexpr std::int64_t kAlignment = device::Buffer::kAlignmentBytes;
  const auto padded = [](const nn::TensorSpec& spec) {
    return (spec.shape.count() * size_bytes(spec.dtype) + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::int64_t bytes = 0;
  for (std::int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
    for (const nn::TensorSpec& spec : plan.model->layer(i).cache(stage.pass, capacity)) {
      bytes += 2 * padded(spec);
    }
  }
  cache_memory_ = device::Buffer(context.device(), bytes);
  std::int64_t offset = 0;
  const auto place = [&](const nn::TensorSpec& spec) {
    const TensorView view = cache_memory_.view(offset, spec.shape, spec.dtype);
    offset += padded(spec);
    return view;
  };
  for (std::int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
    nn::Stage::LayerCache& cache = caches_.emplace_back();
    for (const nn::TensorSpec& spec : plan.model->layer(i).cache(stage.pass, capacity)) {
      cache.keys.push_back(place(spec));
      cache.values.push_back(place(spec));
    }
  }
}

std::vector<double> Generator::append(std::span<const std::int64_t> tokens, std::int64_t rows) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  nn::Stage& stage = *state_.chunks().front();
  comm::Communicator& pipeline = groups_.along(grid::Axis::kPipeline);
  const ConstTensorView ids(tokens, Shape{1, count});
  device::Buffer memory;
  ConstTensorView input = ids;
  if (stage.is_first() && context_.device().memory_space() != MemorySpace::kHost) {
    memory = device::Buffer(context_.device(), ids.bytes());
    const TensorView copy = memory.view(0, ids.shape(), ids.dtype());
    device::copy_tensor(ids, copy);
    input = copy;
  }
  for (const TensorView& received : stage.decode_inputs(count)) {
    pipeline.receive(received, pipeline.rank() - 1, comm::Tag::kActivation).wait();
  }
  const std::vector<ConstTensorView> outputs = stage.decode(input, std::ssize(past_), caches_);
  past_.insert(past_.end(), tokens.begin(), tokens.end());
  if (!stage.is_last()) {
    for (const ConstTensorView& output : outputs) {
      pipeline.send(output, pipeline.rank() + 1, comm::Tag::kActivation).wait();
    }
    return {};
  }
  groups_.engine->drain();
  nn::LogitBlocks blocks = nn::logit_blocks(plan_.model->output(), rank_.chunks.front().pass);
  blocks.rows = count;
  return row_logits(outputs.front(), {count - rows, count}, blocks,
                    groups_.along(grid::Axis::kTensor), context_.stream());
}

std::vector<double> Generator::logits(std::span<const std::int64_t> tokens) {
  require_prompt_fits(plan_, tokens);
  past_.clear();
  return append(tokens, std::ssize(tokens));
}

std::int64_t Generator::next_token(std::span<const std::int64_t> tokens,
                                   const std::set<std::int64_t>& used,
                                   const SamplingOptions& options, std::int64_t position) {
  struct Next {
    std::int64_t token = 0;
    BadLogit bad;
  } next;
  const std::vector<double> last = append(tokens, 1);
  if (!last.empty()) {
    const std::int64_t vocabulary = plan_.train_data.classes;
    std::vector<float> logits(last.begin(), last.end());
    penalize_repetitions(logits, used, options.repetition_penalty);
    next.bad = bad_logit(std::span(logits).first(static_cast<std::size_t>(vocabulary)));
    if (next.bad.token < 0) {
      next.token = sample_token(logits, vocabulary, options, position);
    }
  }
  next = comm::broadcast_from(groups_.along(grid::Axis::kPipeline), next, plan_.grid.pipeline - 1);
  refuse(next.bad);
  return next.token;
}

void Generator::generate(std::span<const std::int64_t> prompt, std::int64_t count,
                         const SamplingOptions& options,
                         const std::function<bool(std::int64_t)>& take, PastTokens past) {
  require_prompt_fits(plan_, prompt);
  const std::int64_t context = plan_.model->input_shape()[0];
  // The last token gives the first logits.
  const auto same = std::ranges::mismatch(past_, prompt.first(prompt.size() - 1)).in1;
  past_.erase(past == PastTokens::kKept ? same : past_.begin(), past_.end());
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  std::set<std::int64_t> used;
  if (options.repetition_penalty != 1.0) {
    used.insert(text.begin(), text.end());
  }
  std::span<const std::int64_t> added = std::span(text).subspan(past_.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = next_token(added, used, options, i);
    text.push_back(token);
    if (options.repetition_penalty != 1.0) {
      used.insert(token);
    }
    if (!take(token) || i + 1 == count) {
      return;
    }
    added = std::span(text).last(1);
    if (std::ssize(past_) == context) {
      // Restart the positions with the second half of the text.
      past_.clear();
      added =
          std::span(text).last(static_cast<std::size_t>(std::max<std::int64_t>(1, context / 2)));
    }
  }
}

}  // namespace strata::train
