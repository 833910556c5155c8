#include <algorithm>
#include <cmath>
#include <span>

#include "strata/ops/batch_norm.hpp"
#include "strata/ops/elementwise.hpp"

#include "layers/channel_blocks.hpp"
#include "layers/layer_kinds.hpp"
#include "layers/norm_part.hpp"

namespace strata::nn {
namespace {

/// Normalises each channel over the rows of a microbatch, with `sync` over the concurrent
/// microbatches of all lanes, or in evaluation by running statistics; then scales, shifts and
/// optionally applies relu. Running statistics follow the microbatches of a step in order
/// (docs/convolution.md), the running variance from unbiased ones. y has the placement of x.
/// Source: Ioffe, Szegedy, "Batch normalization", arXiv 1502.03167.
class BatchNorm final : public Layer, private JoinedPasses {
 public:
  struct Options {
    double momentum = 0.1;
    double epsilon = 1e-5;
    ops::Activation activation = ops::Activation::kNone;
    Switch sync = Switch::kOff;
  };

  BatchNorm(const LayerSite& site, const Options& options)
      : Layer(site.name, site.input, site.input,
              {.backward_reads_output = options.activation == ops::Activation::kRelu,
               .counts_microbatches = true}),
        lanes_(options.sync == Switch::kOn ? site.lanes : 1),
        microbatches_(site.microbatches / lanes_),
        options_(options) {}

  std::string text() const override {
    return std::string("batch_norm") + (has_relu() ? " relu" : "") +
           (options_.sync == Switch::kOn ? " sync" : "");
  }

  std::vector<ParameterSpec> parameters() const override {
    const auto vector = [&](const char* part, Initializer initializer) {
      return ParameterSpec{.name = parameter_name(name(), part),
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
      specs[running].keep = std::pow(1.0 - options_.momentum, static_cast<double>(microbatches_));
    }
    return specs;
  }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    return slot_list<Saved, SavedSpec>(
        {{Saved::kMean, {channels_spec(pass)}}, {Saved::kVariance, {channels_spec(pass)}}});
  }

  std::vector<TensorSpec> gradients(const PassShape& pass) const override {
    return slot_list<Gradient, TensorSpec>(
        {{Gradient::kWeight, channels_spec(pass)}, {Gradient::kBias, channels_spec(pass)}});
  }

  std::vector<TensorSpec> workspace(const PassShape& pass) const override {
    if (joined() == nullptr) {
      return {};
    }
    const std::int64_t held = held_channels(pass);
    const DType dtype = compute_dtype(pass.dtype);
    const std::int64_t own = pass.concurrent_lanes == lanes_ ? 0 : pass.concurrent_lanes;
    return slot_list<Workspace, TensorSpec>({{Workspace::kAllLanes, {{lanes_, 2, held}, dtype}},
                                             {Workspace::kOwnLanes, {{own, 2, held}, dtype}},
                                             {Workspace::kMeans, {{2, held}, dtype}}});
  }

  const JoinedPasses* joined() const override { return lanes_ > 1 ? this : nullptr; }
  void check(const PassShape& pass) const override {
    if (rows_at(input(), pass.microbatch) * lanes_ == 1) {
      fail(ExitCode::kUsage,
           "{} normalises each channel over a microbatch, but a microbatch has one value of "
           "each; set batch.micro to at least 2",
           name());
    }
  }

  void forward(const LayerPass& pass) const override {
    if (pass.mode == Mode::kTraining) {
      make_statistics(pass, pass.saved.at(Saved::kMean), pass.saved.at(Saved::kVariance));
    }
    normalise(pass);
  }

  void forward_lanes(std::span<const LayerPass> passes) const override {
    const LayerPass& first = passes.front();
    for (std::size_t k = 0; k < passes.size(); ++k) {
      const auto& [mean, variance] = own_vectors(first, k);
      make_statistics(passes[k], mean, variance);
    }
    exchange(first);
    ops::combine_statistics(first.context, first.lanes->steps(),
                            first.workspace.at(Workspace::kAllLanes), first.saved.at(Saved::kMean),
                            first.saved.at(Saved::kVariance));
    for (const LayerPass& pass : passes) {
      for (const Saved statistic : {Saved::kMean, Saved::kVariance}) {
        ops::copy(pass.context, first.saved.at(statistic), pass.saved.at(statistic));
      }
      normalise(pass);
    }
  }

