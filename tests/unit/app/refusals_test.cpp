// Settings that a run refuses before it starts: the reader of a config, or the plan.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "strata/comm/mpi.hpp"
#include "strata/config/config_file.hpp"
#include "strata/config/help.hpp"
#include "strata/core/text.hpp"
#include "strata/plan/plan.hpp"

#include "../io/data_files.hpp"
#include "commands/commands.hpp"
#include "error_of.hpp"

namespace strata::app::refusals_test {
namespace {

using namespace std::string_literals;

/// Rows of a table. A row goes on in lines that begin with blanks.
std::vector<std::string> rows_of(std::string table) {
  for (std::size_t at; (at = table.find("\n  ")) != std::string::npos;) {
    table.erase(at, 2);
  }
  return split_words(table, "\n");
}

const io::DatasetInfo kClasses{
    .samples = 80, .input_shape = {10}, .input_dtype = DType::kFloat32, .classes = 4};
const io::DatasetInfo kText{.task = io::Task::kNextToken, .samples = 100, .classes = 26};

/// Reads the config and plans the run of each row, as a launch does. A row has settings, with &
/// between them, and behind => words of the message, with | between them. "2: " in front launches
/// two ranks.
void expect_refused(const std::string& config, io::DatasetInfo data, const std::string& table,
                    const std::vector<std::string>& common = {}, std::int64_t ranks = 1) {
  const io::test::TemporaryDirectory directory;
  io::test::write_file(directory / "given.ini", config);
  for (const std::string& row : rows_of(table)) {
    SCOPED_TRACE(row);
    const std::size_t arrow = row.find("=>");
    const bool counts = row.find(": ") == 1;
    std::vector<std::string> arguments = common;
    for (const std::string& setting :
         split_words(row.substr(counts ? 3 : 0, arrow - (counts ? 3 : 0)), "&")) {
      arguments.push_back("--" + setting);
    }
    const std::string message = strata::test::error_of(
        [&] {
          const config::RunConfig given =
              config::read_config((directory / "given.ini").string(), arguments).config;
          if (data.task == io::Task::kNextToken) {
            data.input_shape = data.target_shape = {plan::context_of(given)};
          }
          static_cast<void>(plan::prepare(given, counts ? std::stoll(row) : ranks, data, {}));
        },
        ExitCode::kUsage);
    for (const std::string& word : split_words(row.substr(arrow + 2), "|")) {
      EXPECT_THAT(message, testing::HasSubstr(word));
    }
  }
}

constexpr const char* kDense = R"([model]
layer = dense 16 relu
layer = dropout 0.1
layer = dense 4
[data]
train = classes/train.h5
[batch]
global = 16
[numerics]
lanes = 2
[train]
steps = 6
)";

constexpr const char* kTransformer = R"([model]
preset = gpt
blocks = 2
width = 32
heads = 4
context = 16
[data]
train = text/train.h5
[batch]
global = 16
micro = 2
[numerics]
lanes = 4
shards = 4
[train]
steps = 3
)";

constexpr const char* kIslands = R"([model]
layer = dense 8
layer = dense 4
[data]
train = classes/train.h5
[batch]
global = 48
micro = 3
[parallel]
sync = local
islands = 4
[local]
steps = 6
[train]
steps = 24
)";

TEST(Refusals, OfConfigFilesNamePlaceAndNearestKey) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, const char*>>{
           {"[run]\ndir = a\0b\n"s, "=> run.dir = \"a\\x00b\" | without a NUL byte"},
           {"[batch]\nglobal = 3\0x\n"s, "=> \"3\\x00x\" is not allowed | whole number"},
           {"[optimizer]\nlearning_rat = 1\n",
            "=> given.ini | nearest is \"optimizer.learning_rate\""},
           {"[modle]\nlayer = dense 4\n", "=> given.ini | write layer = dense 4 under [model]"},
           {"layer = dense 4\n", "=> given.ini | \"layer\""},
           {"[model]\nlayer dense 4\n", "=> given.ini | invalid line | key = value"},
           {"[train]\nsteps = 1\nsteps = 2\n", "=> given.ini | train.steps is given twice"},
           {"[train]\nsteps = 6\nepochs = 2\n", "=> train.steps and train.epochs are both set"}}) {
    expect_refused(text, kClasses, words);
  }
}

