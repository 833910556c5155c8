// Longer than other files: generating and scoring texts share the passes, slots and caches of one
// class.
#include "strata/train/generation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "strata/comm/values.hpp"
#include "strata/core/cgroup.hpp"
#include "strata/core/error.hpp"
#include "strata/core/random.hpp"
#include "strata/core/text.hpp"
#include "strata/ops/matmul.hpp"

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

std::int64_t aligned_bytes(const nn::TensorSpec& spec) {
  constexpr std::int64_t kAlignment = device::Buffer::kAlignmentBytes;
  return (spec.shape.count() * size_bytes(spec.dtype) + kAlignment - 1) / kAlignment * kAlignment;
}

/// Of one sequence's caches in some layers.
std::int64_t cache_bytes_of(const plan::Plan& plan, const nn::PassShape& pass,
                            const grid::Range& layers) {
  std::int64_t bytes = 0;
  for (std::int64_t i = layers.begin; i < layers.end; ++i) {
    for (const nn::TensorSpec& spec :
         plan.model->layer(i).cache(pass, plan.model->input_shape()[0])) {
      bytes += 2 * aligned_bytes(spec);  // keys and values
    }
  }
  return bytes;
}

/// log softmax(logits)[token].
double log_likelihood(std::span<const double> logits, std::int64_t token) {
  const double largest = std::ranges::max(logits);
  double sum = 0.0;
  for (const double logit : logits) {
    sum += std::exp(logit - largest);
  }
  return logits[static_cast<std::size_t>(token)] - largest - std::log(sum);
}

[[noreturn]] void refuse_texts_at_once(std::int64_t of_text, std::int64_t most_texts,
                                       const std::string& available) {
  fail(ExitCode::kPeer,
       "the keys and values of {} texts at once take {} on a rank, {}; lower --batch (1 takes {}), "
       "or use more pipeline stages or tensor ranks",
       count_text(most_texts), bytes_text(of_text * most_texts), available, bytes_text(of_text));
}

