#include "strata/train/generation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"
#include "strata/device/host_copy.hpp"

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

void require_finite(std::span<const float> logits) {
  const auto bad =
      std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  if (bad != logits.end()) {
    fail(
        ExitCode::kDiverged,
        "the model's logit of token {} is {}, but it must be finite; the training diverged. Use an "
        "earlier checkpoint, or train with a smaller learning rate",
        bad - logits.begin(), *bad);
  }
}

/// The plan's only rank, with memory for one sequence and no backward pass.
plan::RankPlan generating_rank(const plan::Plan& plan) {
  plan::RankPlan rank = rank_plan(plan, 0);
  nn::StageSpec& stage = rank.chunks.front();
  stage.pass.microbatch = 1;
  stage.pass.concurrent_lanes = 1;
  stage.pass.loss_pieces = 1;
  stage.pass.row_pieces = 1;
  stage.slots = {.activations = 1, .inputs = 0, .gradients = 0, .losses = 0};
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
  require_finite(logits.first(static_cast<std::size_t>(vocabulary)));
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
      rank_(generating_rank(plan)),
      state_(context, plan, rank_, groups) {
  require(plan.grid.ranks() == 1 && is_language_model(plan),
          "generation by {} ranks of a model that is {}", plan.grid.ranks(),
          is_language_model(plan) ? "a language model" : "not a language model");
  state_.load_weights(checkpoint);
  const std::int64_t capacity = plan.model->input_shape()[0];
  constexpr std::int64_t kAlignment = device::Buffer::kAlignmentBytes;
  const auto padded = [](const nn::TensorSpec& spec) {
    return (spec.shape.count() * size_bytes(spec.dtype) + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < plan.model->layer_count(); ++i) {
    for (const nn::TensorSpec& spec :
         plan.model->layer(i).cache(rank_.chunks.front().pass, capacity)) {
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
  for (std::int64_t i = 0; i < plan.model->layer_count(); ++i) {
    nn::Stage::LayerCache& cache = caches_.emplace_back();
    for (const nn::TensorSpec& spec :
         plan.model->layer(i).cache(rank_.chunks.front().pass, capacity)) {
      cache.keys.push_back(place(spec));
      cache.values.push_back(place(spec));
    }
  }
}

std::vector<double> Generator::append(std::span<const std::int64_t> tokens, std::int64_t rows) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const ConstTensorView ids(tokens, Shape{1, count});
  device::Buffer memory;
  ConstTensorView input = ids;
  if (context_.device().memory_space() != MemorySpace::kHost) {
    memory = device::Buffer(context_.device(), ids.bytes());
    const TensorView copy = memory.view(0, ids.shape(), ids.dtype());
    device::copy_tensor(ids, copy);
    input = copy;
  }
  const device::HostView copy(state_.chunks().front()->decode(input, std::ssize(past_), caches_),
                              context_.stream());
  const ConstTensorView& output = copy.view();
  past_.insert(past_.end(), tokens.begin(), tokens.end());
  const nn::Port& port = plan_.model->output();
  const std::int64_t vocabulary = port.shape.back();
  const bool split = port.placement == nn::Placement::kFeatures;
  const std::int64_t shards = split ? plan_.config.numerics.shards : 1;
  const nn::LogitBlocks blocks{
      .rows = count,
      .vocabulary = vocabulary,
      .shards = shards,
      .own = {0, shards},
      .multiple = port.is_logits ? state_.chunks().front()->logit_multiple() : 1};
  std::vector<double> logits;
  with_stored(output.dtype(), [&]<typename T>(T) {
    for (std::int64_t row = count - rows; row < count; ++row) {
      for (std::int64_t s = 0; s < shards; ++s) {
        const ConstTensorView of_row =
            blocks.block(output, s).flat_slice(row * blocks.columns(s), blocks.ids(s).count());
        for (const T& logit : of_row.host<T>()) {
          logits.push_back(static_cast<double>(static_cast<Compute<T>>(logit)));
        }
      }
    }
  });
  return logits;
}

std::vector<double> Generator::logits(std::span<const std::int64_t> tokens) {
  require_prompt_fits(plan_, tokens);
  past_.clear();
  return append(tokens, std::ssize(tokens));
}

std::vector<float> Generator::next_logits(std::span<const std::int64_t> tokens) {
  const std::vector<double> last = append(tokens, 1);
  return {last.begin(), last.end()};
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
  std::vector<float> logits = next_logits(prompt.subspan(past_.size()));
  for (std::int64_t i = 0; i < count; ++i) {
    penalize_repetitions(logits, used, options.repetition_penalty);
    const std::int64_t token = sample_token(logits, plan_.train_data.classes, options, i);
    text.push_back(token);
    if (options.repetition_penalty != 1.0) {
      used.insert(token);
    }
    if (!take(token) || i + 1 == count) {
      return;
    }
    if (std::ssize(past_) == context) {
      // Restart the positions with the second half of the text.
      const std::int64_t kept = std::max<std::int64_t>(1, context / 2);
      past_.clear();
      logits = next_logits(std::span(text).last(static_cast<std::size_t>(kept)));
    } else {
      logits = next_logits(std::span(text).last(1));
    }
  }
}

}  // namespace strata::train