TEST(Refusals, OfSettings) {
  expect_refused(kDense, kClasses, R"(
batch.global=0 => batch.global = "0" | whole number from 1
batch.global=ten => batch.global = "ten" | whole number from 1
batch.global=1.5 => batch.global = "1.5" | whole number from 1
optimizer.momentum=1 => optimizer.momentum | below 1
optimizer.learning_rate=nan => optimizer.learning_rate | number from 0
optimizer.learning_rate=0.1 => suits sgd | no optimizer.kind is chosen | set optimizer.kind
optimizer.momentum=0.9 => optimizer.momentum is set | optimizer.kind is auto | to sgd
optimizer.kind=adm => optimizer.kind | sgd, adam, adamw, adagrad
numerics.dtype=int32 => numerics.dtype | float32, bfloat16, float64
parallel.schedule=zb => parallel.schedule | gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, auto, or
  file:PATH
parallel.schedule=file: => parallel.schedule = "file:" | or file:PATH
run.threads=5000 => run.threads | from 0 to 4096
run.seed=-1 => run.seed | from 0
run.device=tpu => run.device = "tpu" | auto, cpu, cuda
schedule.factor=0 => schedule.factor | above 0
train.steps=0 => the run has no length
batch.global=1000000000 => microbatches | larger batch.micro
batch.global=1000000000000 => batch.global | from 1 to 1073741824
batch.micro=2000000 => batch.micro | from 0 to 1048576
parallel.data=9000000000000000000 => parallel.data | from 0 to 65536
numerics.lanes=9000000000000000000 => numerics.lanes | from 0 to 65536
numerics.shards=1000000 => numerics.shards | from 0 to 65536
model.sync_batch_norm=maybe => model.sync_batch_norm | one of off, on
run.sniff=0 => run.sniff | off, start, or the steps between two tests, as in 1000
run.sniff=always => run.sniff | off, start, or the steps between two tests, as in 1000
run.sniff=1.5 => run.sniff | off, start, or the steps between two tests, as in 1000
batch.golbal=3 => command line | "batch.golbal" | nearest is "batch.global"
optimizer.kind=sgd & optimizer.nesterov=on => optimizer.momentum is 0 | such as 0.9
train.steps=0 & train.epochs=1e300 => train.epochs is 1e+300 | lower it
train.steps=3 & train.epochs=2 => train.steps and train.epochs are both set
2: numerics.lanes=4 & batch.global=18 => batch.global is 18, not divisible by 4 lanes | 16 or 20
batch.micro=3 => batch.global is 16, not divisible by microbatches of 3 samples in 2 lanes | 12 or
  18
3: batch.global=12 => numerics.lanes is 2, which parallel.data = 3 does not divide
4: parallel.pipeline=4 => parallel.pipeline is 4, but the model has 3 layers | at most 3 stages
2: parallel.pipeline=3 => the job has 2 ranks | 1 data x 3 pipeline x 1 tensor needs 3 | launch 3
  ranks
2: parallel.data=1 => the job has 2 ranks | needs 1 | launch 1 rank,
2: parallel.tensor=2 & numerics.shards=3 => numerics.shards is 3, which parallel.tensor = 2 does
  not divide
parallel.split=0,9 => parallel.split names the layer "9" | a number below 3
model.layer=dens 4 => no layer "dens" | nearest is "dense" | layer_norm
model.layer=dense => number of outputs | whole number from 1
model.layer=dense 9000000000000000000 => whole number from 1 to 2147483647
model.layer=dense 4 bais=no => no option "bais" | nearest is "bias"
model.layer=dense 4 bias=no bias=yes => bias is given twice | keep one
model.layer=dense 4 rleu => only relu can follow
model.layer=dropout 1.5 => probability is 1.5 | below 1
model.layer=dense 5 => last layer "dense 5" gives 5 | needs 4 | "layer = dense 4"
model.loss=mean_squared_error => model.loss is mean_squared_error | has classes as targets |
  cross_entropy
numerics.loss_pieces=2 => numerics.loss_pieces is set, but the model does not end in a head
model.context=8 => model.context is set | holds no tokens
data.targets=none => data.targets is set | are no values | leave it out
data.sampling=windows => data.sampling is set | holds no tokens
parallel.sequence=on => parallel.sequence is set | holds no tokens
checkpoint.best=loss => checkpoint.best is set | data.test is empty
train.patience=2 => train.patience is set | data.test is empty
data.test=classes/test.h5 & train.patience=2 & train.evaluate_every=0 => train.evaluate_every is 0
checkpoint.best=los => one of off, loss, accuracy
train.patience=-1 => whole number from 0
train.label_smoothing=1 => train.label_smoothing | number from 0 to below 1
train.z_loss=-1 => train.z_loss | number from 0
run.tensorboard=off & run.tensorboard_histograms=4 => run.tensorboard_histograms is set, but
  run.tensorboard is off)");
  const io::DatasetInfo values{.task = io::Task::kRegression,
                               .samples = 40,
                               .input_shape = {1},
                               .input_dtype = DType::kFloat32,
                               .target_shape = {4}};
  expect_refused(
      kDense, values,
      "data.test=v.h5 & train.evaluate_every=2 & checkpoint.best=accuracy => no classes\n"
      "train.label_smoothing=0.1 => train.label_smoothing is set | values, not classes\n"
      "train.z_loss=0.1 => train.z_loss is set | values, not classes");
}

