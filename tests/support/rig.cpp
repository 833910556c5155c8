// The program with disturbances, for tests and benchmarks. Variables of the environment say which:
//
//   STRATA_RIG_FAULT=PLACE:STEP:RANK   damages one rank's memory once: gradient writes NaN into the
//     reduced gradient; weights and state flip a bit at a check of train.check, before and after
//     the comparison
//
//   STRATA_RIG_FAULT=flip-PLACE:STEP:RANK   flips a bit of the weights, the state or the reduced
//     gradient before the update of a step
//
//   STRATA_RIG_FAULT=product:STEP:RANK:RUNS   computes runs of a repeated step with one wrong
//     weight: run 0 on other lanes, 1 on the own ones, 2 the deciding one, so 012 is a lasting
//     fault
//
//   STRATA_RIG_SNIFF=PART:STEP:RANKS:HOW  disturbs a part of the sniff test after a step on ranks,
//   as
//     in 0,2: flips bit R of the results on rank R (flip), in the first round alone (once), or
//     sleeps before they are ready (so many seconds); the parts are products, norm, reductions,
//     messages
//
//   STRATA_RIG_DELAY=RANK:SECONDS   the rank sleeps after each gradient
//
//   STRATA_RIG_SLOW=RANK:SECONDS   the rank computes so much longer in each step
//
//   STRATA_RIG_TIMES=FORWARD:INPUT:WEIGHT   each action of a schedule takes so many ms more, in the
//     form of strata schedule
//
//   STRATA_RIG_LINK=RATE:DELAY   each rank's link to replicas of other islands, without islands to
//     all other replicas, has RATE Mbit/s in each direction (0: no limit) and DELAY ms; at the end
//     each rank prints what it sent

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "strata/app/app.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/optim/gradient_reducer.hpp"
#include "strata/pipeline/stage_times.hpp"
#include "strata/train/rank_state.hpp"

#include "emulated_device.hpp"
#include "paced_group.hpp"

namespace strata {
namespace {

enum class FaultPlace {
  kGradient,
  kWeights,
  kState,
  kProduct,
  kFlipGradient,
  kFlipWeights,
  kFlipState
};

constexpr auto enum_names(FaultPlace) {
  return names_in_order("gradient", "weights", "state", "product", "flip-gradient", "flip-weights",
                        "flip-state");
}

/// The parts of a variable; none where it is not set or empty. Throws: Error(kUsage) for another
/// number of parts.
std::vector<std::string> parts_of(const char* variable, std::size_t least, std::size_t most) {
  std::vector<std::string> parts;
  const char* const text = std::getenv(variable);
  std::string rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    parts.push_back(rest.substr(0, colon));
    rest.erase(0, colon + 1);
  }
  if (!parts.empty() && (parts.size() < least || parts.size() > most)) {
    fail(ExitCode::kUsage, "{} is \"{}\"; see the head of rig.cpp", variable, text);
  }
  return parts;
}

/// NaN in the reduced gradient, a flipped bit elsewhere; a second call puts a product right.
void damage(train::RankState& state, FaultPlace place) {
  state.drain();
  const optim::OwnedTensors& owned = state.owned();
  const optim::OwnedPiece& piece = owned.pieces().front();
  const bool gradient = place == FaultPlace::kGradient;
  const bool sums = gradient || place == FaultPlace::kFlipGradient;
  const bool masters = place == FaultPlace::kFlipWeights;
  const TensorView tensor = sums ? state.reducer().sums()
                            : place == FaultPlace::kState || place == FaultPlace::kFlipState
                                ? owned.state(0, piece)
                            : masters ? owned.master(piece)
                                      : state.weights();
  const TensorView element = tensor.flat_slice(sums ? piece.arena_offset : 0, 1);
  const std::span<std::byte> bytes(element.raw(), static_cast<std::size_t>(element.bytes()));
  if (gradient) {
    std::ranges::fill(bytes, std::byte{0xFF});
    bytes.back() = std::byte{0x7F};
  } else {
    // Of a product a bit of the exponent.
    (place == FaultPlace::kProduct ? bytes.back() : bytes.front()) ^= std::byte{1};
  }
}

class Rig {
 public:
  ~Rig() {
    if (link_) {
      fmt::print("rank {} sent {} bytes over an emulated link, at most {} in any one second\n",
                 rank_, link_->sent_bytes(), link_->peak_bytes());
    }
  }

  [[nodiscard]] train::TrainerHooks hooks() {
    return {.begin = [this](const plan::Plan& plan, comm::Groups& groups) { begin(plan, groups); },
            .action = [this](const pipeline::Action& action, double begin,
                             double end) { after(action, begin, end); },
            .step = [this](train::StepPoint point, std::int64_t step,
                           train::RankState& state) { at(point, step, state); },
            .sniff = [this](train::SniffPart part, std::int64_t step,
                            const TensorView& results) { sniffed(part, step, results); }};
  }

 private:
  void begin(const plan::Plan& plan, comm::Groups& groups) {
    rank_ = groups.world->rank();
    if (const auto delay = parts_of("STRATA_RIG_DELAY", 2, 2);
        !delay.empty() && std::stoll(delay[0]) == rank_) {
      delay_seconds_ = std::stod(delay[1]);
    }
    if (const auto slow = parts_of("STRATA_RIG_SLOW", 2, 2);
        !slow.empty() && std::stoll(slow[0]) == rank_) {
      slow_seconds_ = std::stod(slow[1]);
    }
    if (const auto fault = parts_of("STRATA_RIG_FAULT", 3, 4);
        !fault.empty() && std::stoll(fault[2]) == rank_) {
      place_ = enum_from_name<FaultPlace>(fault[0]);
      if (!place_) {
        fail(ExitCode::kUsage, "there is no place \"{}\" for a fault", fault[0]);
      }
      step_ = std::stoll(fault[1]);
      runs_ = fault.size() > 3 ? fault[3] : "";
    }
    if (const auto sniff = parts_of("STRATA_RIG_SNIFF", 4, 4); !sniff.empty()) {
      sniff_ = sniff;
    }
    if (const auto times = parts_of("STRATA_RIG_TIMES", 3, 3); !times.empty()) {
      emulate_device(times, plan, groups);
    }
    if (const auto link = parts_of("STRATA_RIG_LINK", 2, 2); !link.empty()) {
      emulate_link(std::stod(link[0]), std::stod(link[1]), groups);
    }
  }

