// Names of other programs: the right one is accepted or named.
#include "strata/core/familiar_names.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "strata/config/config_file.hpp"
#include "strata/config/options.hpp"
#include "strata/forecast/machine.hpp"
#include "strata/nn/layer_line.hpp"
#include "strata/plan/plan.hpp"

#include "../io/data_files.hpp"
#include "commands/commands.hpp"
#include "error_of.hpp"

namespace strata::app::familiar_names_test {
namespace {

using testing::HasSubstr;

using Words = std::vector<std::string>;

config::CommandLine line_of(const Words& words) {
  const config::Command& command = command_of(words);
  return {command, arguments_of(command, words)};
}

TEST(FamiliarNames, OfSettingsLeadToOurs) {
  const io::test::TemporaryDirectory directory;
  const std::string config = (directory / "given.ini").string();
  for (const auto& [typed, ours] : std::vector<std::pair<std::string, std::string>>{
           {"lr=0.1", "optimizer.learning_rate=0.1"},
           {"learning-rate=0.1", "optimizer.learning_rate=0.1"},
           {"learning_rate=0.1", "optimizer.learning_rate=0.1"},
           {"min_lr=1e-5", "schedule.minimum=1e-5"},
           {"lr_scheduler=cosine", "schedule.kind=cosine"},
           {"warmup_iters=100", "schedule.warmup_steps=100"},
           {"warmup-steps=100", "schedule.warmup_steps=100"},
           {"optimizer=sgd", "optimizer.kind=sgd"},
           {"weight-decay=0.1", "optimizer.weight_decay=0.1"},
           {"wd=0.1", "optimizer.weight_decay=0.1"},
           {"momentum=0.9", "optimizer.momentum=0.9"},
           {"beta2=0.95", "optimizer.beta2=0.95"},
           {"grad_clip=1", "optimizer.clip_norm=1"},
           {"max_grad_norm=1", "optimizer.clip_norm=1"},
           {"label_smoothing_factor=0.1", "train.label_smoothing=0.1"},
           {"z_loss_weight=0.0001", "train.z_loss=0.0001"},
           {"batch_size=64", "batch.global=64"},
           {"batch-size=64", "batch.global=64"},
           {"micro_batch_size=4", "batch.micro=4"},
           {"per_device_train_batch_size=4", "batch.micro=4"},
           {"gradient_accumulation_steps=8", "batch.micro=SAMPLES"},
           {"tp=2", "parallel.tensor=2"},
           {"pp=2", "parallel.pipeline=2"},
           {"dp=2", "parallel.data=2"},
           {"tensor_model_parallel_size=2", "parallel.tensor=2"},
           {"n_embd=384", "model.width=384"},
           {"d_model=384", "model.width=384"},
           {"hidden_size=384", "model.width=384"},
           {"n_layer=6", "model.blocks=6"},
           {"num_hidden_layers=6", "model.blocks=6"},
           {"n_head=6", "model.heads=6"},
           {"block_size=256", "model.context=256"},
           {"seq_len=256", "model.context=256"},
           {"vocab_size=65", "model.vocabulary=65"},
           {"dropout=0.1", "model.dropout=0.1"},
           {"max_iters=5000", "train.steps=5000"},
           {"max_steps=5000", "train.steps=5000"},
           {"steps=5000", "train.steps=5000"},
           {"epochs=3", "train.epochs=3"},
           {"num_train_epochs=3", "train.epochs=3"},
           {"eval_interval=250", "train.evaluate_every=250"},
           {"early_stopping=3", "train.patience=3"},
           {"gradient_checkpointing=true", "train.recompute=full"},
           {"log_interval=10", "train.log_every=10"},
           {"save_steps=500", "checkpoint.every=500"},
           {"resume=true", "run.resume=auto"},
           {"init_from=runs/a", "checkpoint.init=runs/a"},
           {"out_dir=out", "run.dir=out"},
           {"seed=1337", "run.seed=1337"},
           {"device=cuda", "run.device=cuda"},
           {"precision=bf16", "numerics.dtype=bf16"},
           {"dtype=float32", "numerics.dtype=float32"},
           {"bf16=true", "numerics.dtype=bfloat16"},
           {"step_size=30", "schedule.every=30"},
           {"num_workers=4", "data.reader_threads=4"},
           {"val_data=test.h5", "data.test=test.h5"},
           {"normalize=standard", "data.normalise=standard"},
           {"lora_r=8", "lora.rank=8"},
           {"wandb=true", "run.tensorboard=on"}}) {
    SCOPED_TRACE(typed);
    const std::size_t equals = typed.find('=');
    const std::string name = typed.substr(0, equals);
    const std::string advice = "write --" + ours;
    // As one word and as two, alone and in a section.
    for (const Words& words : {Words{"train", "c.ini", "--" + typed},
                               Words{"train", "c.ini", "--" + name, typed.substr(equals + 1)}}) {
      EXPECT_THAT(strata::test::error_of([&] { line_of(words); }, ExitCode::kUsage),
                  testing::AllOf(HasSubstr("no option --" + name), HasSubstr(advice)));
    }
    io::test::write_file(directory / "given.ini", "");
    EXPECT_THAT(
        strata::test::error_of(
            [&] { static_cast<void>(config::read_config(config, Words{"--training." + typed})); },
            ExitCode::kUsage),
        HasSubstr(advice));
    io::test::write_file(directory / "given.ini", "[training]\n" + typed + "\n");
    const std::size_t dot = ours.find('.');
    const std::size_t is = ours.find('=');
    EXPECT_THAT(strata::test::error_of([&] { static_cast<void>(config::read_config(config, {})); },
                                       ExitCode::kUsage),
                HasSubstr("write " + ours.substr(dot + 1, is - dot - 1) + " = " +
                          ours.substr(is + 1) + " under [" + ours.substr(0, dot) + "]"));
  }
}

TEST(FamiliarNames, ThatAreTurnedOffAreLeftOut) {
  for (const char* typed : {"--bf16=false", "--gradient_checkpointing=False", "--resume=no"}) {
    EXPECT_THAT(strata::test::error_of(
                    [&] {
                      line_of({"train", "c.ini", typed});
                    },
                    ExitCode::kUsage),
                HasSubstr("leave it out"));
  }
}

TEST(FamiliarNames, OfValuesAreAccepted) {
  for (const auto& [given, ours] : std::vector<std::pair<std::string, std::string>>{
           {"numerics.dtype=bf16", "bfloat16"},
           {"numerics.dtype=fp32", "float32"},
           {"numerics.dtype=FP64", "float64"},
           {"run.device=gpu", "cuda"},
           {"run.device=cuda:0", "cuda"},
           {"run.device=CPU", "cpu"},
           {"optimizer.kind=AdamW", "adamw"},
           {"optimizer.kind=SGD", "sgd"},
           {"optimizer.nesterov=True", "on"},
           {"numerics.tf32=0", "off"},
           {"schedule.kind=cosine_annealing", "cosine"},
           {"model.loss=mse", "mean_squared_error"},
           {"model.loss=CrossEntropy", "cross_entropy"},
           {"model.preset=GPT2", "gpt2-124m"},
           {"parallel.schedule=ZB-H1", "zb-h1"},
           {"parallel.schedule=1F1B", "1f1b"},
           {"train.recompute=off", "none"},
           {"run.resume=false", "never"},
           {"data.normalise=standardize", "standard"}}) {
    SCOPED_TRACE(given);
    config::RunConfig config;
    const std::string key = given.substr(0, given.find('='));
    const auto option = std::ranges::find(config::option_table(), key, &config::Option::key);
    option->set(config, given.substr(key.size() + 1));
    EXPECT_EQ(option->get(config), ours);
  }
}

TEST(FamiliarNames, OfCommandsLayersAndMachines) {
  const auto refusal = [](const Words& words) {
    return strata::test::error_of([&] { line_of(words); }, ExitCode::kUsage);
  };
  EXPECT_EQ(refusal({"fit", "c.ini"}),
            "there is no command \"fit\"; the nearest is \"train\" (strata --help lists all)");
  EXPECT_THAT(refusal({"eval", "runs/a"}), HasSubstr("\"evaluate\""));
  EXPECT_THAT(refusal({"sample", "runs/a"}), HasSubstr("\"generate\""));
  EXPECT_THAT(refusal({"import", "a.csv"}), HasSubstr("\"data import\""));
  EXPECT_THAT(refusal({"job", "c.ini", "--walltime=1:00:00"}), HasSubstr("write --time=1:00:00"));
  EXPECT_THAT(refusal({"job", "c.ini", "--nnodes", "4"}), HasSubstr("write --nodes=4"));
  EXPECT_EQ(line_of({"checkpoint", "export", "a", "--format=HF", "--output=b"}).required("format"),
            "huggingface");
  EXPECT_EQ(line_of({"data", "import", "--format", "CSV"}).required("format"), "csv");
  EXPECT_EQ(forecast::read_machine("H100").name, forecast::read_machine("h100").name);

  for (const auto& [typed, ours] :
       std::vector<std::pair<std::string, std::string>>{{"linear 10", "dense 10"},
                                                        {"fc 10 relu", "dense 10 relu"},
                                                        {"Dense 10", "dense 10"},
                                                        {"Conv2d 8 3", "conv 8 3"},
                                                        {"maxpool 2", "max_pool 2"},
                                                        {"BatchNorm2d", "batch_norm"},
                                                        {"LayerNorm", "layer_norm"},
                                                        {"lm_head", "head"}}) {
    config::RunConfig config;
    config.model.layers = {typed};
    config.train.steps = 1;
    const io::DatasetInfo data{
        .samples = 80, .input_shape = {10}, .input_dtype = DType::kFloat32, .classes = 4};
    EXPECT_THAT(
        strata::test::error_of([&] { static_cast<void>(plan::prepare(config, 1, data, {})); },
                               ExitCode::kUsage),
        HasSubstr("write \"layer = " + ours + "\""));
  }
}

TEST(FamiliarNames, ASettingTakesTheNextWordAsItsValue) {
  const config::CommandLine line = line_of(
      {"train", "--train.steps", "5", "c.ini", "--dry-run", "--optimizer.learning_rate", "1e-3"});
  EXPECT_EQ(line.positions(), Words{"c.ini"});
  EXPECT_EQ(line.settings(), (Words{"--train.steps=5", "--optimizer.learning_rate=1e-3"}));
  EXPECT_TRUE(line.has("dry-run"));
  EXPECT_EQ(strata::test::error_of(
                [] {
                  line_of({"train", "c.ini", "--train.steps"});
                },
                ExitCode::kUsage),
            "--train.steps has no value; give --train.steps=VALUE");
  EXPECT_THAT(strata::test::error_of(
                  [] {
                    line_of({"train", "c.ini", "--train.steps", "--dry-run"});
                  },
                  ExitCode::kUsage),
              HasSubstr("--train.steps has no value"));
}

TEST(FamiliarNames, AnOptionThatRepeatsKeepsAllItsValues) {
  const config::CommandLine line = line_of(
      {"generate", "--stop", "a", "--stop", "b", "run", "--stop=c", "--top-k=1", "--top-k=2"});
  EXPECT_EQ(line.values("stop"), (Words{"a", "b", "c"}));
  EXPECT_EQ(line.positions(), Words{"run"});
  EXPECT_EQ(line.values("top-k"), Words{"2"});
  EXPECT_EQ(strata::test::error_of(
                [] {
                  line_of({"generate", "run", "--stop=a", "--stop", "--top-k=1"});
                },
                ExitCode::kUsage),
            "--stop has no value; give --stop=VALUE");
}

}  // namespace
}  // namespace strata::app::familiar_names_test