TEST(Refusals, OfAsynchronousTraining) {
  expect_refused(kDense, kClasses, R"(
2: parallel.pipeline=2 => 2 stages | parallel.pipeline
2: async.servers=2 & parallel.data=2 => async.servers is 2 | at most 1
async.stale=drop => async.stale is set | async.staleness is 0
local.steps=6 => local.steps is set | parallel.sync is async
checkpoint.keep_every=10 & checkpoint.every=20 => checkpoint.keep_every is 10
parallel.island=1 => parallel.island is set
train.check_every=5 => train.check_every is set
train.nonfinite=repeat => train.nonfinite is repeat
async.staleness=-1 => async.staleness)",
                 {"--parallel.sync=async"});
}

const std::vector<std::string> kTwoStages{"--parallel.pipeline=2", "--batch.micro=8",
                                          "--numerics.lanes=1"};

TEST(Refusals, OfSchedules) {
  expect_refused(kDense, kClasses, R"(
parallel.schedule=zb-v & parallel.chunks=3 => parallel.chunks is 3, but parallel.schedule = zb-v
  has 2 chunks a rank
parallel.schedule=1f1b & parallel.chunks=2 => parallel.chunks is 2, but parallel.schedule = 1f1b
  has one chunk
parallel.schedule=file:good.csv & parallel.chunks=2 => says itself which chunks a rank holds
parallel.schedule=auto & parallel.chunks=2 => has 4 chunks on 2 stages, but the model has 3 layers
parallel.schedule=auto & parallel.chunks=3 => parallel.chunks is 3 | takes 1 or 2 here
parallel.schedule=zb-h1 & parallel.activations=3 => parallel.activations is 3 | set
  parallel.schedule to auto
parallel.schedule=interleaved & parallel.chunks=1 => parallel.chunks is 1 | interleaved has 2 to 4
parallel.schedule=interleaved & parallel.chunks=5 => parallel.chunks | 4
parallel.schedule=interleaved & parallel.chunks=4 => has 8 chunks on 2 stages, but the model has 3
  layers | use fewer stages
parallel.schedule=1f1b & parallel.split=0,1,2 => each of the 2 stages or chunks
parallel.schedule=zb-h1 & parallel.backward=fused => computes weight gradients later | to auto
parallel.schedule=1f1b & parallel.backward=split & train.recompute=full => parallel.backward is
  split | to fused)",
                 kTwoStages, 2);
}