  void emulate_device(const std::vector<std::string>& given, const plan::Plan& plan,
                      comm::Groups& groups) {
    constexpr double kSecondsPerMillisecond = 1e-3;
    const pipeline::StageCosts costs{
        .times = pipeline::parse_chunk_times({"forward", given[0]}, {"backward_input", given[1]},
                                             {"backward_weight", given[2]}, plan.training.stages,
                                             plan.training.chunks)};
    std::vector<pipeline::ChunkTimes> own;
    for (std::int64_t chunk = 0; chunk < plan.training.chunks; ++chunk) {
      own.push_back(
          costs.times_of({.stage = groups.along(grid::Axis::kPipeline).rank(), .chunk = chunk}));
      own.back().forward_seconds *= kSecondsPerMillisecond;
      own.back().backward_input_seconds *= kSecondsPerMillisecond;
      own.back().backward_weight_seconds *= kSecondsPerMillisecond;
    }
    device_.emplace(std::move(own), plan.backward, *groups.engine);
    if (comm::Activity* const activity = groups.world->activity()) {
      // Ranks outnumber the cores, and none computes much: all may wait at once.
      constexpr double kSecondsPerRank = 3e-6;
      activity->sleep_until_seconds = std::numeric_limits<double>::infinity();
      activity->sleep_seconds = std::max(
          activity->sleep_seconds, kSecondsPerRank * static_cast<double>(groups.world->size()));
    }
  }

  void emulate_link(double megabits, double milliseconds, comm::Groups& groups) {
    constexpr double kBytesPerMegabit = 1e6 / 8.0;
    constexpr double kSecondsPerMillisecond = 1e-3;
    link_.emplace(kBytesPerMegabit * megabits, kSecondsPerMillisecond * milliseconds);
    const auto pace = [&](std::unique_ptr<comm::Communicator>& group) {
      std::vector<bool> across(static_cast<std::size_t>(group->size()), true);
      across[static_cast<std::size_t>(group->rank())] = false;
      group = std::make_unique<comm::PacedGroup>(std::move(group), *link_, std::move(across));
    };
    if (groups.grid.islands > 1) {
      pace(groups.axes[static_cast<std::size_t>(grid::Axis::kIslands)]);
    } else {
      pace(groups.axes[static_cast<std::size_t>(grid::Axis::kData)]);
      pace(groups.lanes);
    }
  }

  void after(const pipeline::Action& action, double begin, double end) {
    if (device_) {
      device_->after(action, begin, end);
    }
    if (action.kind == pipeline::ActionKind::kReduce && delay_seconds_ > 0.0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(delay_seconds_));
    }
  }

  void sniffed(train::SniffPart part, std::int64_t step, const TensorView& results) {
    const std::vector<std::string> ranks = sniff_.empty() ? sniff_ : split_words(sniff_[2], ",");
    if (std::ranges::count(ranks, std::to_string(rank_)) == 0 || std::stoll(sniff_[1]) != step ||
        !name_of(part).starts_with(sniff_[0])) {
      return;
    }
    const std::string& how = sniff_[3];
    if (how == "flip" || how == "once") {
      *results.raw() ^= std::byte{static_cast<unsigned char>(1 << rank_)};
    } else {
      std::this_thread::sleep_for(std::chrono::duration<double>(std::stod(how)));
    }
    if (how == "once") {
      sniff_.clear();
    }
  }

  void at(train::StepPoint point, std::int64_t step, train::RankState& state) {
    using train::StepPoint;
    if (point == StepPoint::kReduced && slow_seconds_ > 0.0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(slow_seconds_));
    }
    if (step != step_ || !place_) {
      return;
    }
    if (place_ == FaultPlace::kProduct) {
      if (point != StepPoint::kRepeating && point != StepPoint::kRepeated) {
        return;
      }
      if (runs_.find(std::to_string(run_)) != std::string::npos) {
        damage(state, FaultPlace::kProduct);
      }
      run_ += point == StepPoint::kRepeated ? 1 : 0;
    } else if (((place_ == FaultPlace::kGradient || *place_ >= FaultPlace::kFlipGradient) &&
                point == StepPoint::kReduced) ||
               (place_ == FaultPlace::kWeights && point == StepPoint::kChecking) ||
               (place_ == FaultPlace::kState && point == StepPoint::kChecked)) {
      damage(state, *place_);
      place_.reset();
    }
  }

  std::int64_t rank_ = 0;
  double delay_seconds_ = 0.0;
  double slow_seconds_ = 0.0;
  std::optional<FaultPlace> place_;
  std::int64_t step_ = 0;  ///< of the fault
  std::string runs_;
  std::vector<std::string> sniff_;  ///< the parts of STRATA_RIG_SNIFF
  std::int64_t run_ = 0;            ///< of the repeated step
  std::optional<pipeline::test::EmulatedDevice> device_;
  std::optional<comm::EmulatedLink> link_;
};

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  strata::Rig rig;
  return strata::app::run(argc, argv, rig.hooks());
}