  void backward(const LayerPass& pass, Wants wants) const override {
    if (wants_input(wants)) {
      make_sums(pass);
      if (!pass.input_gradient.empty()) {
        differentiate(pass,
                      {pass.gradients.at(Gradient::kWeight), pass.gradients.at(Gradient::kBias)});
      }
      pass.engine.progress();
    }
    if (wants_weights(wants)) {
      weight_gradients(pass);
    }
  }

  void backward_lanes(std::span<const LayerPass> passes) const override {
    const LayerPass& first = passes.front();
    for (std::size_t k = 0; k < passes.size(); ++k) {
      make_sums(passes[k]);
      const auto& [weight, bias] = own_vectors(first, k);
      ops::copy(first.context, passes[k].gradients.at(Gradient::kWeight), weight);
      ops::copy(first.context, passes[k].gradients.at(Gradient::kBias), bias);
    }
    if (first.input_gradient.empty()) {
      return;
    }
    exchange(first);
    // Each lane divides by its own rows: the mean of the lanes' sums over the rows of one lane
    // equals their sum over the rows of all lanes.
    const TensorView& means = first.workspace.at(Workspace::kMeans);
    ops::mean_of_parts(first.context, first.lanes->steps(),
                       first.workspace.at(Workspace::kAllLanes), means);
    for (const LayerPass& pass : passes) {
      differentiate(pass, vectors_of(means));
    }
  }

 private:
  enum class Saved { kMean, kVariance };
  /// Sums over the rows of a microbatch.
  enum class Gradient { kWeight, kBias };
  /// For joined lanes, two vectors a lane: of all lanes; of the own ones where there are others;
  /// the mean over the lanes.
  enum class Workspace { kAllLanes, kOwnLanes, kMeans };
  /// Mean and variance, or the gradients of weight and bias; a number for each channel held.
  struct Vectors {
    TensorView first;
    TensorView second;
  };

  // The parameters.
  static constexpr std::size_t kWeight = 0;
  static constexpr std::size_t kBias = 1;
  static constexpr std::size_t kRunningMean = 2;
  static constexpr std::size_t kRunningVariance = 3;

  [[nodiscard]] bool has_relu() const { return options_.activation == ops::Activation::kRelu; }

  /// The statistics of one microbatch.
  void make_statistics(const LayerPass& pass, const TensorView& mean,
                       const TensorView& variance) const {
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      ops::column_statistics(pass.context, block.of(pass.input), channels(mean, block),
                             channels(variance, block));
    }
  }

  void normalise(const LayerPass& pass) const {
    const bool trains = pass.mode == Mode::kTraining;
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      const auto weight = [&](std::size_t i) { return pass.weights[i][at(block)]; };
      ops::batch_norm_forward(
          pass.context, block.of(pass.input),
          trains ? channels(pass.saved.at(Saved::kMean), block) : weight(kRunningMean),
          trains ? channels(pass.saved.at(Saved::kVariance), block) : weight(kRunningVariance),
          weight(kWeight), weight(kBias), options_.epsilon, options_.activation,
          block.of(pass.output));
    }
  }

