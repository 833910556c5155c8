#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "harness.hpp"

namespace strata::grids {
namespace {

// What must not change a bit, besides the grid.
const Cycle kSequence{1, "parallel.sequence=on parallel.sequence=off"};
const Cycle kRecompute{1, "train.recompute=none train.recompute=selective train.recompute=full"};

std::vector<std::string> varied(std::string_view grids, std::string_view more = "") {
  return grids::varied(grids,
                       {kSequence,
                        kRecompute,
                        {2, kSchedules.values},
                        {3, "run.threads=1 run.threads=1 run.threads=2"},
                        {1,
                         "parallel.bucket=4 parallel.bucket=4 parallel.bucket=0.001 "
                         "parallel.bucket=0.02 parallel.bucket=4"},
                        {1, "train.repeat_every=2"}},
                       more);
}

constexpr std::int64_t kLayers = 7;  // embedding, twice attention and mlp, norm, head

/// All grids of at most `ranks` ranks.
std::string every_grid(std::int64_t ranks) {
  std::string grids;
  for (const std::int64_t data : {1, 2, 4}) {
    for (std::int64_t pipeline = 1; pipeline <= kLayers; ++pipeline) {
      for (const std::int64_t tensor : {1, 2, 4}) {
        if (const std::int64_t size = data * pipeline * tensor; size > 1 && size <= ranks) {
          grids += fmt::format("{}x{}x{} ", data, pipeline, tensor);
        }
      }
    }
  }
  return grids;
}

void is_a_language_model(const Result& result) {
  learns(result);
  EXPECT_NEAR(result.losses().front(), std::log(26.0), 0.1);
  const std::vector<double> norms = result.numbers("train", "grad_norm");
  EXPECT_LT(*std::ranges::min_element(norms), 1.3);
  EXPECT_GT(*std::ranges::max_element(norms), 1.3) << "clipping had nothing to do";
  EXPECT_EQ(result.numbers("evaluate", "step"), (std::vector<double>{2, 3}));
  EXPECT_EQ(result.weight("embedding.tokens.weight").shape, (Shape{26, 32}));
  EXPECT_FALSE(result.tensors.contains("weights/head.weight"));
}

void is_stored_in_float32(const Result& result) {
  for (const auto& [name, tensor] : result.tensors) {
    EXPECT_EQ(tensor.dtype, DType::kFloat32) << name;
  }
}

void is_a_llama(const Result& result) {
  for (const auto& [name, tensor] : result.tensors) {
    EXPECT_FALSE(name.starts_with("weights/") && name.ends_with("bias")) << name;
  }
  EXPECT_EQ(result.weight("head.weight").shape, (Shape{26, 32}));
  // 8 query heads, 4 keys and 4 values of 4 elements each.
  EXPECT_EQ(result.weight("blocks.0.attention.qkv.weight").shape, (Shape{64, 32}));
}

void make_files() {
  // Made for 4 stages of unlike times, and ZB-H2 with its messages in the file.
  make_schedule("make --memory=5 --chunks=1 --forward=1,2,1,1 --output=made.csv");
  make_schedule("convert zb-h2 --messages=on --output=messages.csv");
}

void make_chunks() {
  make_schedule("make --memory=6 --chunks=2 --stages=3 --output=v.csv --microbatches=8");
  make_schedule(
      "convert interleaved --chunks=3 --stages=2 --messages=on --output=loop.csv "
      "--microbatches=8");
}

void make_four() {
  make_schedule("make --memory=5 --chunks=2 --forward=1,2,1,1 --output=four.csv");
}

TEST(LanguageModel, ShardsFixTheNumbers) {
  const Result one = train(kGpt + "& numerics.shards=1 & model.dropout=0");
  const Result four = train(kGpt + "& model.dropout=0");
  EXPECT_NE(one.numbers("train", "grad_norm"), four.numbers("train", "grad_norm"));
  EXPECT_THAT(one.losses(), testing::Pointwise(testing::DoubleNear(1e-4), four.losses()));
}

TEST(LanguageModel, LosesLittleWhereSumsOfShardsAreRounded) {
  const Settings pieces = kGpt + "& numerics.dtype=bfloat16 & numerics.row_pieces=2";
  const Result rounded = train(pieces + "& numerics.shard_sums=bfloat16");
  const Result exact = train(pieces);
  EXPECT_NE(rounded.numbers("train", "grad_norm"), exact.numbers("train", "grad_norm"));
  EXPECT_THAT(rounded.losses(), testing::Pointwise(testing::DoubleNear(1e-2), exact.losses()));
}

TEST(LanguageModel, PiecesOfTheLossAddUpToIt) {
  for (const Settings& model : {kGpt, kGpt + kLlama}) {
    for (const auto& [dtype, bound] :
         {std::pair{"float32", 1e-4}, {"bfloat16", 1e-2}, {"float64", 1e-12}}) {
      const Settings settings = model + "& train.steps=2 & numerics.dtype=" + dtype;
      const Result whole = train(settings);
      const Result pieces = train(settings + "& numerics.loss_pieces=4");
      for (const char* kind : {"train", "evaluate"}) {
        EXPECT_THAT(pieces.numbers(kind, "loss"),
                    testing::Pointwise(testing::DoubleNear(bound), whole.numbers(kind, "loss")));
      }
    }
  }
}

TEST(LanguageModel, PaddingChangesNothing) {
  // Rotary positions, and no dropout: nothing else knows the context, which holds every document.
  const Settings model = kGpt + kDocuments +
                         "& model.preset=llama & model.dropout=0 & data.packing=documents"
                         "& numerics.dtype=float64 & batch.micro=4 & train.steps=4";
  for (const char* clip : {"& optimizer.clip_norm=0", "& optimizer.clip_norm=0.5",
                           "& optimizer.kind=sgd & optimizer.weight_decay=0"}) {
    const Result tight = train(model + clip + "& model.context=40");
    const Result padded = train(model + clip + "& model.context=72");
    for (const char* number : {"loss", "grad_norm"}) {
      EXPECT_THAT(padded.numbers("train", number),
                  testing::Pointwise(testing::DoubleNear(1e-9), tight.numbers("train", number)))
          << clip;
    }
    EXPECT_THAT(padded.numbers("evaluate", "loss"),
                testing::Pointwise(testing::DoubleNear(1e-9), tight.numbers("evaluate", "loss")));
    for (const auto& [name, tensor] : tight.tensors) {
      EXPECT_THAT(padded.tensors.at(name).values(),
                  testing::Pointwise(testing::DoubleNear(1e-7), tensor.values()))
          << name << clip;
    }
  }
}

const char* const kFast =
    "& model.dropout=0 & train.steps=4 & numerics.mode=fast & numerics.lanes=0"
    "& numerics.shards=0";

TEST(LanguageModel, IsNearInFastModeAndResumes) {
  const Result invariant = train(kGpt + "& model.dropout=0 & train.steps=4");
  for (const char* pieces : {"& numerics.loss_pieces=1", "& numerics.loss_pieces=32"}) {
    const Result fast = train(kGpt + kFast + pieces, "2x1x2 train.steps=2 | 1x2x2");
    for (const char* kind : {"train", "evaluate"}) {
      EXPECT_EQ(fast.numbers(kind, "step"), invariant.numbers(kind, "step"));
      EXPECT_THAT(fast.numbers(kind, "loss"),
                  testing::Pointwise(testing::DoubleNear(1e-4), invariant.numbers(kind, "loss")));
    }
  }
}

}  // namespace

const Settings kGpt = R"(model.context=16 & model.preset=gpt & model.blocks=2 & model.width=32
& model.heads=4 & model.dropout=0.1 & data.train=text/train.h5 & data.test=text/test.h5
& batch.global=16 & batch.micro=2 & numerics.lanes=4 & numerics.shards=4 & optimizer.kind=adamw
& optimizer.learning_rate=0.01 & optimizer.weight_decay=0.1 & optimizer.decay=matrices
& optimizer.clip_norm=1.3 & schedule.kind=cosine & schedule.warmup_steps=1
& schedule.decay_steps=10 & train.steps=3 & train.evaluate_every=2 & train.evaluate_batches=1
& run.threads=1)";
const Settings kPairs =
    "& data.train=pairs/train.h5 & data.test=pairs/test.h5 & train.objective=dpo";

