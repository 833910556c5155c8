#include "loop/text_sample.hpp"

#include <algorithm>
#include <span>

#include "strata/comm/values.hpp"
#include "strata/device/host_copy.hpp"

#include "loop/row_logits.hpp"

namespace strata::train {
namespace {

/// A microbatch with a text at the start of its first sample; the rest is token 0.
class PromptSource final : public pipeline::MicrobatchSource {
 public:
  PromptSource(ops::Context& context, const Shape& shape)
      : memory_(context.device(), shape.count() * size_bytes(DType::kInt64)),
        tokens_(memory_.view(0, shape, DType::kInt64)),
        zeros_(context.device(), tokens_.bytes()) {
    const TensorView zeros = zeros_.view(0, {tokens_.bytes()}, DType::kUint8);
    device::write_from_host(zeros, [](std::int64_t /*first*/, const TensorView& piece) {
      std::ranges::fill(piece.host<std::uint8_t>(), std::uint8_t{0});
    });
  }

  void set(std::span<const std::int64_t> text) {
    device::write_from_host(tokens_, [&](std::int64_t first, const TensorView& piece) {
      const std::span<std::int64_t> into = piece.host<std::int64_t>();
      for (std::size_t i = 0; i < into.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(first) + i;
        into[i] = at < text.size() ? text[at] : 0;
      }
    });
  }

  ConstTensorView inputs(std::int64_t /*m*/) override { return tokens_; }
  ConstTensorView targets(std::int64_t /*m*/) override { return tokens_; }
  /// One document, and for a loss of pairs a reference.
  nn::RowPlaces places(std::int64_t /*m*/) override {
    return {.document_starts = zeros_.view(0, tokens_.shape(), DType::kUint32)};
  }
  ConstTensorView references(std::int64_t /*m*/) override {
    return zeros_.view(0, {tokens_.shape()[0]}, DType::kFloat64);
  }
  std::int64_t first_row(std::int64_t /*m*/) override { return 0; }
  std::int64_t valid_rows(std::int64_t /*m*/) override { return 0; }

 private:
  device::Buffer memory_;
  TensorView tokens_;
  device::Buffer zeros_;
};

}  // namespace

std::vector<std::int64_t> sampled_text(ops::Context& context, const plan::Plan& plan,
                                       const plan::RankPlan& rank, comm::Groups& groups,
                                       pipeline::Executor& executor, std::vector<std::int64_t> text,
                                       std::int64_t count, const SamplingOptions& options,
                                       const std::function<bool()>& stops) {
  const std::int64_t length = plan.model->input_shape()[0];
  const pipeline::Schedule schedule = pipeline::insert_communication(
      pipeline::forward_order(plan.training.order, plan.grid.pipeline, 1));
  PromptSource source(context, Shape{plan.config.batch.micro, length});
  std::vector<std::int64_t> sampled;
  while (std::ssize(sampled) < count && std::ssize(text) < length && !stops()) {
    source.set(text);
    std::int64_t token = 0;
    static_cast<void>(executor.evaluate(
        schedule, source,
        [&](std::int64_t /*m*/, const ConstTensorView& outputs, const ConstTensorView& /*targets*/,
            std::int64_t /*valid*/) {
          groups.engine->drain();
          const std::int64_t last = std::ssize(text) - 1;
          const std::vector<double> logits =
              row_logits(outputs, {last, last + 1},
                         nn::logit_blocks(plan.model->output(), rank.chunks.back().pass),
                         groups.along(grid::Axis::kTensor), context.stream());
          token = sample_token(std::vector<float>(logits.begin(), logits.end()),
                               plan.train_data.classes, options, std::ssize(sampled));
        }));
    sampled.push_back(
        comm::broadcast_from(groups.along(grid::Axis::kPipeline), token, loss_stage(plan)));
    text.push_back(sampled.back());
  }
  return sampled;
}

}  // namespace strata::train
