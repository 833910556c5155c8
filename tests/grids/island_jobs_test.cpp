#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "strata/core/error.hpp"
#include "strata/io/checkpoint.hpp"

#include "error_of.hpp"
#include "harness.hpp"

/// Islands that are jobs of their own, as threads of this process: what they find in the directory
/// where they meet is of the same run and whole, or is not used.
namespace strata::grids {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const Settings kNetwork = R"(model.layer=dense 6 relu & model.layer=dense 1 & run.threads=1
& data.train=values/train.h5 & batch.global=8 & batch.micro=2 & numerics.lanes=4
& parallel.sync=local & parallel.islands=2 & local.steps=2 & optimizer.kind=sgd & optimizer.learning_rate=0.05
& checkpoint.every=2 & train.steps=4)";

class IslandJobs : public testing::Test {
 protected:
  IslandJobs() : name_(testing::UnitTest::GetInstance()->current_test_info()->name()) {
    write_scratch("touched", "");  // enters the scratch directory
  }

  [[nodiscard]] std::string run_of(int island) const { return fmt::format("{}-{}", name_, island); }
  [[nodiscard]] fs::path meet(const std::string& path) const { return fs::path(name_) / path; }

  /// Begins a job; `settings` are as in a Case's runs.
  std::future<Result> start(int island, const std::string& settings = "") {
    return std::async(std::launch::async, [this, island, settings] {
      return train(
          kNetwork + fmt::format("& parallel.island_of={} & parallel.island={}", name_, island),
          (island == 0 ? "1x1x1 " : "2x1x1 ") + settings, run_of(island));
    });
  }
  /// Runs both, island 1 first; between their starts `change` once `path` is there.
  std::vector<Result> both(
      const std::string& settings = "", const std::string& path = "",
      const std::function<void()>& change = [] {}) {
    std::future<Result> one = start(1, settings);
    while (!path.empty() && !fs::exists(meet(path))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    change();
    std::future<Result> zero = start(0, settings);
    std::vector<Result> results{zero.get()};
    results.push_back(one.get());
    return results;
  }
  [[nodiscard]] std::string refusal(int island, const std::string& settings,
                                    ExitCode code = ExitCode::kUsage) {
    // A job that is not refused ends soon.
    const std::string deadline =
        settings.find("local.record") == std::string::npos ? " local.deadline=0" : "";
    return strata::test::error_of([&] { (void)start(island, settings + deadline).get(); }, code);
  }
  /// Deletes what a user might take for all of a run.
  void forget(const std::vector<std::string>& paths) const {
    for (const std::string& path : paths) {
      fs::remove_all(path);
    }
  }
  /// The weights and the outer momentum, which islands share.
  static std::map<std::string, StoredTensor> outer(const Result& result) {
    std::map<std::string, StoredTensor> tensors = result.tensors;
    std::erase_if(tensors, [](const auto& one) { return one.first.starts_with("islands/"); });
    return tensors;
  }
  void expect_outer(const std::vector<Result>& found, const Result& expected) const {
    for (const Result& result : found) {
      EXPECT_TRUE(outer(result) == outer(expected));
    }
  }
  /// Of the newest round: its steps and islands.
  [[nodiscard]] nlohmann::json record() const {
    return io::Checkpoint::open(io::list_checkpoints(meet("rounds")).front().directory)
        .metadata()
        .at("rounds");
  }

  std::string name_;
};

/// Flips a bit of the numbers of a checkpoint's first part.
void flip_number(const fs::path& checkpoint) {
  std::ifstream manifest(checkpoint / "master.manifest");
  std::string word;
  for (int at = 0; at < 9; ++at) {
    manifest >> word;  // the first range of part-00000.h5
  }
  const std::int64_t place = std::stoll(word) + 3;
  std::fstream part(checkpoint / "part-00000.h5", std::ios::in | std::ios::out | std::ios::binary);
  part.seekg(place);
  const int byte = part.get();
  part.seekp(place);
  part.put(static_cast<char>(byte ^ 0x40));
}

void append(const fs::path& file) {
  std::ofstream(file, std::ios::app) << "x";
}

const std::vector<std::function<void(const fs::path&)>> kDamages{
    flip_number, [](const fs::path& at) { append(at / "master.manifest"); },
    [](const fs::path& at) { append(at / "master.h5"); },
    [](const fs::path& at) { fs::remove(at / "part-00000.h5"); },
    [](const fs::path& at) { fs::remove(at / "master.h5"); }};

const Result& reference() {
  static const Result kOne = train(kNetwork, "1x1x1", "islands-of-one-job");
  return kOne;
}

TEST_F(IslandJobs, WriteADamagedDifferenceAgain) {
  const std::string path = "island-1/step-00000002";
  for (const auto& damage : kDamages) {
    forget({name_, run_of(0), run_of(1)});
    expect_outer(both("local.deadline=20", path, [&] { damage(meet(path)); }), reference());
    EXPECT_EQ(record().dump(), R"([{"islands":[0,1],"step":2},{"islands":[0,1],"step":4}])");
  }
}

TEST_F(IslandJobs, LeaveOutADamagedDifferenceWhoseJobHasEnded) {
  static_cast<void>(both("train.steps=2"));
  // Stopped while it waits for island 0, with its difference there.
  static_cast<void>(start(1, "run.resume=must stop=0:3").get());
  const fs::path difference = meet("island-1/step-00000004");
  for (const auto& damage : kDamages) {
    forget({"kept-0", "kept-meet"});
    fs::copy(run_of(0), "kept-0", fs::copy_options::recursive);
    fs::copy(name_, "kept-meet", fs::copy_options::recursive);
    damage(difference);
    static_cast<void>(start(0, "run.resume=must local.deadline=0.2").get());
    EXPECT_EQ(record().back().dump(), R"({"islands":[0],"step":4})");
    forget({run_of(0), name_});
    fs::rename("kept-0", run_of(0));
    fs::rename("kept-meet", name_);
  }
  // A difference of other settings is not that of this run.
  const auto rate = [&] {
    return io::Checkpoint::open(difference).metadata().at("config").get<std::string>();
  };
  EXPECT_THAT(rate(), Not(HasSubstr("learning_rate = 0.06")));
  static_cast<void>(start(1, "run.resume=must stop=0:3 optimizer.learning_rate=0.06").get());
  EXPECT_THAT(rate(), HasSubstr("learning_rate = 0.06"));
  static_cast<void>(start(0, "run.resume=must local.deadline=0.2").get());
  EXPECT_EQ(record().back().dump(), R"({"islands":[0,1],"step":4})");
}

TEST_F(IslandJobs, AverageADamagedRoundAgain) {
  for (const auto& damage : kDamages) {
    forget({name_, run_of(0), run_of(1)});
    static_cast<void>(both());
    fs::remove_all(run_of(1) + "/checkpoints/step-00000004");  // island 1 is back at step 2
    damage(meet("rounds/step-00000004"));
    expect_outer({start(1, "run.resume=must local.deadline=1").get()}, reference());
    EXPECT_TRUE(fs::exists(meet("rounds/damaged-step-00000004")));
    EXPECT_EQ(record().back().dump(), R"({"islands":[0,1],"step":4})");
  }
}

TEST_F(IslandJobs, ReplaceDifferencesOfAnotherRun) {
  static_cast<void>(both("run.seed=7"));
  forget({run_of(0), run_of(1), name_ + "/rounds", name_ + "/islands.json"});
  expect_outer(both(), reference());
}

TEST_F(IslandJobs, LeaveOutDifferencesOfAnotherRun) {
  static_cast<void>(both("train.steps=2 optimizer.learning_rate=0.1"));
  forget({run_of(0), run_of(1), name_ + "/rounds", name_ + "/islands.json"});
  static_cast<void>(start(0, "train.steps=2 local.deadline=0.2").get());
  EXPECT_EQ(record().dump(), R"([{"islands":[0],"step":2}])");
}

TEST_F(IslandJobs, LeaveOutDifferencesFromOtherOuterWeights) {
  static_cast<void>(both("train.steps=2"));
  static_cast<void>(start(1, "run.resume=must stop=0:3").get());
  // Island 0 begins again, and averages its first round alone.
  forget({run_of(0), name_ + "/rounds", name_ + "/island-0", name_ + "/island-1/step-00000002"});
  static_cast<void>(start(0, "train.steps=2 local.deadline=0").get());
  static_cast<void>(start(0, "run.resume=must local.deadline=0.2").get());
  EXPECT_EQ(record().dump(), R"([{"islands":[0],"step":2},{"islands":[0],"step":4}])");
}

TEST_F(IslandJobs, RefuseAnotherRunByName) {
  static_cast<void>(train(kNetwork + "& run.seed=3", "1x1x1", name_ + "-other"));
  static_cast<void>(both());
  // Other weights, where neither has a round yet.
  forget({"apart"});
  const std::string init = fmt::format("checkpoint.init={}-other", name_);
  fs::create_directories("apart");
  fs::copy(meet("islands.json"), "apart/islands.json");
  EXPECT_THAT(refusal(1, init + " run.dir=elsewhere parallel.island_of=apart"),
              AllOf(HasSubstr("parallel.island_of: the islands of apart begin from weights"),
                    HasSubstr("after step 0"), HasSubstr("checkpoint.init")));
  EXPECT_THAT(refusal(1, "run.seed=7 run.dir=elsewhere"), HasSubstr("run.seed is 1, here it is 7"));
  EXPECT_THAT(refusal(0, "run.dir=elsewhere"), HasSubstr("has rounds with island 0"));
  // Only a frozen matrix differs.
  forget({"frozen"});
  const std::string frozen =
      "optimizer.frozen=dense1.weight parallel.island_of=frozen local.deadline=0 ";
  static_cast<void>(start(0, frozen + "run.dir=frozen-0").get());
  EXPECT_THAT(
      refusal(1, frozen + init + " checkpoint.init_except=dense1.bias,dense2.* run.dir=frozen-1"),
      HasSubstr("the islands of frozen begin from weights"));
  // Differences of an earlier start with another learning rate.
  static_cast<void>(start(0, "parallel.island_of=again run.dir=again local.deadline=0").get());
  forget({"again/rounds"});
  EXPECT_THAT(refusal(0, "parallel.island_of=again run.dir=anew optimizer.learning_rate=0.1"),
              AllOf(HasSubstr("again/island-0/step-00000004 is of an earlier start"),
                    HasSubstr("optimizer.learning_rate: 0.05 -> 0.1; set them back")));
  // A checkpoint of another run of islands.
  forget({"fresh"});
  static_cast<void>(start(0, "parallel.island_of=fresh run.dir=fresh-0 local.deadline=0").get());
  EXPECT_THAT(
      refusal(0, "run.resume=must train.steps=6 parallel.island_of=fresh"),
      AllOf(HasSubstr("fresh is of the run"), HasSubstr("continue the islands of one run")));
  // Rounds of another run.
  fs::remove_all("fresh/rounds");
  fs::copy(meet("rounds"), "fresh/rounds", fs::copy_options::recursive);
  EXPECT_THAT(refusal(1, "parallel.island_of=fresh run.dir=fresh-1"),
              HasSubstr("rounds/step-00000004 is of the run"));
  EXPECT_THAT(refusal(0, "parallel.island_of= local.record=fresh run.seed=7 run.dir=replay"),
              HasSubstr("local.record: fresh is of a run where run.seed is 1"));
  EXPECT_THAT(refusal(0, init + " parallel.island_of= local.record=" + name_ + " run.dir=replay"),
              HasSubstr("local.record: the islands of"));
}

TEST_F(IslandJobs, FindDamageOfTheFileThatTheyCompare) {
  const Result before = both("train.steps=2")[0];
  for (const std::string text : {"[1,2]", "{}", "", "{\"meeting\": 3}"}) {
    std::ofstream(meet("islands.json")) << text;
    EXPECT_THAT(refusal(0, "run.resume=must"),
                HasSubstr("islands.json is damaged or of an earlier version; remove it"));
  }
  fs::remove(meet("islands.json"));
  expect_outer(both("run.resume=must"), reference());
}

TEST_F(IslandJobs, ContinueInAnotherDirectory) {
  static_cast<void>(both("train.steps=2"));
  forget({name_});
  expect_outer(both("run.resume=must"), reference());
}

TEST_F(IslandJobs, GoOnFromTheRoundWhereTheirOwnWeightsDiffer) {
  static_cast<void>(both("train.steps=2"));
  // A checkpoint of the same run and step whose average had island 1 alone.
  fs::rename(meet("rounds"), meet("others"));
  fs::rename(meet("island-0"), meet("away"));
  forget({run_of(1) + "/checkpoints"});
  static_cast<void>(start(1, "train.steps=2 local.deadline=0").get());
  forget({name_ + "/rounds", name_ + "/island-0"});
  fs::rename(meet("others"), meet("rounds"));
  fs::rename(meet("away"), meet("island-0"));
  std::future<Result> one = start(1, "run.resume=must local.deadline=10");
  const Result zero = start(0, "run.resume=must local.deadline=10").get();
  EXPECT_TRUE(outer(one.get()) == outer(zero));
  EXPECT_EQ(record().back().dump(), R"({"islands":[0,1],"step":4})");
}

}  // namespace
}  // namespace strata::grids