const Settings kDocuments =
    "& data.train=documents/train.h5 & data.test=documents/test.h5 & model.attention_mask=document";
const Settings kLlama =
    "& model.preset=llama & model.heads=8 & model.kv_heads=4"
    "& data.sampling=windows";

std::vector<Case> language_cases() {
  const Settings packed = kDocuments + "& data.packing=best-fit & model.reset_positions=on";
  const Settings two = kGpt + "& train.steps=2";
  const Settings lines = two +
                         "& model.preset=none & model.blocks=0 & model.width=0"
                         "& model.heads=0 & model.dropout=0";
  // Layers whose heads shards do not divide, and those without norm, bias or residual.
  const Settings gpt_lines = lines + R"(& model.layer=embedding 8 positions=16 dropout=0.1
& model.layer=attention 4 dropout=0.2 & model.layer=mlp 12 dropout=0.2
& model.layer=attention 11 head_size=2 rotary=100 & model.layer=mlp 12 relu norm=none
& model.layer=layer_norm & model.layer=head)";
  const Settings llama_lines = lines + R"(& model.layer=embedding 8
& model.layer=attention 8 kv_heads=4 head_size=2 rotary=1000 norm=rms_norm bias=off
& model.layer=mlp 12 swiglu norm=rms_norm bias=off dropout=0.2
& model.layer=mlp 8 gelu residual=off & model.layer=rms_norm & model.layer=head tied=off)";
  // The words of families: those of Qwen, Mistral and Gemma, those of Pythia and OLMo.
  const std::string gemma = " norm=rms_norm post_norm=rms_norm unit_offset=on bias=off";
  const Settings gemma_lines = lines + "& model.layer=embedding 16 scale=4 dropout=0.1" +
                               "& model.layer=attention 8 kv_heads=4 head_size=4 qk_norm=head "
                               "qkv_bias=on scale=0.3 softcap=2 window=5 rotary=100 dropout=0.2" +
                               gemma + "& model.layer=mlp 12 geglu" + gemma +
                               "& model.layer=attention 4 rotary=1000 rotary_scaling=yarn:4:8" +
                               gemma +
                               "& model.layer=rms_norm unit_offset=on & model.layer=head softcap=3";
  const std::string olmo = " norm=none post_norm=rms_norm bias=off lora=2";
  const Settings neox_lines =
      lines + "& model.layer=embedding 16 dropout=0.1" +
      "& model.layer=attention 4 rotary=100 rotary_share=0.5 dropout=0.1" +
      "& model.layer=mlp 12 gelu_erf parallel_residual=on dropout=0.1" +
      "& model.layer=attention 8 kv_heads=4 head_size=2 qk_norm=width dropout=0.1" + olmo +
      "& model.layer=mlp 12 swiglu" + olmo + "& model.layer=layer_norm & model.layer=head tied=off";
  const Settings few = two + "& numerics.lanes=2";
  const Settings bfloat16 = "& numerics.dtype=bfloat16";
  // Chunks, and the table of token vectors tied to the head.
  const std::vector<std::string> chunks = list_of(
      "1x1x1 parallel.schedule=interleaved;"
      "1x2x1 parallel.schedule=interleaved train.repeat_every=2;"
      "1x2x1 parallel.schedule=interleaved parallel.chunks=3 parallel.bucket=0.001;"
      "1x3x1 parallel.schedule=interleaved train.recompute=selective;"
      "2x2x2 parallel.schedule=interleaved parallel.chunks=3 train.repeat_every=2 "
      "parallel.sequence=on;"
      "1x2x1 parallel.schedule=zb-v train.recompute=full;"
      "1x3x1 parallel.schedule=zb-v parallel.bucket=0.02;"
      "2x3x1 parallel.schedule=zb-v train.repeat_every=2;"
      "2x2x2 parallel.schedule=zb-v parallel.sequence=on parallel.bucket=0.001;"
      "1x3x1 parallel.schedule=file:v.csv run.threads=2;"
      "1x2x1 parallel.schedule=file:loop.csv;"
      "1x3x1 parallel.schedule=auto;"
      "2x2x1 parallel.schedule=auto parallel.chunks=2 parallel.activations=3;"
      "1x3x1 parallel.schedule=auto train.recompute=full;"
      "1x2x1 parallel.schedule=auto parallel.backward=fused;"
      "1x2x1 parallel.backward=fused;"
      "1x1x1 parallel.backward=split;"
      "2x2x1 stop=1:2 parallel.schedule=zb-v | 1x2x1 parallel.schedule=interleaved | 1x3x1");
  const Cycle four{1,
                   "parallel.schedule=gpipe parallel.schedule=1f1b parallel.schedule=interleaved "
                   "parallel.schedule=zb-h1 parallel.schedule=zb-h2 parallel.schedule=zb-v "
                   "parallel.schedule=auto parallel.schedule=file:four.csv"};
  const char* nodes =
      "2x1x1 parallel.node_ranks=1; 4x1x1 parallel.node_ranks=2 parallel.bucket=0.001;"
      "8x1x1 parallel.node_ranks=2 train.repeat_every=2;"
      "8x1x1 parallel.node_ranks=4 parallel.bucket=0.02;"
      "4x1x2 parallel.node_ranks=4 train.repeat_every=2; 4x2x1 parallel.node_ranks=2";
  std::vector<Case> cases{
      {"Gpt", kGpt, varied(every_grid(12)), is_a_language_model},
      {"GptRecompute", two + bfloat16 + "& data.test=",
       grids::varied("1x1x4 1x2x2 1x1x4 2x1x2 1x3x2 1x1x4 2x2x2 1x5x2 1x7x1",
                     {{3, kSequence.values}, kRecompute})},
      {"GptBfloat16", two + bfloat16, varied("1x1x2 1x2x4 2x2x2 4x1x1 1x7x1 1x5x2 2x3x1 4x1x2"),
       is_stored_in_float32},
      {"GptFloat64", two + "& numerics.dtype=float64", varied("1x2x2 2x1x4 1x7x1 4x2x1")},
      {.name = "GptScheduleFile",
       .settings = few,
       .runs = grids::varied("1x4x1 1x4x1 1x4x1 1x4x1", {kSchedules},
                             "1x4x1 parallel.schedule=file:made.csv;"
                             "1x4x1 parallel.schedule=file:messages.csv;"
                             "1x4x1 stop=3:1 parallel.schedule=file:made.csv | 1x2x1"),
       .before = make_files},
      {.name = "GptChunks",
       .settings = kGpt + "& numerics.lanes=2",
       .runs = chunks,
       .before = make_chunks},
      // 9 layers: two chunks on each of 4 stages.
      {.name = "GptFourStages",
       .settings = few + "& model.blocks=3",
       .runs = grids::varied("1x4x1 1x4x1 1x4x1 1x4x1 1x4x1 1x4x1 1x4x1 1x4x1", {four, kRecompute}),
       .before = make_four},
      {"LayerLines", lines + R"(& model.layer=embedding 24 positions=16 & model.layer=dropout 0.2
& model.layer=attention 4 kv_heads=4 rotary=10000 & model.layer=gelu & model.layer=dropout 0.1
& model.layer=mlp 40 swiglu norm=rms_norm bias=off & model.layer=layer_norm & model.layer=head)",
       varied("1x1x2 1x2x4 2x1x2 1x8x1 1x4x2 1x5x1 1x3x4")},
      {"GptOtherShards",
       two + "& numerics.shards=2 & numerics.lanes=3 & batch.global=12 & batch.micro=1"
             "& model.vocabulary=41",
       varied("1x1x2 3x1x2 1x3x2 3x3x1 1x5x2"),
       [](const Result& result) {
         EXPECT_EQ(result.weight("embedding.tokens.weight").shape, (Shape{41, 32}));
       }},
      {"GptUnevenNumbers",
       two + "& numerics.shards=3 & numerics.lanes=5 & batch.global=10 & batch.micro=1"
             "& model.width=24 & model.heads=6 & model.context=15",
       varied("1x1x3 5x1x1 1x2x3 1x3x3 5x2x1 1x7x1")},
      {"GptResumed", kGpt + "& train.steps=4",
       list_of("2x2x2 train.steps=2 | 4x1x1 parallel.schedule=gpipe parallel.sequence=on;"
               "2x2x2 stop=7:1 | 1x7x1 stop=3:2 | 1x1x4 parallel.sequence=on")},
      {"GptBfloat16Resumed", kGpt + bfloat16 + "& train.steps=4",
       list_of("1x1x1 train.steps=2 parallel.sequence=on | 1x2x4 train.recompute=full;"
               "1x1x4 train.steps=2 parallel.sequence=on | 1x3x1;"
               "2x2x2 train.steps=2 | 4x1x1 parallel.schedule=gpipe parallel.sequence=on;"
               "1x2x2 train.steps=2 train.recompute=selective | 2x1x4 parallel.sequence=on;"
               "1x5x1 stop=4:3 | 2x3x2")},
      {"GptWindowsResumed", kGpt + "& data.sampling=windows & train.steps=4",
       list_of("1x1x2 train.steps=2 | 2x2x1; 4x1x1 stop=0:1 | 1x3x1")},
      {"GptLossPiecesResumed",
       kGpt + "& numerics.loss_pieces=2 & train.steps=4 & train.label_smoothing=0.1"
              "& train.z_loss=0.001",
       list_of("2x1x2 train.steps=2 | 1x2x1; 1x4x1 stop=0:3 | 1x1x4")},
      {"GptDocumentsResumed",
       kGpt + kDocuments + "& data.packing=documents & numerics.loss_pieces=2 & train.steps=4",
       list_of("2x2x2 train.steps=2 | 4x1x1 train.recompute=full;"
               "1x2x1 stop=1:1 | 1x3x2 parallel.sequence=on;"
               "1x2x1 parallel.schedule=zb-v; 1x2x2 parallel.schedule=interleaved")},
      {"GptDocumentsAsync",
       kGpt + kDocuments + "& data.packing=documents & numerics.lanes=1 & train.steps=4",
       list_of("1x1x1 parallel.sync=async; 1x1x1 parallel.sync=async train.steps=2 | 1x1x1"
               " parallel.sync=async")},
      {.name = "GptDocumentsEpochs",
       .settings = kGpt + "& data.train=few/train.h5 & data.test=few/test.h5 & batch.global=8"
                          "& model.attention_mask=document & data.packing=documents"
                          "& train.steps=12",
       .runs = list_of("2x1x1 train.steps=4 | 1x2x2 train.steps=6 | 1x3x1 train.steps=10 | 4x1x1;"
                       "1x1x4 stop=0:2 | 2x2x1 stop=1:4 | 1x2x1 stop=0:4 | 1x7x1")},
      {.name = "GptVirtualGridOfTheFirstLaunch",
       .settings = kGpt + "& numerics.lanes=0 & numerics.shards=0 & batch.micro=0 & train.steps=4",
       .runs = list_of("2x1x2 train.steps=2 | 1x2x1; 2x1x2 stop=1:3 | 1x3x2"),
       .reference = "2x1x2"},
      {"GptRoundedSums", two + bfloat16 + "& numerics.shard_sums=bfloat16 & numerics.row_pieces=2",
       varied("1x1x2 1x1x4 2x1x4 1x2x2")}};
  const std::vector<std::string> tensor_ranks = varied("1x1x2 1x1x4 1x2x4 2x1x2 1x3x2 1x6x1");
  const std::vector<Settings> pieces{"", "& numerics.row_pieces=2", "& numerics.row_pieces=4",
                                     "& numerics.loss_pieces=4", "& numerics.loss_pieces=16"};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Settings sums = bfloat16 + (i > 1 ? "& numerics.shard_sums=bfloat16" : "");
    cases.push_back({fmt::format("GptLines{}_float32", i), gpt_lines + pieces[i], tensor_ranks});
    cases.push_back(
        {fmt::format("GptLines{}_bfloat16", i), gpt_lines + pieces[i] + sums, tensor_ranks});
    cases.push_back(
        {fmt::format("LlamaLines{}_float32", i), llama_lines + pieces[i], tensor_ranks});
    cases.push_back(
        {fmt::format("LlamaLines{}_bfloat16", i), llama_lines + pieces[i] + sums, tensor_ranks});
  }
  // Shards that share key-value heads, with all that has a row for each: weights, biases, adapters,
  // norms of queries and keys.
  const Settings shared_lines = lines + R"(& model.layer=embedding 16 dropout=0.1
