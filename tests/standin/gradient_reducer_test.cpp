#include "strata/optim/gradient_reducer.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "strata/device/buffer.hpp"
#include "strata/device/device.hpp"
#include "strata/ops/context.hpp"

#include "../unit/optim/layouts.hpp"

// The stand-in does the work of a stream when somebody waits for it, and not before: what of
// another stream is done tells what the waiting stream waited for.
namespace strata::optim::test {
namespace {

constexpr std::int64_t kRanks = 8;
constexpr std::int64_t kRank = 3;
constexpr std::int64_t kLayers = 12;

/// The messages of one rank of a group with a stream of its own, as NCCL has one. What the others
/// send is in this GPU's memory.
class StreamGroup final : public comm::Communicator {
 public:
  /// The n-th tensor of an exchange that comes from a peer.
  using Source = std::function<TensorView(std::int64_t peer, std::int64_t n, std::int64_t count)>;

  explicit StreamGroup(device::Stream& compute)
      : Communicator(kRank, kRanks, "stream group"),
        compute_(compute),
        stream_(compute.device()),
        first_(compute.device(), 1) {}

  /// Of the messages that are exchanged next.
  void set_source(Source source) { source_ = std::move(source); }
  [[nodiscard]] std::int64_t messages() const { return messages_; }
  /// How often the compute stream was made to wait.
  [[nodiscard]] std::int64_t waits() const { return waits_; }
  [[nodiscard]] bool first_message_is_done() const { return first_.reached(); }
  [[nodiscard]] bool all_messages_are_done() const { return stream_.idle(); }

  void barrier() override {}
  void broadcast(TensorView /*payload*/, std::int64_t /*root*/) override {}
  void all_gather(ConstTensorView /*mine*/, TensorView /*all*/) override {}
  void all_reduce(TensorView /*sum*/) override {}
  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> /*members*/,
                                         std::string /*name*/) override {
    return nullptr;
  }

 private:
  class Message final : public comm::Request::Operation {
   public:
    explicit Message(StreamGroup& group) : group_(group), done_(group.stream_.device(), 1) {
      done_.record(group_.stream_);
    }
    bool test() override {
      done_.wait(group_.compute_);
      ++group_.waits_;
      return true;
    }
    bool follow(const std::function<void(device::Stream&)>& work) override {
      work(group_.stream_);
      done_ = device::Event(group_.stream_.device(), 1);
      done_.record(group_.stream_);
      return true;
    }

   private:
    StreamGroup& group_;
    device::Event done_;
  };

  std::unique_ptr<comm::Request::Operation> begin_exchange(
      std::span<const comm::Outgoing> /*sends*/, std::span<const comm::Incoming> receives,
      comm::Tag /*tag*/) override {
    begin();
    std::array<std::int64_t, kRanks> received{};
    for (const comm::Incoming& message : receives) {
      const std::int64_t n = received.at(static_cast<std::size_t>(message.peer))++;
      device::copy_tensor(source_(message.peer, n, message.payload.count()), message.payload,
                          stream_);
    }
    return end();
  }
  std::unique_ptr<comm::Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override {
    begin();
    const grid::Range& own = slices[kRank];
    device::copy_tensor(source_(0, 0, own.count()), tensor.flat_slice(own.begin, own.count()),
                        stream_);
    return end();
  }
  std::unique_ptr<comm::Request::Operation> begin_send(ConstTensorView /*payload*/,
                                                       std::int64_t /*peer*/,
                                                       comm::Tag /*tag*/) override {
    return nullptr;
  }
  std::unique_ptr<comm::Request::Operation> begin_receive(TensorView /*payload*/,
                                                          std::int64_t /*peer*/,
                                                          comm::Tag /*tag*/) override {
    return nullptr;
  }

  void begin() {
    device::Event ready(stream_.device(), 1);
    ready.record(compute_);
    ready.wait(stream_);
  }
  std::unique_ptr<comm::Request::Operation> end() {
    if (messages_++ == 0) {
      first_.record(stream_);
    }
    return std::make_unique<Message>(*this);
  }

