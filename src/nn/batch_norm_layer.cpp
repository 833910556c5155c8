#include <cmath>

#include "strata/ops/batch_norm.hpp"
#include "strata/ops/elementwise.hpp"

#include "channel_blocks.hpp"
#include "layer_kinds.hpp"
#include "norm_part.hpp"

namespace strata::nn {
namespace {

/// Normalises each channel over the rows of a microbatch, and while evaluating with running
/// statistics; then scales and shifts it, and may end in a relu. Running statistics follow the
/// microbatches of a step in order (docs/convolution.md); the running variance is of the unbiased
/// ones. However channels are split, they stay.
/// Source: Ioffe, Szegedy, "Batch normalization", arXiv 1502.03167.
class BatchNorm final : public Layer {
 public:
  BatchNorm(const LayerSite& site, double momentum, double epsilon, ops::Activation activation)
      : Layer(site.name, site.input, site.input),
        microbatches_(site.microbatches),
        momentum_(momentum),
        epsilon_(epsilon),
        activation_(activation) {}

  std::string text() const override { return has_relu() ? "batch_norm relu" : "batch_norm"; }

  std::vector<ParameterSpec> parameters() const override {
    const auto vector = [&](const char* part, Initializer initializer) {
      return ParameterSpec{.name = name() + "." + part,
                           .shape = {input_shape().back()},
                           .initializer = initializer,
                           .split = input().placement == Placement::kFeatures ? 0 : kNotSplit,
                           .unit = input().placement == Placement::kFeatures ? input().unit : 1};
    };
    std::vector<ParameterSpec> specs{
        vector("weight", Initializer::kOnes), vector("bias", Initializer::kZeros),
        vector("running_mean", Initializer::kZeros), vector("running_var", Initializer::kOnes)};
    for (std::size_t running : {kRunningMean, kRunningVariance}) {
      specs[running].rule = ParameterRule::kAverage;
      specs[running].keep = std::pow(1.0 - momentum_, static_cast<double>(microbatches_));
    }
    return specs;
  }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    const TensorSpec statistic = channels_spec(pass);
    return {{statistic}, {statistic}};
  }

  std::vector<TensorSpec> gradients(const PassShape& pass) const override {
    return {channels_spec(pass), channels_spec(pass)};
  }

  bool backward_reads_output() const override { return has_relu(); }

  void forward(const LayerPass& pass) const override {
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      const auto weight = [&](std::size_t i) { return pass.weights[i][at(block)]; };
      const ConstTensorView x = block.of(pass.input);
      const bool trains = pass.mode == Mode::kTraining;
      const TensorView mean = trains ? channels(pass.saved[0], block) : weight(kRunningMean);
      const TensorView variance =
          trains ? channels(pass.saved[1], block) : weight(kRunningVariance);
      if (trains && x.shape()[0] == 1) {
        fail(ExitCode::kUsage,
             "{} normalises each channel over a microbatch, but a microbatch has one value of "
             "each; set batch.micro to at least 2",
             name());
      }
      if (trains) {
        ops::column_statistics(pass.context, x, mean, variance);
      }
      ops::batch_norm_forward(pass.context, x, mean, variance, weight(kGain), weight(kBias),
                              epsilon_, activation_, block.of(pass.output));
    }
  }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      const ConstTensorView x = block.of(pass.input);
      const TensorView mean = channels(pass.saved[0], block);
      const TensorView variance = channels(pass.saved[1], block);
      const TensorView gain_gradient = channels(pass.gradients[0], block);
      const TensorView bias_gradient = channels(pass.gradients[1], block);
      const TensorView dy = block.of(output_gradient);
      const TensorView y = has_relu() ? block.of(pass.output) : TensorView();
      ops::batch_norm_backward_sums(pass.context, x, mean, variance, epsilon_, y, dy, gain_gradient,
                                    bias_gradient);
      if (!input_gradient.empty()) {
        ops::batch_norm_backward_input(pass.context, x, mean, variance,
                                       pass.weights[kGain][at(block)], epsilon_, y, dy,
                                       gain_gradient, bias_gradient, block.of(input_gradient));
      }
    }
  }

  void backward_weight(const LayerPass& pass, const TensorView& /*output_gradient*/,
                       std::span<const ParameterViews> weight_gradients,
                       ops::Accumulate accumulate) const override {
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      const auto add = [&](std::size_t parameter, const TensorView& term, double factor) {
        ops::scaled(pass.context, factor, channels(term, block),
                    weight_gradients[parameter][at(block)], accumulate);
      };
      const std::int64_t rows = pass.input.count() / block.held;
      const double share = share_of(pass.first_sample, rows / rows_at(input(), 1));
      const auto count = static_cast<double>(rows);
      add(kGain, pass.gradients[0], 1.0);
      add(kBias, pass.gradients[1], 1.0);
      add(kRunningMean, pass.saved[0], share);
      add(kRunningVariance, pass.saved[1], share * count / std::max(1.0, count - 1.0));
    }
  }

 private:
  static constexpr std::size_t kGain = 0;
  static constexpr std::size_t kBias = 1;
  static constexpr std::size_t kRunningMean = 2;
  static constexpr std::size_t kRunningVariance = 3;

  [[nodiscard]] bool has_relu() const { return activation_ == ops::Activation::kRelu; }

  /// One number for each channel that a rank holds.
  [[nodiscard]] TensorSpec channels_spec(const PassShape& pass) const {
    return {{channel_blocks(input(), pass.shards).front().held}, compute_dtype(pass.dtype)};
  }

  [[nodiscard]] static std::size_t at(const ChannelBlock& block) {
    return static_cast<std::size_t>(block.local);
  }

  [[nodiscard]] static TensorView channels(const TensorView& tensor, const ChannelBlock& block) {
    return tensor.flat_slice(block.first, block.channels);
  }

  /// What the statistics of the microbatch that begins with a sample are worth at the end of the
  /// step.
  [[nodiscard]] double share_of(std::int64_t first_sample, std::int64_t microbatch) const {
    const std::int64_t place = first_sample / microbatch % microbatches_;
    return momentum_ * std::pow(1.0 - momentum_, static_cast<double>(microbatches_ - 1 - place));
  }

  std::int64_t microbatches_;
  double momentum_;
  double epsilon_;
  ops::Activation activation_;
};

}  // namespace

std::unique_ptr<Layer> make_batch_norm(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  if (site.input.shape.rank() == 0 || site.input.placement == Placement::kTokens) {
    line.refuse("its input has no channels that lie whole on a rank");
  }
  const ops::Activation activation = line.take_relu();
  const double epsilon = take_epsilon(line);
  const double momentum = line.take_option_number("momentum", 0.1);
  if (!(momentum > 0.0 && momentum <= 1.0)) {
    line.refuse(fmt::format(
        "momentum is {}, the weight of new statistics; it must be above 0 and at most 1",
        momentum));
  }
  return std::make_unique<BatchNorm>(site, momentum, epsilon, activation);
}

}  // namespace strata::nn