& model.layer=attention 4 kv_heads=2 rotary=100 dropout=0.1 qk_norm=head
& model.layer=mlp 12 swiglu norm=rms_norm & model.layer=attention 8 kv_heads=1 head_size=4 qk_norm=width lora=2
& model.layer=mlp 12 & model.layer=layer_norm & model.layer=head tied=off)";
  for (const std::string dtype : {"float32", "bfloat16"}) {
    cases.push_back({"SharedHeads_" + dtype,
                     shared_lines + "& numerics.row_pieces=2 & numerics.dtype=" + dtype,
                     varied("1x1x2 1x1x4 2x2x2 1x2x4 4x1x1 1x6x1 1x3x2",
                            "1x1x1 stop=0:1 | 1x1x4; 1x1x4 stop=1:1 | 1x2x1;"
                            "1x2x2 parallel.schedule=zb-v")});
    const Settings typed = two + "& numerics.dtype=" + dtype;
    cases.push_back({"GptNodes_" + dtype, typed + "& numerics.lanes=8", list_of(nodes)});
    cases.push_back({"Llama_" + dtype, typed + kLlama + "& model.rotary_scaling=llama3:8:1:4:16",
                     varied("1x1x4 2x2x2 1x2x4 2x1x2 1x7x1 1x5x2"), is_a_llama});
    for (const auto& [name, model] : {std::pair{"Gemma", gemma_lines}, {"Neox", neox_lines}}) {
      cases.push_back({std::string(name) + "Lines_" + dtype,
                       model + "& numerics.dtype=" + dtype + "& numerics.row_pieces=2",
                       varied("1x1x2 2x2x2 1x2x4 4x1x1 1x6x1 1x3x2",
                              "2x1x1 stop=1:1 | 1x2x2; 1x2x1 parallel.schedule=zb-v")});
    }
    cases.push_back({"GemmaLinesPieces_" + dtype,
                     gemma_lines + "& numerics.loss_pieces=4 & numerics.dtype=" + dtype,
                     varied("1x1x2 1x2x1 2x1x2")});
    for (const auto& [name, model] : {std::pair{"Tied", Settings()}, {"Untied", kLlama}}) {
      cases.push_back(
          {std::string("GptLossPieces") + name + "_" + dtype,
           typed + model + "& numerics.loss_pieces=4",
           varied("2x1x1 1x2x1 1x1x2 2x2x2 1x1x4 1x3x1 1x5x2", "1x2x1 parallel.schedule=zb-v")});
    }
    cases.push_back({"GptDocuments_" + dtype, typed + packed,
                     varied("1x1x2 2x2x2 1x2x4 4x1x1 1x7x1 1x3x2"), learns});
    cases.push_back(
        {"GptMixture_" + dtype,
         typed + kDocuments +
             "& data.mixture_by=tokens & data.train=documents/train.h5:0.3, text/train.h5:0.7" +
             "& data.test=text/test.h5, documents/test.h5",
         varied("1x1x2 2x2x1 4x1x1 1x7x1", "2x1x1 stop=1:1 | 1x2x2")});
    cases.push_back({"GptPairs_" + dtype,
                     typed + kPairs + "& optimizer.learning_rate=0.01 & train.steps=4",
                     varied("1x1x2 2x2x2 1x2x4 4x1x1 1x7x1 1x3x2",
                            "2x1x1 stop=1:2 | 1x2x2; 1x2x1 train.steps=2 | 4x1x1"),
                     learns});
    cases.push_back({"LlamaDocuments_" + dtype,
                     typed + kLlama + kDocuments + "& model.attention_window=5",
                     varied("1x1x4 2x2x2 1x7x1 4x1x1")});
    cases.push_back({"GptRowPieces_" + dtype,
                     typed + (dtype == "float32" ? "" : kLlama) + "& numerics.row_pieces=2",
                     varied("1x1x2 1x2x4 2x1x2 1x1x4 2x2x2 1x3x2")});
  }
  return cases;
}

}  // namespace strata::grids
