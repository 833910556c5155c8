#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "strata/config/options.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/io/sample_order.hpp"
#include "strata/ops/digest.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/receipts.hpp"

// What receipts say of a run and of a step.
namespace strata::train {
namespace {

/// The words of the digests.
template <typename Digests, typename Use>
void for_words(Digests& digests, const Use& use) {
  for (auto* const digest : {&digests.weights, &digests.state, &digests.gradients}) {
    use(digest->sum);
    use(digest->check);
    use(digest->place);
  }
}

/// The elements of the shard's part that are consecutive in the tensor are a row.
ops::DigestPlaces places_of(const io::TensorSlice& slice) {
  const Shape& shape = slice.global_shape;
  const std::int64_t all = std::max<std::int64_t>(1, shape.count());
  if (slice.shard.dimension == io::ShardSlice::kNotSplit) {
    return {.begin = slice.range.begin, .row = all, .stride = all};
  }
  std::int64_t inner = 1;
  for (std::size_t d = shape.rank(); std::cmp_greater(d, slice.shard.dimension + 1); --d) {
    inner *= shape[d - 1];
  }
  return {.begin = slice.range.begin,
          .row = slice.shard.count * inner,
          .stride = shape[static_cast<std::size_t>(slice.shard.dimension)] * inner,
          .first = slice.shard.first * inner};
}

}  // namespace

Digest digest_of(const io::TensorSlice& slice, device::Stream& stream) {
  const device::HostView host(slice.data, stream);
  return ops::digest_of(slice.name, host.view(), places_of(slice));
}

Digest digest_of(const io::TensorSlice& slice, ops::Context& context) {
  return ops::digest_of(context, slice.name, slice.data, places_of(slice));
}

Digest digest_of(std::span<const io::TensorSlice> slices, device::Stream& stream) {
  Digest digest;
  for (const io::TensorSlice& slice : slices) {
    digest += digest_of(slice, stream);
  }
  return digest;
}

StepDigests& StepDigests::operator+=(const StepDigests& other) {
  weights += other.weights;
  state += other.state;
  gradients += other.gradients;
  return *this;
}

std::vector<double> halves_of(const StepDigests& digests) {
  std::vector<double> halves;
  for_words(digests, [&](std::uint64_t word) {
    halves.push_back(static_cast<double>(word >> 32U));
    halves.push_back(static_cast<double>(word & 0xFFFFFFFFU));
  });
  return halves;
}

StepDigests digests_in(std::span<const double> halves) {
  StepDigests digests;
  std::size_t at = 0;
  for_words(digests, [&](std::uint64_t& word) {
    word = (static_cast<std::uint64_t>(halves[at]) << 32U) +
           static_cast<std::uint64_t>(halves[at + 1]);
    at += 2;
  });
  return digests;
}

bool has_digests(const plan::Plan& plan, std::int64_t step) {
  const std::int64_t every = plan.config.run.receipts;
  return every > 0 && (step % every == 0 || step == plan.total_steps);
}

std::uint64_t samples_hash(const plan::Plan& plan, const io::Dataset& data, std::int64_t step) {
  const config::RunConfig& config = plan.config;
  const std::int64_t batch = config.batch.global;
  const bool windows = plan.train_data.task == io::Task::kNextToken &&
                       config.data.sampling == io::Sampling::kWindows;
  std::vector<std::int64_t> places(static_cast<std::size_t>(batch));
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t position = (step - 1) * batch + i;
    places[static_cast<std::size_t>(i)] =
        windows ? io::window_at(config.run.seed, data.info().tokens - data.info().input_shape[0],
                                position)
        : data.mixture() != nullptr ? io::mixed_sample_at(config.run.seed, data, position).sample
                                    : io::sample_at(config.run.seed, data.info().samples, position);
  }
  return hash_of(std::as_bytes(std::span(places)));
}

bool determines_numbers(std::string_view key) {
  // Settings that change no number, or name files.
  constexpr std::string_view kLeftOut[]{
      "data.train",      "data.test",           "data.reader_threads",  "data.accept_change",
      "train.log_every", "train.metrics_every", "train.evaluate_every", "train.evaluate_batches",
      "train.check",     "train.check_every",   "train.repeat_every",   "train.patience",
      "train.recompute", "train.epochs",        "train.steps"};
  constexpr std::string_view kSections[]{"model.",    "lora.",  "optimizer.", "schedule.", "batch.",
                                         "numerics.", "local.", "data.",      "train."};
  const bool is_in = std::ranges::any_of(
      kSections, [&](std::string_view section) { return key.starts_with(section); });
  const bool is_grid = key == "numerics.lanes" || key == "numerics.shards" ||
                       key == "batch.micro" || key == "numerics.loss_pieces";
  return key == "run.seed" || (is_in && !is_grid && std::ranges::count(kLeftOut, key) == 0);
}

std::string identity_hash(const plan::Plan& plan) {
  std::string text = fmt::format("run.seed = {}\ndata = {}\n", plan.config.run.seed,
                                 hash_text(plan.train_data.checksum));
  if (plan.parts > 1) {  // else the resolved schedule has what follows from the number of steps
    text += fmt::format("steps = {}\n", plan.total_steps);
  }
  for (const std::string& layer : plan.config.model.layers) {
    text += fmt::format("{} = {}\n", config::kLayerKey, layer);
  }
  for (const config::Option& option : config::option_table()) {
    if (option.key != "run.seed" && determines_numbers(option.key)) {
      text += fmt::format("{} = {}\n", option.key, option.get(plan.config));
    }
  }
  return sha256_text(text);
}

nlohmann::ordered_json start_facts(const plan::Plan& plan,
                                   const nlohmann::ordered_json& environment) {
  const plan::VirtualGrid grid = plan::virtual_grid_of(plan);
  return {{"run", identity_hash(plan)},    {"data", hash_text(plan.train_data.checksum)},
          {"lanes", grid.lanes},           {"shards", grid.shards},
          {"microbatch", grid.microbatch}, {"loss_pieces", grid.loss_pieces},
          {plan::kPartsKey, plan.parts},   {"environment", environment}};
}

}  // namespace strata::train
