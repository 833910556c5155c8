#include "replication/sample_feed.hpp"

#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "../io/data_files.hpp"
#include "train_rank.hpp"

namespace strata::train::test::sample_feed_test {
namespace {

constexpr std::int64_t kSteps = 6;

/// Steps of two microbatches of images and their classes.
class Feed : public testing::Test {
 protected:
  Feed() {
    const io::ImportReport report = io::test::import_images(directory_, 52, "40,12");
    base_.model.layers = {"flatten", "dense 3"};
    base_.data.train = report.train.string();
    base_.batch.global = 8;
    base_.batch.micro = 4;
    base_.train.steps = kSteps;
    dataset_.emplace(plan::open_train_data(base_));
    plan_.emplace(plan::prepare(base_, 1, dataset_->info(), {}));
    rank_.emplace(rank_plan(*plan_, 0));
  }

  [[nodiscard]] SampleFeed feed(ops::Context& context) const {
    return {context, *dataset_, *rank_, training_loader(*plan_, *rank_, 0)};
  }
  /// The step's inputs and targets, byte for byte.
  [[nodiscard]] std::vector<std::vector<std::byte>> samples(const SampleFeed& feed,
                                                            ops::Context& context) const {
    std::vector<std::vector<std::byte>> all;
    for (std::int64_t m = 0; m < plan_->microbatches; ++m) {
      for (const ConstTensorView& tensor : {feed.inputs(m), feed.targets(m)}) {
        std::vector<std::byte>& bytes = all.emplace_back(static_cast<std::size_t>(tensor.bytes()));
        context.synchronize();
        device::copy_tensor(tensor, TensorView(bytes.data(), tensor.shape(), tensor.dtype()));
      }
    }
    return all;
  }

  io::test::TemporaryDirectory directory_;
  config::RunConfig base_;
  std::optional<io::Dataset> dataset_;
  std::optional<plan::Plan> plan_;
  std::optional<plan::RankPlan> rank_;
};

TEST_F(Feed, OfAGpuGivesTheCpusSamplesInOneBufferWithAndWithoutPrefetch) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  ops::Context cpu(1);
  ops::Context gpu = ops::Context::cuda(device::Device::cuda(0));
  SampleFeed expected = feed(cpu);
  SampleFeed given = feed(gpu);
  std::set<const std::byte*> places;
  std::set<std::vector<std::vector<std::byte>>> steps;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    expected.next();
    given.next();
    // Of every three steps one is not sent ahead, and one is while this step's samples wait to be
    // read.
    const bool is_early = step % 3 == 1;
    const auto send_ahead = [&] {
      while (step + 1 < kSteps && !given.prefetch()) {
        std::this_thread::yield();
      }
    };
    if (is_early) {
      send_ahead();
    }
    const auto found = samples(given, gpu);
    EXPECT_EQ(found, samples(expected, cpu)) << "step " << step;
    steps.insert(found);
    places.insert(given.inputs(0).raw());
    if (step % 3 == 2) {
      send_ahead();
    }
  }
  EXPECT_EQ(steps.size(), static_cast<std::size_t>(kSteps)) << "each step has its own samples";
  EXPECT_EQ(places.size(), 1U);
}

TEST_F(Feed, OfTheCpuSendsNothing) {
  ops::Context cpu(1);
  SampleFeed all = feed(cpu);
  all.next();
  EXPECT_FALSE(all.prefetch());
}

}  // namespace
}  // namespace strata::train::test::sample_feed_test
