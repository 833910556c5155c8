// What a plan says that a rank sends over its tensor group is what it sends.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/comm/threads.hpp"

#include "language_bench.hpp"

namespace strata::nn::test {
namespace {

constexpr std::int64_t kMicrobatch = 2;
constexpr std::int64_t kContext = 8;
constexpr std::int64_t kVocabulary = 16;

/// Passes everything on to another communicator and counts what this rank sends.
class CountingCommunicator final : public comm::Communicator {
 public:
  explicit CountingCommunicator(comm::Communicator& inner)
      : Communicator(inner.rank(), inner.size(), inner.name()), inner_(inner) {}

  void barrier() override { inner_.barrier(); }
  void broadcast(TensorView payload, std::int64_t root) override {
    inner_.broadcast(payload, root);
  }
  void all_gather(ConstTensorView mine, TensorView all) override {
    count(static_cast<double>(size() - 1), mine.bytes());
    inner_.all_gather(mine, all);
  }
  void all_reduce(TensorView sum) override { inner_.all_reduce(sum); }
  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                         std::string name) override {
    return inner_.subgroup(members, std::move(name));
  }

  [[nodiscard]] const LayerTraffic& sent() const { return sent_; }

 private:
  class Passed final : public comm::Request::Operation {
   public:
    explicit Passed(comm::Request request) : request_(std::move(request)) {}
    bool test() override { return request_.test(); }

   private:
    comm::Request request_;
  };

  void count(double messages, std::int64_t bytes) {
    sent_ += {messages, messages * static_cast<double>(bytes)};
  }

  std::unique_ptr<comm::Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                       comm::Tag tag) override {
    count(1.0, payload.bytes());
    return std::make_unique<Passed>(inner_.send(payload, peer, tag));
  }
  std::unique_ptr<comm::Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                          comm::Tag tag) override {
    return std::make_unique<Passed>(inner_.receive(payload, peer, tag));
  }
  std::unique_ptr<comm::Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override {
    return std::make_unique<Passed>(inner_.reduce_scatter(tensor, slices));
  }

  comm::Communicator& inner_;
  LayerTraffic sent_;
};

struct Case {
  std::string name;
  std::vector<std::string> layers;
  Recompute recompute = Recompute::kNone;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class StageTraffic : public testing::TestWithParam<Case> {};

template <typename T>
void expect_traffic(const Case& c, Placement rows, std::int64_t shards, std::int64_t ranks) {
  const Model model({.layers = c.layers,
                     .input_shape = Shape{kContext},
                     .outputs = kVocabulary,
                     .seed = 3,
                     .input_kind = InputKind::kTokenIds,
                     .shards = shards,
                     .token_rows = rows});
  const Samples samples = language_samples(1, kMicrobatch * kContext, kVocabulary);
  comm::run_thread_ranks(ranks, [&](comm::Communicator& world) {
    SCOPED_TRACE(fmt::format("rank {} of {}, {} shards, rows {}, {}", world.rank(), ranks, shards,
                             name_of(rows), name_of(kDTypeOf<T>)));
    CountingCommunicator counting(world);
    StageSpec spec = spec_of<T>({0, model.layer_count()}, kMicrobatch);
    spec.pass.recompute = c.recompute;
    spec.order = BackwardOrder::kFused;
    StageBench<T> bench(model, spec,
                        comm::ShardGroup(counting, shards, comm::Summation::kInvariant));
    train(model, bench, samples);
    const LayerTraffic planned = Stage::traffic(model, bench.spec());
    EXPECT_EQ(counting.sent().messages, planned.messages);
    EXPECT_EQ(counting.sent().bytes, planned.bytes);
  });
}

TEST_P(StageTraffic, IsWhatIsSent) {
  for (const Placement rows : {Placement::kReplicated, Placement::kTokens}) {
    for (const std::int64_t ranks : {1, 2, 4}) {
      expect_traffic<float>(GetParam(), rows, 4, ranks);
      expect_traffic<BFloat16>(GetParam(), rows, ranks, ranks);
      expect_traffic<double>(GetParam(), rows, 4, ranks);
    }
  }
}

const std::string kAttention = "attention 4 dropout=0.1";
const std::string kGrouped = "attention 8 kv_heads=4 head_size=2 norm=rms_norm bias=no";

INSTANTIATE_TEST_SUITE_P(
    Models, StageTraffic,
    testing::Values(
        Case{"embedding_and_head", {"embedding 8", "head"}},
        Case{"gpt", {"embedding 8 positions=8", kAttention, "mlp 12", "layer_norm", "head"}},
        Case{"gpt_selective",
             {"embedding 8 positions=8", kAttention, "mlp 12", "layer_norm", "head"},
             Recompute::kSelective},
        Case{"llama_full",
             {"embedding 8", kGrouped, "mlp 12 swiglu norm=rms_norm bias=no", "rms_norm",
              "head tied=no"},
             Recompute::kFull},
        Case{"without_norms",
             {"embedding 8", "attention 4 norm=none residual=no", "mlp 12 norm=none", "head"},
             Recompute::kSelective}),
    [](const auto& test) { return test.param.name; });

TEST(StageTrafficOfDense, IsWhatIsSent) {
  expect_traffic<float>({"dense",
                         {"embedding 8", "dense 12 relu parallel=column", "dropout 0.1",
                          "dense 8 parallel=row", "dense 16 parallel=column"}},
                        Placement::kReplicated, 4, 2);
}

}  // namespace
}  // namespace strata::nn::test