TEST(Refusals, OfScheduleFilesNameTheCell) {
  const io::test::TemporaryDirectory directory;
  const std::string file = (directory / "bad.csv").string();
  std::vector<std::string> arguments = kTwoStages;
  arguments.push_back("--parallel.schedule=file:" + file);
  // Lines of a file have / between them.
  for (const std::string& row : rows_of(R"(
0F0,0F1,0B0,0B1 => a schedule of 1 rank, | parallel.pipeline is 2 | set parallel.pipeline to 1
0F0,0B0 / 1F0,1B0 => a schedule of 1 microbatch, | each rank has 2 in a step
0F0,0F1,0B0,0B1,2F0 / 1F0,1F1,1B0,1B1 => bad.csv | is missing
0F0,0F1,2F0,2F1,4F0,4F1,6F0,6F1,8F0,8F1,0B0,0B1,2B0,2B1,4B0,4B1,6B0,6B1,8B0,8B1 /
  1F0,1F1,3F0,3F1,5F0,5F1,7F0,7F1,9F0,9F1,1B0,1B1,3B0,3B1,5B0,5B1,7B0,7B1,9B0,9B1 => bad.csv has 5
  stages on a line; training runs at most 4 a rank
0UNSHARD,0F0,0F1,0B0,0B1 / 1F0,1F1,1B0,1B1 => bad.csv:1: cell 1 (0UNSHARD): training does not run
  UNSHARD; leave it out
0F0,0F1,0B0,0B1 / 1F0,1F1,1I0,1I1,1W1,1W0 => bad.csv:2: cell 6 (1W0): backward-weight of
  microbatch 0 follows that of microbatch 1
0F0,0F1,0B1,0B0 / 1F0,1F1,1I1,1I0,1W0,1W1 => bad.csv:1: cell 4 (0B0) | backward-weight
0F0,0F1,0I1,0I0,0W0,0W1 / 1F0,1F1,1I1,1I0,1W0,1W1 => bad.csv:1: cell 4 (0I0): backward-input of
  microbatch 0 follows that of microbatch 1
0F1,0F0,0B0,0B1 / 1F1,1F0,1B0,1B1 => bad.csv:1: cell 2 (0F0) | forward of microbatch 0
0F0,0F1,0B0 / 1F0,1F1,1B0,1B1 => bad.csv:1: stage 0: backward-input of microbatch 1: is missing
0F0,0F1 / 1F0,1F1 => has no backward passes
0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0RECV_B0,0B0,0B1 /
  1RECV_F0,1F0,1RECV_F1,1F1,1I0,1I1,1W0,1W1,1SEND_B1,1SEND_B0 => bad.csv:1: cell 6 (0RECV_B0) |
  receive-gradient of microbatch 0
0F0,0B0,0F1,0B1 / 1F0,1F1,1B0,1B1 => bad.csv:1: cell 2 (0B0): deadlock: stage 0 waits at
  receive-gradient
0F0,0B0 / 1F0,1X0 => bad.csv:2: cell 2 is "1X0"
 => a schedule of 0 ranks)")) {
    const std::size_t arrow = row.find("=>");
    std::string text;
    for (const std::string& line : split_words(row.substr(0, arrow), "/ ")) {
      text += line + "\n";
    }
    io::test::write_file(file, text);
    expect_refused(kDense, kClasses, row.substr(arrow), arguments, 2);
  }
}