  device::Stream& compute_;
  device::Stream stream_;
  Source source_;
  device::Event first_;
  std::int64_t messages_ = 0;
  std::int64_t waits_ = 0;
};

/// The sum of lanes [begin, end) by the tree.
std::vector<float> tree_sum(const std::vector<std::vector<float>>& lanes, std::size_t begin,
                            std::size_t end) {
  if (end - begin == 1) {
    return lanes[begin];
  }
  const std::size_t middle = begin + (end - begin) / 2;
  std::vector<float> sum = tree_sum(lanes, begin, middle);
  std::ranges::transform(sum, tree_sum(lanes, middle, end), sum.begin(), std::plus());
  return sum;
}

void expect_one_wait(comm::Summation summation, std::int64_t node_ranks = 1) {
  SCOPED_TRACE(node_ranks);
  const nn::ParameterLayout layout =
      layout_with(std::vector<std::int64_t>(2 * kLayers, 4 * nn::ParameterLayout::kBlock));
  const Shape arena{layout.elements};
  const device::Device gpu = device::Device::cuda(0);
  ops::Context context = ops::Context::cuda(gpu);
  std::vector<std::vector<float>> lanes;
  std::vector<device::Buffer> memory;
  const auto on_gpu = [&](std::vector<float> values) {
    memory.emplace_back(gpu, 4 * layout.elements);
    const TensorView copy = memory.back().view(0, arena, DType::kFloat32);
    device::copy_tensor(view_of(values), copy);
    return copy;
  };
  std::vector<TensorView> gradients;
  for (std::uint64_t lane = 0; lane < kRanks; ++lane) {
    lanes.push_back(arena_numbers(layout, lane));
    gradients.push_back(on_gpu(lanes.back()));
  }
  std::vector<TensorView> node_sums;
  for (std::int64_t first = 0; first < kRanks; first += node_ranks) {
    node_sums.push_back(on_gpu(tree_sum(lanes, static_cast<std::size_t>(first),
                                        static_cast<std::size_t>(first + node_ranks))));
  }
  StreamGroup group(context.stream());
  const BucketPlan plan(layout, kRanks, nn::ParameterLayout::kBlock * kRanks);
  ASSERT_GT(std::ssize(plan.buckets()), 4);
  GradientReducer reducer(context, group, grid::Assignment::blocked(grid::SumTree(kRanks), kRanks),
                          plan,
                          {.elements = layout.elements,
                           .summation = summation,
                           .in_flight = 1,
                           .node_ranks = node_ranks});
  group.set_source([&](std::int64_t /*peer*/, std::int64_t /*n*/, std::int64_t count) {
    return gradients[0].flat_slice(0, count);
  });
  reducer.observe_sums([&](const Bucket& bucket, std::span<const TensorView> /*partials*/) {
    group.set_source([&](std::int64_t peer, std::int64_t n, std::int64_t count) {
      const bool inside = node_ranks > 1 && peer / node_ranks == kRank / node_ranks;
      const std::int64_t owner = inside ? n * node_ranks + kRank % node_ranks : kRank;
      return (inside ? gradients[static_cast<std::size_t>(peer)]
                     : node_sums[static_cast<std::size_t>(peer / node_ranks)])
          .flat_slice(bucket.elements.begin + bucket.slices[static_cast<std::size_t>(owner)].begin,
                      count);
    });
  });

  const nn::GradientSink::Target target = reducer.begin_microbatch(0, {0, kLayers});
  for (std::int64_t layer = kLayers; layer-- > 0;) {
    for (const nn::PlacedParameter& placed : layout.parameters) {
      if (placed.spec.layer == layer) {
        const std::int64_t count = placed.shape.count();
        device::copy_tensor(gradients[kRank].flat_slice(placed.offset, count),
                            target.gradients.flat_slice(placed.offset, count), context.stream());
      }
    }
    reducer.layer_done(0, layer);
  }
  EXPECT_EQ(group.messages(), (node_ranks == 1 ? 1 : 2) * std::ssize(plan.buckets()));
  context.synchronize();
  EXPECT_FALSE(group.first_message_is_done());
  EXPECT_EQ(group.waits(), 0);

  reducer.finish();
  EXPECT_EQ(group.waits(), 1);
  context.synchronize();
  EXPECT_TRUE(group.all_messages_are_done());
  if (summation == comm::Summation::kLibrary) {
    return;
  }
  std::vector<float> sums(static_cast<std::size_t>(layout.elements));
  device::copy_tensor(reducer.sums(), view_of(sums));
  const std::vector<float> expected = tree_sum(lanes, 0, kRanks);
  for (const Bucket& bucket : plan.buckets()) {
    const grid::Range& own = bucket.slices[kRank];
    const auto begin = bucket.elements.begin + own.begin;
    EXPECT_TRUE(std::equal(sums.begin() + begin, sums.begin() + begin + own.count(),
                           expected.begin() + begin))
        << "bucket from " << bucket.elements.begin;
  }
}

TEST(GradientReducerOnAGpu, WaitsForMessagesOfTheirOwnStreamOnceAfterTheLastLayer) {
  for (const std::int64_t node_ranks : {1, 2, 4}) {
    expect_one_wait(comm::Summation::kInvariant, node_ranks);
  }
  expect_one_wait(comm::Summation::kLibrary);
}

}  // namespace
}  // namespace strata::optim::test
