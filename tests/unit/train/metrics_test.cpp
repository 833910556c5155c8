#include "strata/train/metrics.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "../io/data_files.hpp"
#include "error_of.hpp"

namespace strata::train {
namespace {

using io::test::read_file;
using io::test::TemporaryDirectory;
using io::test::write_file;

MetricsKept up_to(std::int64_t step) {
  return {.training_step = step, .evaluation_step = step};
}

class MetricsFileTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "metrics.jsonl";
};

TEST_F(MetricsFileTest, KeepsWholeLinesUpToAStep) {
  const std::string kept =
      "{\"kind\":\"train\",\"step\":1}\n{\"kind\":\"evaluate\",\"step\":2}\n"
      "{\"kind\":\"train\",\"step\":2}\n";
  write_file(path_, kept + "{\"kind\":\"train\",\"step\":3}\n{\"kind\":\"train\",\"st");
  MetricsFile metrics(path_, up_to(2));
  EXPECT_EQ(read_file(path_), kept);
  metrics.write(EvaluateRecord{.step = 3, .loss = 0.5, .accuracy = 0.25});
  EXPECT_EQ(read_file(path_),
            kept + "{\"kind\":\"evaluate\",\"step\":3,\"loss\":0.5,\"accuracy\":0.25}\n");
}

TEST_F(MetricsFileTest, DropsALastLineThatWasCutShort) {
  write_file(path_, "{\"kind\":\"train\",\"step\":1}\n{\"kind\":\"train\",\"step\":2,\"loss\":0.1");
  const MetricsFile metrics(path_, up_to(100));
  EXPECT_EQ(read_file(path_), "{\"kind\":\"train\",\"step\":1}\n");
}

TEST_F(MetricsFileTest, BeginsAnewAtStepZero) {
  write_file(path_, "{\"kind\":\"train\",\"step\":1}\n");
  const MetricsFile metrics(path_, up_to(0));
  EXPECT_EQ(read_file(path_), "");
}

TEST_F(MetricsFileTest, WritesNumbersThatReadBackToTheSameBits) {
  MetricsFile metrics(path_, up_to(0));
  const TrainRecord record{.step = 7,
                           .loss = 0.1 + 0.2,
                           .grad_norm = 1.0 / 3.0,
                           .learning_rate = 1e-300,
                           .samples_per_second = 12345.678901234567,
                           .times = {.step = 0.7, .compute = 0.1, .bubble = 0.2, .data = 0.3}};
  metrics.write(record);
  const nlohmann::json line = nlohmann::json::parse(read_file(path_));
  EXPECT_EQ(line.at("kind"), "train");
  EXPECT_EQ(line.at("step"), 7);
  EXPECT_EQ(line.at("loss").get<double>(), record.loss);
  EXPECT_EQ(line.at("grad_norm").get<double>(), record.grad_norm);
  EXPECT_EQ(line.at("learning_rate").get<double>(), record.learning_rate);
  EXPECT_EQ(line.at("samples_per_second").get<double>(), record.samples_per_second);
  EXPECT_EQ(line.at("other_seconds").get<double>(), record.times.other());
}

TEST_F(MetricsFileTest, OfARegressionHasNoAccuracy) {
  MetricsFile(path_, up_to(0)).write(EvaluateRecord{.step = 1, .loss = 2.0});
  EXPECT_FALSE(nlohmann::json::parse(read_file(path_)).contains("accuracy"));
}

TEST_F(MetricsFileTest, RefusesADirectoryThatIsNotThere) {
  const std::string text = test::error_of(
      [&] { const MetricsFile metrics(directory_ / "none" / "metrics.jsonl", up_to(0)); },
      ExitCode::kUsage);
  EXPECT_NE(text.find("No such file or directory"), std::string::npos) << text;
}

}  // namespace
}  // namespace strata::train