TEST(Refusals, OfLanguageModels) {
  expect_refused(kTransformer, kText, R"(
model.layer=embedding 32 & model.layer=head => model.preset is gpt and there are 2 model.layer
  lines | keep one
model.blocks=0 => model.preset is gpt, which leaves model.blocks open | set it
model.width=0 => model.preset is gpt, which leaves model.width open | set it
model.heads=0 => model.preset is gpt, which leaves model.heads open | set it
model.heads=5 => model.preset is | model.width = 32 | model.heads = 5
model.kv_heads=3 => model.preset is | model.heads = 4 | model.kv_heads = 3 | divides 4
model.preset=gpt3 => model.preset = "gpt3" | gpt2-124m | llama
model.rotary_base=1000 => model.preset is gpt: model.rotary_base = 1000 | model.positions = rotary
model.preset=mistral-7b-v0.1 & model.kv_heads=4 & model.attention_window=0 =>
  model.attention_window is 0, which stands for the 4096 tokens of model.preset = mistral-7b-v0.1 |
  model.context
model.preset=llama3.1-8b & model.kv_heads=4 & model.rotary_scaling=none => model.rotary_scaling is
  none, which stands for the llama3 of model.preset = llama3.1-8b | linear:1
model.mlp=silu => model.mlp = "silu" | swiglu
model.positions=sines => model.positions = "sines" | rotary | learned
model.rotary_scaling=yarn:4 => model.rotary_scaling = "yarn:4" | linear:FACTOR
model.rotary_scaling=longrope:4:100:1:1,2 => model.rotary_scaling = "longrope | longrope:FACTOR:CONTEXT
model.positions=rotary & model.rotary_scaling=longrope:4:100:1:2 => rotary_scaling has 1 factors, but
  4 pairs | give 4
model.rotary_scaling=linear:2 => model.rotary_scaling = linear:2 | model.positions is learned
model.blocks=2000000000 => model.blocks = "2000000000" | from 0 to 10000
model.width=16000000 => model.width | from 0 to 1048576
model.hidden=9000000000000 => model.hidden | from 0 to 1048576
model.heads=9000000000000 => model.heads | from 0 to 1048576
model.kv_heads=9000000000000 => model.kv_heads | from 0 to 1048576
model.context=9000000000000 => model.context | from 0 to 16777216
model.vocabulary=9000000000000 => model.vocabulary | from 0 to 16777216
model.context=sixteen => model.context = "sixteen" | whole number
numerics.shards=3 => attention | 4 heads are not divisible by numerics.shards = 3
2: parallel.tensor=2 & model.kv_heads=2 & numerics.shards=6 => 4 heads with 2 key-value heads |
  numerics.shards = 6 | a multiple of them that divides the heads: 1, 2, 4
model.hidden=130 => model.preset is | model.hidden | mlp 130 | parallel.tensor | such as 2 or 5 |
  130 hidden units are not divisible by numerics.shards = 4
3: parallel.tensor=3 => numerics.shards is 4, which parallel.tensor = 3 does not divide | divides 4
2: parallel.tensor=2 & parallel.sequence=on & model.context=17 => parallel.sequence is on | 34
  tokens | batch.micro = 2 | model.context = 17 | numerics.shards = 4
8: parallel.pipeline=8 => parallel.pipeline is 8, but the model has 7 layers | at most 7 stages
2: parallel.tensor=2 & numerics.mode=fast => numerics.lanes is 4 and parallel.data is 1 |
  numerics.mode = fast
2: parallel.tensor=2 & numerics.mode=fast & numerics.lanes=0 => numerics.shards is 4 and
  parallel.tensor is 2 | invariant
numerics.mode=quick => numerics.mode = "quick" | invariant, fast
numerics.dtype=int8 => numerics.dtype = "int8" | float32, bfloat16, float64
numerics.dtype=bfloat => numerics.dtype = "bfloat" | float32, bfloat16, float64
numerics.dtype=float16 => numerics.dtype = "float16" | float32, bfloat16, float64
train.recompute=yes => train.recompute = "yes" | none, selective, full
numerics.loss_pieces=3 => numerics.loss_pieces is 3 | the 32 tokens of a microbatch | divides them
numerics.loss_pieces=64 => numerics.loss_pieces is 64 | batch.micro = 2 times model.context = 16
numerics.loss_pieces=-1 => numerics.loss_pieces = "-1" | whole number from 0
2: parallel.pipeline=2 & numerics.loss_pieces=2 & parallel.backward=split => parallel.backward is
  split | numerics.loss_pieces is 2 | to fused or auto
parallel.sequence=maybe => parallel.sequence = "maybe" | off, on
model.context=0 => leaves model.context open
model.vocabulary=20 => model.preset is gpt | model.vocabulary = 20 | at least 26
model.heads=32 & model.positions=rotary => model.positions = rotary | a head has 1
optimizer.kind=adam & optimizer.momentum=0.9 => optimizer.momentum is set | optimizer.kind is adam |
  sgd
optimizer.kind=adagrad & optimizer.beta2=0.99 => optimizer.beta2 is set | optimizer.kind is adagrad |
  adam or adamw
optimizer.kind=sgd & optimizer.epsilon=1e-6 => optimizer.epsilon is set | adagrad
optimizer.kind=adam & optimizer.nesterov=on => optimizer.nesterov is set | optimizer.kind is adam
train.repeat_every=7 & numerics.mode=fast & numerics.lanes=0 & numerics.shards=0 =>
  train.repeat_every is set | numerics.mode is fast | invariant
run.receipts=on & numerics.mode=fast & numerics.lanes=0 & numerics.shards=0 =>
  run.receipts is on | numerics.mode is fast | set run.receipts to off
run.receipts=0 => run.receipts = "0" | off, on or a whole number from 1
run.receipts=yes => run.receipts = "yes" | off, on or a whole number from 1
schedule.every=7 => schedule.every is set | schedule.kind is constant | to step
schedule.factor=0.7 => schedule.factor is set | schedule.kind is constant | to step
schedule.minimum=0.1 => schedule.minimum is set | schedule.kind is constant | linear or cosine
schedule.decay_steps=2 => schedule.decay_steps is set | schedule.kind is constant | linear or cosine
data.normalise=unit => data.normalise is set | holds tokens | leave it out
model.loss=mean_squared_error => model.loss is mean_squared_error | has tokens as targets
numerics.shard_sums=bfloat16 => numerics.dtype is float32
numerics.row_pieces=5 => not divisible by 5 pieces of numerics.shards = 4 shards
checkpoint.init_except=head.* => checkpoint.init is empty
optimizer.frozen=embeding.* => optimizer.frozen | "embeding.*" | the nearest is
optimizer.frozen=* => freezes all | nothing to train
optimizer.groups=nrom.bias: learning_rate=0 => optimizer.groups | "nrom.bias" | nearest is
  "norm.bias"
optimizer.groups=*: rate=0 => learning_rate=FACTOR
optimizer.groups=*: weight_decay=-1 => is not allowed
lora.rank=4 & lora.products=keys => lora.products names "keys" | qkv, output, up, gate, down
lora.rank=4 & lora.products=gate => the model has no product gate
lora.products=qkv => lora.rank is 0
lora.rank=4 & optimizer.frozen=* => nothing to train
lora.rank=33 => is 33, above the width 32
lora.rank=4 & lora.train=nrom.* => lora.train | nearest is "norm.)");
}

