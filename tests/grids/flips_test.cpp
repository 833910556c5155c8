#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "strata/comm/agree.hpp"
#include "strata/core/random.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/receipts.hpp"

#include "harness.hpp"

/// Flips a bit in a small run, and counts which check finds it first and how many steps later.
namespace strata::grids {
namespace {

/// Memory that changes, results that are wrong once, products of a rank that stay wrong.
enum class FlipPlace { kWeights, kGradients, kProducts, kLasting, kMessages };

constexpr auto enum_names(FlipPlace) {
  return names_in_order("weights", "gradients", "a product", "lasting products", "a message");
}

struct Flip {
  FlipPlace place = FlipPlace::kWeights;
  std::int64_t step = -1;
  std::uint64_t draw = 0;     ///< chooses the bit
  std::int64_t message = -1;  ///< of those that the rank receives
};

void flip_bit(const TensorView& tensor, std::uint64_t draw) {
  const std::uint64_t bit = draw % static_cast<std::uint64_t>(8 * tensor.bytes());
  tensor.raw()[bit / 8] ^= std::byte{static_cast<unsigned char>(1U << (bit % 8))};
}

/// What one rank disturbs and sees.
struct FlippedRank {
  Flip flip;
  std::int64_t replica = 0;
  std::vector<grid::Range> parameters;  ///< in the arena, between which there is padding
  std::int64_t step = 0;                ///< that is computed
  std::int64_t messages = 0;            ///< received
  std::int64_t done = 0;                ///< flips, of products those that were put right again
  bool is_wrong = false;                ///< while products are
};

/// Passes everything on to another group, and flips a bit of one received message.
class FlippedGroup final : public comm::Communicator {
 public:
  FlippedGroup(std::unique_ptr<comm::Communicator> group, FlippedRank& rank)
      : Communicator(group->rank(), group->size(), group->name()),
        group_(std::move(group)),
        rank_(rank) {
    set_timeout(group_->timeout());
    set_axis(group_->axis());
  }

  void barrier() override { group_->barrier(); }
  void broadcast(TensorView payload, std::int64_t root) override {
    group_->broadcast(payload, root);
  }
  void all_gather(ConstTensorView mine, TensorView all) override { group_->all_gather(mine, all); }
  void all_reduce(TensorView sum) override { group_->all_reduce(sum); }
  std::unique_ptr<Communicator> subgroup(std::span<const std::int64_t> members,
                                         std::string name) override {
    return group_->subgroup(members, std::move(name));
  }

 private:
  class Flipped final : public comm::Request::Operation {
   public:
    Flipped(comm::Request request, TensorView payload, FlippedRank& rank)
        : request_(std::move(request)), payload_(payload), rank_(rank) {}
    bool test() override {
      if (!request_.test()) {
        return false;
      }
      flip_bit(payload_, rank_.flip.draw);
      rank_.flip.step = rank_.step;
      return true;
    }

   private:
    comm::Request request_;
    TensorView payload_;
    FlippedRank& rank_;
  };

  std::unique_ptr<comm::Request::Operation> begin_send(ConstTensorView payload, std::int64_t peer,
                                                       comm::Tag tag) override {
    return group_->send(payload, peer, tag).release();
  }
  std::unique_ptr<comm::Request::Operation> begin_receive(TensorView payload, std::int64_t peer,
                                                          comm::Tag tag) override {
    comm::Request request = group_->receive(payload, peer, tag);
    if (rank_.messages++ != rank_.flip.message) {
      return request.release();
    }
    return std::make_unique<Flipped>(std::move(request), payload, rank_);
  }
  std::unique_ptr<comm::Request::Operation> begin_reduce_scatter(
      TensorView tensor, std::span<const grid::Range> slices) override {
    return group_->reduce_scatter(tensor, slices).release();
  }