  /// The gradients of weight and bias: sums that the input's gradient also needs.
  void make_sums(const LayerPass& pass) const {
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      ops::batch_norm_backward_sums(
          pass.context, block.of(pass.input), channels(pass.saved.at(Saved::kMean), block),
          channels(pass.saved.at(Saved::kVariance), block), options_.epsilon,
          relu_output(pass, block), block.of(pass.output_gradient),
          channels(pass.gradients.at(Gradient::kWeight), block),
          channels(pass.gradients.at(Gradient::kBias), block));
    }
  }

  void differentiate(const LayerPass& pass, const Vectors& sums) const {
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      ops::batch_norm_backward_input(
          pass.context, block.of(pass.input), channels(pass.saved.at(Saved::kMean), block),
          channels(pass.saved.at(Saved::kVariance), block), pass.weights[kWeight][at(block)],
          options_.epsilon, relu_output(pass, block), block.of(pass.output_gradient),
          channels(sums.first, block), channels(sums.second, block), block.of(pass.input_gradient));
    }
  }

  void weight_gradients(const LayerPass& pass) const {
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      const auto add = [&](std::size_t parameter, const TensorView& term, double factor) {
        ops::scaled(pass.context, factor, channels(term, block),
                    pass.weight_gradients[parameter][at(block)], pass.accumulate);
      };
      const std::int64_t rows = pass.input.count() / block.held;
      const double share = share_of(pass.first_sample, rows / rows_at(input(), 1));
      const auto count = static_cast<double>(rows * lanes_);
      add(kWeight, pass.gradients.at(Gradient::kWeight), 1.0);
      add(kBias, pass.gradients.at(Gradient::kBias), 1.0);
      add(kRunningMean, pass.saved.at(Saved::kMean), share);
      add(kRunningVariance, pass.saved.at(Saved::kVariance),
          share * count / std::max(1.0, count - 1.0));
    }
  }

  [[nodiscard]] TensorView relu_output(const LayerPass& pass, const ChannelBlock& block) const {
    return has_relu() ? block.of(pass.output) : TensorView();
  }

  [[nodiscard]] static const TensorView& own_lanes(const LayerPass& pass) {
    const TensorView& own = pass.workspace.at(Workspace::kOwnLanes);
    return own.empty() ? pass.workspace.at(Workspace::kAllLanes) : own;
  }

  [[nodiscard]] static Vectors vectors_of(const TensorView& lane) {
    const std::int64_t held = lane.count() / 2;
    return {lane.flat_slice(0, held), lane.flat_slice(held, held)};
  }

  /// The vectors of the k-th own lane.
  [[nodiscard]] static Vectors own_vectors(const LayerPass& pass, std::size_t k) {
    const std::int64_t count = pass.workspace.at(Workspace::kMeans).count();
    return vectors_of(own_lanes(pass).flat_slice(static_cast<std::int64_t>(k) * count, count));
  }

  static void exchange(const LayerPass& pass) {
    pass.lanes->all_gather_parts(own_lanes(pass), pass.workspace.at(Workspace::kAllLanes));
  }

  [[nodiscard]] std::int64_t held_channels(const PassShape& pass) const {
    return channel_blocks(input(), pass.shards).front().held;
  }

  /// One number for each channel that a rank holds.
  [[nodiscard]] TensorSpec channels_spec(const PassShape& pass) const {
    return {{held_channels(pass)}, compute_dtype(pass.dtype)};
  }

  [[nodiscard]] static std::size_t at(const ChannelBlock& block) {
    return static_cast<std::size_t>(block.local);
  }

  [[nodiscard]] static TensorView channels(const TensorView& tensor, const ChannelBlock& block) {
    return tensor.flat_slice(block.first, block.channels);
  }

  /// The weight of a microbatch's statistics in the running statistics after the step. Joined lanes
  /// have equal statistics, and only the first lane's count.
  [[nodiscard]] double share_of(std::int64_t first_sample, std::int64_t microbatch) const {
    const std::int64_t number = first_sample / microbatch % (microbatches_ * lanes_);
    if (number >= microbatches_) {
      return 0.0;
    }
    return options_.momentum *
           std::pow(1.0 - options_.momentum, static_cast<double>(microbatches_ - 1 - number));
  }

  /// Lanes that share statistics; 1 where each lane has its own.
  std::int64_t lanes_;
  /// Updates of the running statistics in a step.
  std::int64_t microbatches_;
  Options options_;
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
  const Switch sync = line.take_enum("sync", site.sync_batch_norm);
  return std::make_unique<BatchNorm>(
      site, BatchNorm::Options{
                .momentum = momentum, .epsilon = epsilon, .activation = activation, .sync = sync});
}

}  // namespace strata::nn
