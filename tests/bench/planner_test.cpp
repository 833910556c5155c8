#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/fit.hpp"
#include "planner/memory.hpp"
#include "planner/report.hpp"
#include "planner/statistics.hpp"
#include "planner/step.hpp"

namespace strata::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kNames =
    "source,model,layers,hidden,heads,kv_heads,ffn,vocab,seq,gpus,gpu_type,dp,tp,pp,cp,ep,vpp,"
    "micro_batch,global_batch,precision,recompute,zero,step_time_s,tokens_per_s_per_gpu,"
    "tflops_per_gpu,memory_gb,note\n";

/// A line with made-up times. `grid`: gpus,H100-80,dp,tp,pp,cp,ep; `batch`: micro,global; `rest`:
/// precision,recompute,zero; `measured`: seconds,tokens per second and GPU,,GB.
std::string line(const std::string& grid, const std::string& batch, const std::string& rest,
                 const std::string& measured, const std::string& note = "") {
  return fmt::format("made up,nanotron-1B,16,2048,32,32,8192,131072,4096,{},1,{},{},{},\"{}\"\n",
                     grid, batch, rest, measured, note);
}

std::vector<bench::Run> runs_of(const std::string& lines) {
  const std::string file = testing::TempDir() + "/measured-steps.csv";
  std::ofstream(file) << kNames << lines;
  return measured_runs(read_table(file));
}

/// Twelve runs: 8 in scope, of which 5 are outliers.
std::vector<bench::Run> twelve() {
  const std::string bf16 = "bf16,none,1";
  return runs_of(line("8,H100-80,8,1,1,1,", "1,256", bf16, "5,26000,,40") +
                 line("16,H100-80,16,1,1,1,", "1,256", bf16, "13,5000,,40") +  // replicas
                 line("8,H100-80,1,1,8,1,", "1,256", bf16, "5,26000,,40") +
                 line("8,H100-80,1,1,8,1,", "1,256", "bf16,none,0", "8.5,15000,,40") +  // twins
                 line("8,H100-80,1,8,1,1,", "4,256", bf16, "6,22000,,20", "a, and b") +
                 line("16,H100-80,2,2,4,1,", "1,256", bf16, "160,800,,20") +  // stall
                 line("16,H100-80,2,2,4,1,", "2,256", bf16, "4,16000,,20") +
                 line("16,H100-80,8,2,1,1,", "2,256", bf16, "3,21000,,40") +
                 line("8,H100-80,8,1,1,2,", "1,256", bf16, "5,26000,,40") +
                 line("8,H100-80,8,1,1,1,4", "1,256", bf16, "5,26000,,40") +
                 line("8,H100-80,8,1,1,1,", "1,256", "fp8,none,1", "5,26000,,40") +
                 line("8,H100-80,8,1,1,1,", "1,256", "bf16,none,3", "5,26000,,40"));
}

TEST(Planner, ReadsScopeAndOutliersFromData) {
  std::vector<Outlier> outliers;
  std::vector<std::string> outside;
  for (const bench::Run& run : twelve()) {
    if (run.outside.empty()) {
      outliers.push_back(run.outlier);
    } else {
      outside.push_back(run.outside);
    }
  }
  EXPECT_THAT(outliers,
              ElementsAre(Outlier::kNone, Outlier::kReplicas, Outlier::kTwin, Outlier::kTwin,
                          Outlier::kNone, Outlier::kStall, Outlier::kNone, Outlier::kNone));
  EXPECT_THAT(outside,
              ElementsAre("context parallelism", "experts", "FP8", "sharded gradients or weights"));
}

TEST(Planner, SplitsByAFixedHash) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325U);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cU);
  const std::vector<bench::Run> runs = twelve();
  EXPECT_EQ(runs[0].key, "nanotron-1B|8|8|1|1|1|1|256");
  EXPECT_EQ(runs[0].judged, (fnv1a(runs[0].key) >> 32U & 1U) == 1U);
  EXPECT_EQ(runs[2].judged, runs[3].judged);
}

TEST(Planner, PredictsSteps) {
  const Constants all = constants();
  Predictor predictor;
  bench::Run run = twelve().front();
  const double seconds = predictor.step_seconds(run, all);
  const double flops = 6.0 * (16.0 * layer_parameters(run) + vocabulary_parameters(run)) *
                       static_cast<double>(run.global * run.sequence / run.gpus);
  EXPECT_GT(seconds, flops / 989.5e12);
  EXPECT_LT(seconds, flops / 989.5e12 * 5.0);
  run.layers *= 2;
  EXPECT_GT(predictor.step_seconds(run, all), 1.3 * seconds);

  bench::Run piped = twelve()[2];
  piped.profile = "zero-bubble";
  piped.machine = "a100-80";
  piped.layers = 22;
  std::vector<double> steps;
  for (const pipeline::ScheduleKind kind :
       {pipeline::ScheduleKind::k1f1b, pipeline::ScheduleKind::kZbH1,
        pipeline::ScheduleKind::kZbH2}) {
    piped.schedule = kind;
    piped.microbatches = 16;
    steps.push_back(predictor.step_seconds(piped, all));
  }
  EXPECT_GT(steps[0], steps[1]);
  EXPECT_GE(steps[1], steps[2]);
}

TEST(Planner, TellsWhatNeedsTooMuchMemory) {
  const Constants all = constants();
  const MemoryModel memory;
  bench::Run run = twelve().front();
  EXPECT_LT(peak_memory(run, all, memory), memory.most);
  run.micro = 32;
  EXPECT_GT(peak_memory(run, all, memory), memory.most);
}

TEST(Planner, FitsAndReports) {
  const std::vector<bench::Run> runs = twelve();
  Constants all = constants();
  Predictor predictor;
  std::vector<Prediction> predictions;
  testing::internal::CaptureStdout();
  fit(all, predictor, runs);
  for (const bench::Run& run : runs) {
    predictions.push_back({&run, run.unknown.empty() ? predictor.step_seconds(run, all) : 0.0});
  }
  report(predictions, verdicts(runs, {}, false, all, {}), verdicts(runs, {}, true, all, {}));
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr("nanotron host_layer"));
  EXPECT_THAT(text, HasSubstr("2 runs, of which"));
  EXPECT_THAT(text, HasSubstr("failures missed"));

  const std::string file = testing::TempDir() + "/rows.csv";
  write_rows(file, predictions);
  EXPECT_EQ(read_table(file).lines.size(), runs.size());
}

TEST(Planner, TakesQuantiles) {
  EXPECT_DOUBLE_EQ(quantile({3.0, 1.0, 2.0}, 0.5), 2.0);
  EXPECT_DOUBLE_EQ(quantile({0.0, 10.0}, 0.9), 9.0);
}

}  // namespace
}  // namespace strata::bench