  std::unique_ptr<comm::Communicator> group_;
  FlippedRank& rank_;
};

/// One of the rank's parameters, or of the slices of the reduced gradients that it owns.
TensorView piece_of(const FlippedRank& mine, train::RankState& state) {
  const auto one_of = [&](const auto& all) -> const auto& {
    return all.at((mine.flip.draw >> 16U) % all.size());
  };
  if (mine.flip.place == FlipPlace::kGradients) {
    const optim::OwnedPiece& piece = one_of(state.owned().pieces());
    return state.reducer().sums().flat_slice(piece.arena_offset, piece.range.count());
  }
  const grid::Range& elements = one_of(mine.parameters);
  return state.weights().flat_slice(elements.begin, elements.count());
}

void disturb(FlippedRank& mine, train::StepPoint point, std::int64_t step,
             train::RankState& state) {
  using train::StepPoint;
  mine.step = point == StepPoint::kComputing ? step : mine.step;
  const Flip& flip = mine.flip;
  const bool lasts = flip.place == FlipPlace::kLasting;
  const bool is_due = lasts ? step >= flip.step : step == flip.step && mine.done == 0;
  if (flip.step < 0 || flip.place == FlipPlace::kMessages || !is_due) {
    return;
  }
  if (lasts || flip.place == FlipPlace::kProducts) {
    // Products with a wrong factor, which is put right again.
    if (point == (mine.is_wrong ? StepPoint::kReduced : StepPoint::kComputing)) {
      state.drain();
      flip_bit(piece_of(mine, state), flip.draw);
      mine.done += mine.is_wrong ? 1 : 0;
      mine.is_wrong = !mine.is_wrong;
    }
  } else if (state.data_group().rank() == mine.replica &&  // else on other lanes, as a repeat
             point == (flip.place == FlipPlace::kWeights ? StepPoint::kComputing
                                                         : StepPoint::kReduced)) {
    state.drain();
    flip_bit(piece_of(mine, state), flip.draw);
    ++mine.done;
  }
}

train::TrainerHooks hooks_of(FlippedRank& mine) {
  return {.begin =
              [&mine](const plan::Plan& plan, comm::Groups& groups) {
                mine.replica = groups.coordinates.data;
                mine.parameters.clear();
                for (const nn::PlacedParameter& placed :
                     plan::rank_plan(plan, groups.world->rank()).layout.parameters) {
                  mine.parameters.push_back({placed.offset, placed.offset + placed.shape.count()});
                }
                for (const grid::Axis axis : {grid::Axis::kData, grid::Axis::kPipeline}) {
                  auto& group = groups.axes[static_cast<std::size_t>(axis)];
                  group = std::make_unique<FlippedGroup>(std::move(group), mine);
                }
              },
          .step = [&mine](train::StepPoint point, std::int64_t step,
                          train::RankState& state) { disturb(mine, point, step, state); },
          .sniff =
              [&mine](train::SniffPart part, std::int64_t step, const TensorView& results) {
                if (mine.flip.place == FlipPlace::kLasting && mine.flip.step >= 0 &&
                    step >= mine.flip.step && part == train::SniffPart::kProducts) {
                  flip_bit(results, mine.flip.draw);
                }
              }};
}

constexpr std::int64_t kRanks = 4;
constexpr std::int64_t kSteps = 20;

/// A run on 2 replicas of 2 stages, with every check every so many steps.
Result flipped_run(std::int64_t every, std::vector<FlippedRank>& ranks) {
  const Settings network =
      R"(model.layer=flatten & model.layer=dense 64 relu & model.layer=dense 5 & run.threads=1
& data.train=classes/train.h5 & batch.global=8 & batch.micro=2 & numerics.lanes=4
& optimizer.kind=adam & checkpoint.minutes=0)";
  return train(network,
               fmt::format("2x2x1 train.steps={} train.check_every={} train.repeat_every={} "
                           "run.sniff={}",
                           kSteps, every, every, every),
               "",
               [&](std::int64_t rank) { return hooks_of(ranks[static_cast<std::size_t>(rank)]); });
}

/// Who finds a flip, as the text of the run's end says.
std::string finder_of(const std::string& text) {
  for (const auto& [words, finder] : std::vector<std::pair<const char*, const char*>>{
           {"the sniff test", "sniff test"},
           {"gave other numbers", "repeated step"},
           {"replicas hold different weights", "train.check"},
           {"changed after the update", "train.check"},
           {"the run diverged", "train.nonfinite"}}) {
    if (text.find(words) != std::string::npos) {
      return finder;
    }
  }
  return text;
}

/// STRATA_TEST_LONG=1 takes 1,000 flips.
TEST(Flips, AreFoundOrChangeNothingWhereEachStepIsChecked) {
  const std::int64_t count = std::getenv("STRATA_TEST_LONG") != nullptr ? 100 : 1;
  const RandomStream random(1, RandomPurpose::kSynthesise, subject_of("flips"));
  std::uint64_t draws = 0;
  const auto drawn = [&](std::int64_t below) {
    return static_cast<std::int64_t>(random.words(draws++)[0]) % below;
  };
  for (const std::int64_t every : {1, 10}) {
    std::vector<FlippedRank> undisturbed(kRanks);
    const Result expected = flipped_run(every, undisturbed);
    for (const auto& [place, name] : enum_table<FlipPlace>()) {
      std::map<std::string, std::vector<std::int64_t>> found;  // by whom, after how many steps
      for (std::int64_t i = 0; i < count; ++i) {
        std::vector<FlippedRank> ranks(kRanks);
        const auto rank = static_cast<std::size_t>(drawn(kRanks));
        Flip& flip = ranks[rank].flip;
        flip = {.place = place,
                .step = 1 + drawn(kSteps),
                .draw = static_cast<std::uint64_t>(drawn(std::int64_t{1} << 31))};
        if (place == FlipPlace::kMessages) {
          flip.message = drawn(undisturbed[rank].messages);
        }
        try {
          const bool same = flipped_run(every, ranks).tensors == expected.tensors;
          EXPECT_TRUE(same || every > 1)
              << name << ", step " << flip.step << ", rank " << rank << ", draw " << flip.draw;
          found[same ? "changes nothing" : "not found"].push_back(0);
        } catch (const Error& error) {
          found[finder_of(error.what())].push_back(ranks[rank].step - flip.step);
        }
      }
      std::string line = fmt::format("every {} steps, {}:", every, name);
      for (auto& [finder, steps] : found) {
        std::ranges::sort(steps);
        line += fmt::format(" {} {} (steps: median {}, most {}),", steps.size(), finder,
                            steps[steps.size() / 2], steps.back());
      }
      fmt::print("{}\n", line);
    }
  }
}

/// What receipts have digests of.
enum class DigestedPlace { kWeights, kState, kGradients };

constexpr auto enum_names(DigestedPlace) {
  return names_in_order("weights", "state", "gradients");
}

/// Flips a bit of what a rank owns. Returns: the tensor's name in receipts.
std::string flip_owned(DigestedPlace place, std::uint64_t draw, train::RankState& state) {
  state.drain();
  const optim::OwnedTensors& owned = state.owned();
  const optim::OwnedPiece& piece = owned.pieces().at((draw >> 16U) % owned.pieces().size());
  const std::string& name = state.spec_of(piece).name;
  switch (place) {
    case DigestedPlace::kWeights:
      flip_bit(owned.master(piece), draw);
      return "weights/" + name;
    case DigestedPlace::kState: {
      const std::size_t moment = (draw >> 24U) % 2;
      flip_bit(owned.state(moment, piece), draw);
      return (moment == 0 ? "optimizer/adam_m/" : "optimizer/adam_v/") + name;
    }
    case DigestedPlace::kGradients:
      break;
  }
  flip_bit(state.reducer().sums().flat_slice(piece.arena_offset, piece.range.count()), draw);
  return "gradients/" + name;
}

/// The first receipt that differs is that of the flip's step, and names its tensor.
/// STRATA_TEST_LONG=1 takes 1,000 flips.
TEST(Flips, AreInTheReceiptOfTheirStep) {
  const std::int64_t count = std::getenv("STRATA_TEST_LONG") != nullptr ? 1000 : 6;
  const Settings network =
      R"(model.layer=flatten & model.layer=dense 64 relu & model.layer=dense 5 & run.threads=1
& data.train=classes/train.h5 & batch.global=8 & batch.micro=2 & numerics.lanes=4
& optimizer.kind=adam & checkpoint.minutes=0 & train.check=off & run.sniff=off
& train.nonfinite=skip & schedule.warmup_steps=0)";
  const auto receipts_of = [](const std::string& run) {
    return train::Receipts::read(run + "/" + train::kReceiptsFile);
  };
  std::vector<std::string> tensors;
  for (const auto& [name, tensor] :
       train(network, fmt::format("2x2x1 train.steps={}", kSteps), "unflipped").tensors) {
    tensors.push_back(name);
    if (name.starts_with("weights/")) {
      tensors.push_back("gradients/" + name.substr(name.find('/') + 1));
    }
  }
  const train::Receipts expected = receipts_of("unflipped");
  const RandomStream random(1, RandomPurpose::kSynthesise, subject_of("flips in receipts"));
  std::int64_t named = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto drawn = [&](std::uint64_t which, std::int64_t below) {
      return static_cast<std::int64_t>(random.words(4 * static_cast<std::uint64_t>(i) + which)[0] %
                                       static_cast<std::uint64_t>(below));
    };
    const auto place = static_cast<DigestedPlace>(i % 3);
    const std::int64_t step = 1 + drawn(0, kSteps);
    const std::int64_t rank = drawn(1, kRanks);
    const auto draw = static_cast<std::uint64_t>(drawn(2, std::int64_t{1} << 31));
    const auto point = place == DigestedPlace::kGradients ? train::StepPoint::kReduced
                                                          : train::StepPoint::kComputing;
    std::string tensor;
    try {
      static_cast<void>(train(
          network, fmt::format("2x2x1 train.steps={}", step), "flipped", [&](std::int64_t one) {
            train::TrainerHooks hooks;
            if (one == rank) {
              hooks.step = [&](train::StepPoint at, std::int64_t now, train::RankState& state) {
                if (at == point && now == step) {
                  tensor = flip_owned(place, draw, state);
                }
              };
            }
            return hooks;
          }));
    } catch (const Error& error) {
      // The step is done; its weights need not be finite.
      EXPECT_EQ(finder_of(error.what()), "train.nonfinite") << error.what();
    }
    const train::Receipts found = receipts_of("flipped");
    std::filesystem::remove_all("flipped");
    std::int64_t first = 1;
    while (first < step &&
           train::differing_field(expected.step(first), found.step(first)).empty()) {
      ++first;
    }
    const nlohmann::json left = expected.step(first);
    const nlohmann::json right = found.step(first);
    const std::string field = train::differing_field(left, right);
    const bool names_it = first == step && field == name_of(place) &&
                          train::differing_tensor(field, left, right, tensors) == " in " + tensor;
    EXPECT_TRUE(names_it) << tensor << " in step " << step << ": step " << first << ": " << field;
    named += names_it ? 1 : 0;
  }
  fmt::print("{} of {} flips are named by the receipt of their step\n", named, count);
}

}  // namespace
}  // namespace strata::grids