/// The plan of a rank without a backward pass, with memory for a sequence or for a token of each of
/// `most_texts`. Throws: Error(kPeer) where the host's memory is too small for their caches.
plan::RankPlan generating_rank(const device::Device& device, const plan::Plan& plan,
                               std::int64_t number, std::int64_t most_texts) {
  plan::RankPlan rank = rank_plan(plan, number);
  require(rank.chunks.size() == 1, "generation by a stage of {} chunks", rank.chunks.size());
  require(most_texts >= 1, "a generator of {} texts at once", most_texts);
  const std::int64_t context = plan.model->input_shape()[0];
  const std::int64_t rows = ops::padded_row(most_texts, ops::kRowTile);
  nn::StageSpec& stage = rank.chunks.front();
  stage.pass.microbatch = (rows + context - 1) / context;
  stage.pass.concurrent_lanes = 1;
  stage.pass.loss_pieces = 1;
  stage.pass.row_pieces = 1;
  stage.slots = {
      .activations = 1, .inputs = stage.layers.begin == 0 ? 0 : 1, .gradients = 0, .losses = 0};
  stage.order = nn::BackwardOrder::kSplit;
  const std::int64_t of_text = cache_bytes_of(plan, stage.pass, stage.layers);
  // Linux gives more memory than there is, and ends processes later.
  if (const std::int64_t available = host_memory().available;
      most_texts > 1 && device.memory_space() == MemorySpace::kHost && available > 0 &&
      available / most_texts < of_text) {
    refuse_texts_at_once(of_text, most_texts,
                         fmt::format("but {} are available", bytes_text(available)));
  }
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

std::int64_t default_texts_at_once(const plan::Plan& plan) {
  nn::PassShape pass = rank_plan(plan, 0).chunks.front().pass;
  pass.shards.own = {0, pass.shards.count};
  const std::int64_t of_text = cache_bytes_of(plan, pass, {0, plan.model->layer_count()});
  const std::int64_t weights = plan.model->parameter_count() * size_bytes(pass.dtype);
  return std::clamp<std::int64_t>(weights / std::max<std::int64_t>(1, of_text), 1, ops::kRowTile);
}

Generator::Generator(ops::Context& context, const plan::Plan& plan, comm::Groups& groups,
                     const io::Checkpoint& checkpoint, std::int64_t most_texts)
    : context_(context),
      plan_(plan),
      groups_(groups),
      rank_(generating_rank(context.device(), plan, groups.world->rank(), most_texts)),
      state_(context, plan, rank_, groups),
      slots_(static_cast<std::size_t>(most_texts)) {
  require(
      is_language_model(plan) && plan.token_rows == nn::Placement::kReplicated, "generation by {}",
      is_language_model(plan) ? "ranks that share rows" : "a model that is not a language model");
  state_.load_weights(checkpoint);
  const nn::StageSpec& stage = rank_.chunks.front();
  const std::int64_t of_text = cache_bytes_of(plan, stage.pass, stage.layers);
  try {
    cache_memory_ = device::Buffer(context.device(), of_text * most_texts);
  } catch (const Error&) {
    if (most_texts > 1) {
      refuse_texts_at_once(of_text, most_texts, "more than is free");
    }
    throw;
  }
  std::int64_t offset = 0;
  const auto place = [&](const nn::TensorSpec& spec) {
    const TensorView view = cache_memory_.view(offset, spec.shape, spec.dtype);
    offset += aligned_bytes(spec);
    return view;
  };
  for (Slot& slot : slots_) {
    for (std::int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
      nn::Stage::LayerCache& cache = slot.caches.emplace_back();
      for (const nn::TensorSpec& spec :
           plan.model->layer(i).cache(stage.pass, plan.model->input_shape()[0])) {
        cache.keys.push_back(place(spec));
        cache.values.push_back(place(spec));
      }
    }
  }
}

std::vector<double> Generator::append(std::span<Slot* const> slots,
                                      std::span<const std::int64_t> tokens, std::int64_t rows) {
  const auto each = static_cast<std::int64_t>(tokens.size() / slots.size());
  require(each == 1 || slots.size() == 1, "{} tokens of {} sequences", tokens.size(), slots.size());
  const bool on_host = context_.device().memory_space() == MemorySpace::kHost;
  std::vector<std::int64_t> given(tokens.begin(), tokens.end());
  if (each == 1 && !on_host) {
    given.resize(static_cast<std::size_t>(ops::padded_row(std::ssize(given), ops::kRowTile)));
  }
  nn::Stage& stage = *state_.chunks().front();
  comm::Communicator& pipeline = groups_.along(grid::Axis::kPipeline);
  const ConstTensorView ids(std::span<const std::int64_t>(given), Shape{1, std::ssize(given)});
  device::Buffer memory;
  ConstTensorView input = ids;
  if (stage.is_first() && !on_host) {
    memory = device::Buffer(context_.device(), ids.bytes());
    const TensorView copy = memory.view(0, ids.shape(), ids.dtype());
    device::copy_tensor(ids, copy);
    input = copy;
  }
  for (const TensorView& received : stage.decode_inputs(ids.count())) {
    pipeline.receive(received, pipeline.rank() - 1, comm::Tag::kActivation).wait();
  }
  std::vector<nn::Stage::CachedSequence> sequences;
  for (const Slot* slot : slots) {
    sequences.push_back({std::ssize(slot->past), slot->caches});
  }
  const std::vector<ConstTensorView> outputs = stage.decode(input, each, sequences);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto own = tokens.subspan(i * static_cast<std::size_t>(each)).first(each);
    slots[i]->past.insert(slots[i]->past.end(), own.begin(), own.end());
  }
  if (!stage.is_last()) {
    for (const ConstTensorView& output : outputs) {
      pipeline.send(output, pipeline.rank() + 1, comm::Tag::kActivation).wait();
    }
    return {};
  }
  groups_.engine->drain();
  nn::LogitBlocks blocks = nn::logit_blocks(plan_.model->output(), rank_.chunks.front().pass);
  blocks.rows = ids.count();
  const std::int64_t end = std::ssize(tokens);
  return row_logits(outputs.front(), {end - rows, end}, blocks, groups_.along(grid::Axis::kTensor),
                    context_.stream());
}