constexpr const char* kLines = R"([model]
layer = embedding 32 positions=16
layer = attention 4
layer = mlp 64 gelu
layer = layer_norm
layer = head
context = 16
[batch]
global = 8
[train]
steps = 1
)";

TEST(Refusals, OfLayers) {
  expect_refused(kLines, kText, R"(
model.context=17 => 16 learned positions | model.context is 17
model.context=0 => data set holds tokens | model.context is 0
model.layer=head => model.layer "head" | its input is token ids | embedding
model.layer=dense 12 & model.layer=dense 4 => dense 12 | input is token ids | embedding
model.layer=embedding 20 & model.layer=layer_norm => "layer_norm" | 26 ids | layer = head)");
  expect_refused(kDense, kClasses, R"(
model.layer=embedding 32 & model.layer=head => embedding | its input is not token ids |
  --format=text
numerics.shards=5 & model.layer=dense 12 parallel=column & model.layer=dense 4 parallel=row =>
  dense 12 | 12 outputs are not divisible by numerics.shards = 5
numerics.shards=2 & model.layer=dense 12 parallel=column & model.layer=dense 4 =>
  parallel=column | give parallel=row
numerics.shards=2 & model.layer=dense 12 & model.layer=dense 4 parallel=row => its input is whole |
  parallel=column
numerics.shards=2 & model.layer=dense 12 parallel=column & model.layer=layer_norm
  & model.layer=dense 4 => split by feature)");
}

TEST(Refusals, OfIslands) {
  expect_refused(kIslands, kClasses, R"(
3: parallel.data=3 => parallel.islands is 4 | 3 replicas
local.steps=48 => local.steps is 48 | 24 steps
batch.micro=1 & numerics.lanes=12 & parallel.islands=5 => numerics.lanes is 12 |
  parallel.islands = 5 | multiple of 5
train.steps=20 => train.steps is 20 | 18 or 24
train.evaluate_every=4 => train.evaluate_every is 4 | give 6
checkpoint.every=4 => checkpoint.every is 4 | give 6
checkpoint.keep_every=2 => checkpoint.keep_every is 2
local.delay=6 => local.delay is 6 | local.steps = 6
local.fragments=2 & local.delay=3 => local.delay is 3 | local.fragments 2 | every 3 steps
local.deadline=3 => local.deadline is set
parallel.island_of=meet & parallel.island=4 => parallel.islands = 4 | parallel.island = 4
parallel.island_of=meet & parallel.islands=0 => parallel.island_of is set | at least 2
parallel.island_of=meet & local.exchange=int8 => parallel.island_of | local.exchange
parallel.island_of=meet & local.record=meet => parallel.island_of and local.record
local.fragments=7 => local.fragments
numerics.lanes=6 => numerics.lanes is 6 | parallel.islands = 4
2: parallel.data=2 & numerics.mode=fast => numerics.mode is fast
local.mix=1 => local.mix
parallel.sync=step => parallel.islands is set | no effect)");
}

TEST(Commands, AreDescribedInAscii) {
  // Manual pages and terminals of any locale show it.
  for (const config::Command& command : all_commands()) {
    const std::string page = config::manual_page(command, all_commands(), "0");
    EXPECT_TRUE(std::ranges::all_of(page, [](unsigned char byte) { return byte < 128; })) << page;
  }
}