std::vector<double> Generator::logits(std::span<const std::int64_t> tokens) {
  require_prompt_fits(plan_, tokens);
  Slot* const slot = &slots_.front();
  slot->past.clear();
  return append({&slot, 1}, tokens, std::ssize(tokens));
}

std::vector<double> Generator::log_likelihoods(std::span<const ScoredTexts> all) {
  // So many tokens of one text cost no more in a pass of their own than those of several texts.
  constexpr std::size_t kOwnPass = ops::kRowTile;
  /// What a slot scores: one context's texts after the other.
  struct Scoring {
    Slot* slot = nullptr;
    const ScoredTexts* of = nullptr;
    std::size_t first = 0;  ///< its first text, of those of all
    std::size_t text = 0;
    std::size_t scored = 0;  ///< tokens of the text
    std::vector<double> behind_context;
  };
  std::vector<double> sums;
  auto next = all.begin();
  const auto begin_next = [&](Scoring& own) {
    const bool is_same = own.of != nullptr && own.of->context == next->context;
    own.of = &*next++;
    own.first = sums.size();
    own.text = 0;
    sums.resize(sums.size() + own.of->texts.size(), 0.0);
    if (!is_same) {
      own.slot->past.clear();
      own.behind_context = append({&own.slot, 1}, own.of->context, 1);
    }
  };
  const auto row_of = [](std::span<const double> logits, std::size_t rows, std::size_t row) {
    const std::size_t width = logits.size() / rows;
    return logits.subspan(row * width, width);
  };
  const auto score_next = [&](Scoring& own, std::span<const double> logits) {
    if (!logits.empty()) {
      sums[own.first + own.text] += log_likelihood(logits, own.of->texts[own.text][own.scored]);
    }
    ++own.scored;
  };
  // Moves on to a text whose next token needs a pass; false where none is left.
  const auto needs_pass = [&](Scoring& own) {
    for (;;) {
      if (own.of == nullptr || own.text == own.of->texts.size()) {
        if (next == all.end()) {
          return false;
        }
        begin_next(own);
      }
      const std::vector<std::int64_t>& text = own.of->texts[own.text];
      if (own.scored == 0) {
        own.slot->past.resize(own.of->context.size());
        score_next(own, own.behind_context);
        const std::size_t rows = text.size() - 1;
        if (rows >= kOwnPass) {
          const std::vector<double> logits =
              append({&own.slot, 1}, std::span(text).first(rows), std::ssize(text) - 1);
          for (std::size_t row = 0; row < rows; ++row) {
            score_next(own, row_of(logits, rows, row));
          }
        }
      }
      if (own.scored < text.size()) {
        return true;
      }
      ++own.text;
      own.scored = 0;
    }
  };
  std::vector<Scoring> scorings(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    scorings[i].slot = &slots_[i];
  }
  for (;;) {
    std::vector<Scoring*> running;
    std::vector<Slot*> slots;
    std::vector<std::int64_t> tokens;
    for (Scoring& own : scorings) {
      if (needs_pass(own)) {
        running.push_back(&own);
        slots.push_back(own.slot);
        tokens.push_back(own.of->texts[own.text][own.scored - 1]);
      }
    }
    if (running.empty()) {
      break;
    }
    const std::vector<double> logits = append(slots, tokens, std::ssize(slots));
    for (std::size_t i = 0; i < running.size(); ++i) {
      score_next(*running[i], row_of(logits, running.size(), i));
    }
  }
  if (!sums.empty()) {
    groups_.along(grid::Axis::kPipeline)
        .broadcast(comm::payload_of(std::span(sums)), plan_.grid.pipeline - 1);
  }
  return sums;
}

void Generator::advance(std::span<Slot* const> slots, std::span<const std::int64_t> tokens) {
  struct Next {
    std::int64_t token = 0;
    BadLogit bad;
  };
  std::vector<Next> next(slots.size());
  const std::vector<double> logits = append(slots, tokens, std::ssize(slots));
  const std::size_t width = logits.size() / slots.size();
  for (std::size_t i = 0; i < slots.size() && !logits.empty(); ++i) {
    const std::int64_t vocabulary = plan_.train_data.classes;
    const SamplingOptions& options = slots[i]->text->options;
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(i * width);
    std::vector<float> own(first, first + static_cast<std::ptrdiff_t>(width));
    penalize_repetitions(own, slots[i]->used, options.repetition_penalty);
    next[i].bad = bad_logit(std::span(own).first(static_cast<std::size_t>(vocabulary)));
    if (next[i].bad.token < 0) {
      next[i].token = sample_token(own, vocabulary, options, slots[i]->sampled);
    }
  }
  groups_.along(grid::Axis::kPipeline)
      .broadcast(comm::payload_of(std::span(next)), plan_.grid.pipeline - 1);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    refuse(next[i].bad);
    Slot& slot = *slots[i];
    slot.tokens.push_back(next[i].token);
    if (slot.text->options.repetition_penalty != 1.0) {
      slot.used.insert(next[i].token);
    }
    ++slot.sampled;
    if (!slot.text->take(next[i].token) || slot.sampled == slot.text->count) {
      slot.text.reset();
    }
  }
}

void Generator::begin(Slot& slot, Continuation text) {
  require_prompt_fits(plan_, text.prompt);
  // The last token gives the first logits.
  const auto same =
      std::ranges::mismatch(slot.past, std::span(text.prompt).first(text.prompt.size() - 1)).in1;
  slot.past.erase(text.past == PastTokens::kKept ? same : slot.past.begin(), slot.past.end());
  slot.tokens = text.prompt;
  slot.used.clear();
  if (text.options.repetition_penalty != 1.0) {
    slot.used.insert(slot.tokens.begin(), slot.tokens.end());
  }
  slot.sampled = 0;
  slot.text = std::move(text);
  Slot* const one = &slot;
  advance({&one, 1}, std::span(std::as_const(slot.tokens)).subspan(slot.past.size()));
}

void Generator::generate(const std::function<std::optional<Continuation>()>& next) {
  const std::int64_t context = plan_.model->input_shape()[0];
  for (Slot& slot : slots_) {
    slot.text.reset();  // perhaps of a call that threw
  }
  bool are_more = true;
  const auto is_busy = [](const Slot& slot) { return slot.text.has_value(); };
  while (are_more || std::ranges::any_of(slots_, is_busy)) {
    std::vector<Slot*> running;
    std::vector<std::int64_t> last;
    for (Slot& slot : slots_) {
      while (are_more && !slot.text) {
        std::optional<Continuation> text = next();
        are_more = text.has_value();
        if (text) {
          begin(slot, std::move(*text));
        }
      }
      if (slot.text && std::ssize(slot.past) == context) {
        // Restart the positions with the second half of the text.
        slot.past.clear();
        const auto half = static_cast<std::size_t>(std::max<std::int64_t>(1, context / 2));
        Slot* const one = &slot;
        advance({&one, 1}, std::span(std::as_const(slot.tokens)).last(half));
      } else if (slot.text) {
        running.push_back(&slot);
        last.push_back(slot.tokens.back());
      }
    }
    if (!running.empty()) {
      advance(running, last);
    }
  }
}

void Generator::generate(Continuation text) {
  std::optional<Continuation> one = std::move(text);
  generate([&] { return std::exchange(one, std::nullopt); });
}

}  // namespace strata::train