TEST(Refusals, OfCommands) {
  int count = 0;
  char** none = nullptr;
  comm::MpiSession mpi(&count, &none);  // of one rank
  for (const std::string& row : rows_of(R"(
schedule check nowhere => nowhere is neither a file nor one of gpipe
schedule check nowhere --stages=4 => nowhere is neither a file nor one of gpipe
schedule check zb-v --chunks=3 => zb-v has two chunks a rank
schedule simulate zb-h1 --stages=0 => --stages is "0"
schedule check 1f1b --stages=4096 --microbatches=65536 => 4096 chunks x 65536 microbatches
schedule simulate zb-h1 --forward=-1 => --forward is "-1"
schedule check zb-v --output=x => no option --output
schedule draw zb-v => needs --output=FILE.svg
schedule draw zb-v --output=nowhere/x.svg => cannot write nowhere/x.svg: No such file or directory
schedule simulate zb-h1 --unshard=1 => --unshard is for the actions of a file | zb-h1
schedule simulate zb-h1 --forward=1,1 => --forward has 2 times for 4 ranks
schedule make zb-v => takes options only, not "zb-v"
schedule make --chunks=3 => --chunks is "3"
schedule make --memory=0 => --memory allows 0 activations on rank 0
schedule make --memory=1024 --activation-mib=300,2000,300,300 => --memory allows 0 activations on
  rank 1
schedule make --output=nowhere/x.csv => cannot write nowhere/x.csv
schedule prove zb-v => check, simulate, draw, convert and make, not "prove"
data import --shard-mib=99999999999999 => --shard-mib is | from 1 to 1073741824
data import --shard-mib=0 => --shard-mib is | from 1 to
data import --classes=-1 => --classes is "-1" | from 0 to 16777216
data import --classes=9999999999 => --classes is | from 0 to 16777216
data import --split => --split has no value | --split=VALUE
data import --split=1 --resize=8 => --resize is not for --format=npy | images
data import --classes=2 --label= => --label is not for --format=npy
data import --classes --overwrite => --classes has no value
data import --overwrite=no => --overwrite takes no value
data import --images=x => --images is not for --format=npy | idx
data import --label=x => --label is not for --format=npy
data import --format=idx --images=x --labels=x --files=x => --files is not for --format=idx |
  csv, jsonl, cifar10
data import --format=idx --images=x --labels=x --label=x => --label is not for --format=idx | csv
data import --format=idx --images=x --labels=x --inputs=x => --inputs is not for --format=idx | npy
data import --format=idx --images=x --labels=x --targets=x => --targets is not for --format=idx | npy
data import --format=csv --files=x --label=x --images=x => --images is not for --format=csv | idx
data import --format=csv --files=x --label=x --labels=x => --labels is not for --format=csv | idx
data import --format=csv --files=x --label=x --inputs=x => --inputs is not for --format=csv | npy
data import --format=csv --files=x --label=x --targets=x => --targets is not for --format=csv | npy
data import --format=nyp => --format is "nyp" | one of idx, csv, jsonl, npy
data import --format=idx --images=x --labels=x --task=regresion => --task is "regresion" | one of auto
data import --order=sorted => --order is "sorted" | one of shuffled, file
data import --seed=-1 => --seed is "-1" | from 0
data import --test-files=x => --test-files is not for --format=npy | csv, jsonl
data import --missing=mean => --missing is not for --format=npy | csv, jsonl
data import --format=csv --files=x --ignore= => --ignore is empty | --ignore=COLUMN
data import --format=csv --files=x --missing=zero => --missing is "zero" | one of refuse, mean, median
data import --format=text --files=x --tokenizer=chars --order=file => --order is not for
  --format=text
data import --fromat=npy => no option --fromat | nearest is --format
data import --format=text --files=x => --format=text needs --tokenizer=bytes, chars or gpt2
data import --format=text --files=x --tokenizer=words => --tokenizer is "words" | bytes,
  chars, gpt2
data import --format=text --tokenizer=chars => --format=text needs --files
data import --format=text --files=x --tokenizer=gpt2 --encoder=x => --tokenizer=gpt2 and --merges
data import --format=text --files=x --tokenizer=chars --encoder=x => --tokenizer=gpt2 and --encoder
data import --format=text --files=x --tokenizer=chars --separator=maybe => --separator is "maybe" |
  one of auto, on, off
data import --format=text --files=x --tokenizer=chars --separator=on => --separator=on |
  --tokenizer=chars has none
data import --format=text --files=x --tokenizer=chars --vocabulary=9 => --vocabulary is not for
  --format=text
data import --format=text --files=x --tokenizer=chars --classes=9 => --classes is not for
  --format=text
data import --format=text --files=x --tokenizer=chars --images=x => --images is not for
  --format=text
data import --format=text --files=x --tokenizer=chars --label=x => --label is not for --format=text
data import --format=text --files=x --tokenizer=chars --labels=x => --labels is not for
  --format=text
data import --format=text --files=x --tokenizer=chars --inputs=x => --inputs is not for
  --format=text
data import --format=text --files=x --tokenizer=chars --targets=x => --targets is not for
  --format=text
data import --format=csv --files=x --label=a --tokenizer=chars => --tokenizer is not for
  --format=csv
data import --format=csv --files=x --label=a --deduplicate => --deduplicate is not for --format=csv |
  text, chat
data import --format=text --files=x --tokenizer=chars --deduplicate => give --text-field
data import --format=text --files=x --text-field=t --tokenizer=chars --held-out=1 => --held-out is "1" |
  a share between 0 and 1
data import --format=text --files=x --text-field=t --tokenizer=chars --held-out=0.1 --split=1.0 =>
  --held-out=0.1 and --split=1.0
data import --format=text --files=x --text-field=t --tokenizer=chars --held-out=0.1 --test-files=y =>
  --held-out=0.1 and the test files y
data import --format=text --files=x --text-field=t --tokenizer=chars --min-characters=9
  --max-characters=8 => --max-characters is "8"
data import --format=text --files=x --text-field=t --tokenizer=chars --max-tokens=9 => --max-tokens is not for
  --format=text
data import --format=chat --files=x --template=chatml --too-long=cut => --too-long needs --max-tokens
data import --format=chat --files=x --template=chatml --max-tokens=9 --too-long=drop => --too-long is "drop" |
  cut, leave-out, refuse
data import --format=tokens-llmc --vocabulary=9 --files=x --images=x => --images is not for
  --format=tokens-llmc
data import --format=tokens-llmc --vocabulary=9 --files=x --label=x => --label is not for
  --format=tokens-llmc
data import --format=tokens-nanogpt --files=x => either --vocabulary=N
data import --format=tokens-nanogpt --files=x --vocabulary=9 --separator=off => --separator is not for
  --format=tokens-nanogpt
data import --format=tokens-nanogpt --files=x --vocabulary=9 --token-bits=8 => --token-bits is "8" |
  one of 16, 32, 64
data import --format=tokens-llmc --files=x --vocabulary=9 --token-bits=16 => --token-bits is not for
data import --format=cifar10 --files=x --classes=10 => --classes is not for --format=cifar10
data import --format=images --files=x --channels=2 => --channels is "2" | one of 3, 1
data import --format=images --files=x --resize=8xx => --resize is "8xx" | 224x224
report x => strata report needs --output=FILE.html
checkpoint export x --output=y => strata checkpoint export needs --format=huggingface|llmc|safetensors
checkpoint export x --output=y --format=torch => --format is "torch" | one of huggingface, llmc
checkpoint import x --dtype=float16 => --dtype is "float16" | one of float32, float64, bfloat16
schedule convert zb-v --messages=maybe => --messages is "maybe" | one of on, off
watch x --interval=0 => --interval is "0" | a number from 0.1 to 86400
metrics export x --kind=tests => --kind is "tests" | one of train, evaluate, checkpoint)")) {
    SCOPED_TRACE(row);
    const std::size_t arrow = row.find("=>");
    std::vector<std::string> words = split_words(row.substr(0, arrow));
    const bool imports = words.front() == "data";
    if (imports && words[2].find("--format") == std::string::npos) {
      words.insert(words.begin() + 2, {"--format=npy", "--inputs=x.npy", "--targets=y.npy"});
    }
    if (imports) {
      words.insert(words.begin() + 2, "--output=none");
    }
    const std::string message = strata::test::error_of(
        [&] {
          const config::Command& command = command_of(words);
          const config::CommandLine line(command, arguments_of(command, words));
          static_cast<void>(command.alone ? command.alone(line) : command.on_ranks(line, mpi, {}));
        },
        ExitCode::kUsage);
    for (const std::string& word : split_words(row.substr(arrow + 2), "|")) {
      EXPECT_THAT(message, testing::HasSubstr(word));
    }
  }
}

}  // namespace
}  // namespace strata::app::refusals_test
