#include "strata/config/options.hpp"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "strata/core/familiar_names.hpp"
#include "strata/nn/rotary_scaling.hpp"

#include "option_kinds.hpp"

// The table of all settings, which is long because each has its help here and nowhere else.
namespace strata::config {
namespace {

// Upper bounds: far above any use, and low enough that no product of a layer's sizes overflows.
constexpr std::int64_t kMostBlocks = 10'000;
constexpr std::int64_t kMostUnits = std::int64_t{1} << 20;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMostIds = std::int64_t{1} << 24;
constexpr std::int64_t kMostSamples = std::int64_t{1} << 30;
constexpr std::int64_t kMostSamplesAPass = std::int64_t{1} << 20;
constexpr std::int64_t kMostPixels = std::int64_t{1} << 20;
constexpr std::int64_t kMostReaders = 256;
constexpr std::int64_t kMostRowPieces = 64;

constexpr std::string_view kFileSchedule = "file:";

std::vector<std::string> schedule_names() {
  return {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "auto"};
}

using Timeline = std::optional<StepRange>;

std::optional<Timeline> parse_timeline(const std::string& text) {
  const std::size_t dash = text.find('-');
  StepRange steps;
  if (text == "off") {
    return Timeline();
  }
  const bool good = dash != std::string::npos && parse_int64(text.substr(0, dash), steps.first) &&
                    parse_int64(text.substr(dash + 1), steps.last) && steps.first >= 1 &&
                    steps.last >= steps.first;
  return good ? std::optional<Timeline>(steps) : std::nullopt;
}

using Repetition = std::optional<std::int64_t>;

std::optional<Repetition> parse_repetition(const std::string& text) {
  std::int64_t steps = 0;
  return text == "auto"                           ? Repetition()
         : parse_int64(text, steps) && steps >= 0 ? std::optional<Repetition>(steps)
                                                  : std::nullopt;
}

std::optional<std::int64_t> parse_receipts(const std::string& text) {
  constexpr std::int64_t kOn = 500;
  std::int64_t steps = 0;
  return text == "off"                            ? std::optional<std::int64_t>(0)
         : text == "on"                           ? std::optional<std::int64_t>(kOn)
         : parse_int64(text, steps) && steps >= 1 ? std::optional<std::int64_t>(steps)
                                                  : std::nullopt;
}

std::optional<Repetition> parse_sniff(const std::string& text) {
  std::int64_t steps = 0;
  return text == "off"                            ? std::optional<Repetition>(Repetition())
         : text == "start"                        ? std::optional<Repetition>(0)
         : parse_int64(text, steps) && steps >= 1 ? std::optional<Repetition>(steps)
                                                  : std::nullopt;
}

// An accessor for one member of the config.
#define STRATA_MEMBER(path) (+[](RunConfig & c) -> auto& { return c.path; })

std::vector<Option> transformer() {
  return {
      choice("model.preset",
             "a model by name, instead of layer lines; gpt and llama leave the sizes open",
             STRATA_MEMBER(model.transformer.preset)),
      whole("model.blocks", "blocks", "transformer blocks; 0: the preset's", 0,
            STRATA_MEMBER(model.transformer.blocks), kMostBlocks),
      whole("model.width", "elements", "elements of a token's vector; 0: the preset's", 0,
            STRATA_MEMBER(model.transformer.width), kMostUnits),
      whole("model.heads", "heads", "query heads of an attention layer; 0: the preset's", 0,
            STRATA_MEMBER(model.transformer.heads), kMostUnits),
      whole("model.kv_heads", "heads",
            "key-value heads, shared by the query heads in groups; 0: the preset's, else as many "
            "as query heads",
            0, STRATA_MEMBER(model.transformer.kv_heads), kMostUnits),
      whole("model.hidden", "units",
            "hidden units of an MLP layer; 0: the preset's, else 4 times the width, with a "
            "gate, as swiglu has, two thirds of that in multiples of 64",
            0, STRATA_MEMBER(model.transformer.hidden), kMostUnits),
      whole("model.context", "tokens",
            "tokens of a sample of a language model, and its number of learned positions; 0: the "
            "preset's",
            0, STRATA_MEMBER(model.transformer.context), kMostTokens),
      whole("model.vocabulary", "ids", "token ids; 0: the preset's, else the data set's", 0,
            STRATA_MEMBER(model.transformer.vocabulary), kMostIds),
      choice("model.norm", "normalisation before each sublayer; auto: the preset's",
             STRATA_MEMBER(model.transformer.norm)),
      choice("model.mlp", "activation of the MLP; auto: the preset's",
             STRATA_MEMBER(model.transformer.mlp)),
      choice("model.positions", "how token positions are encoded; auto: the preset's",
             STRATA_MEMBER(model.transformer.positions)),
      number("model.rotary_base", "", "base of rotary angles; 0: the preset's, else 10000",
             kFromZero, STRATA_MEMBER(model.transformer.rotary_base)),
      setting(
          "model.rotary_scaling", std::string(nn::kRotaryScalings), {},
          "scaling of rotary angles for contexts longer than those of the first training: all "
          "frequencies over FACTOR (from 1), those of Llama 3.1, as in llama3:8:1:4:8192, YaRN, as "
          "in yarn:4:32768, or LongRoPE, with divisors of each pair's frequency up to CONTEXT "
          "tokens and above; none: the preset's",
          STRATA_MEMBER(model.transformer.rotary_scaling), std::string(nn::kRotaryScalings),
          nn::parse_rotary_scaling, [](const auto& scaling) { return nn::text_of(scaling); }),
      choice("model.bias", "whether dense layers and layer norms have biases; auto: the preset's",
             STRATA_MEMBER(model.transformer.bias)),
      choice("model.tied", "whether the head uses the embedding's table; auto: the preset's",
             STRATA_MEMBER(model.transformer.tied)),
      number("model.dropout", "", "dropout of a preset, after the embedding and each sublayer",
             kFraction, STRATA_MEMBER(model.transformer.dropout)),
      choice("model.attention_mask",
             "the tokens before it that a token attends to; causal: all of its sample; document: "
             "those of its document; targets that begin another one do not count then",
             STRATA_MEMBER(model.transformer.attention_mask)),
      whole("model.attention_window", "tokens",
            "the most tokens that a token attends to, itself included; 0: the preset's, else no "
            "limit",
            0, STRATA_MEMBER(model.transformer.attention_window), kMostTokens),
      choice("model.reset_positions",
             "on: learned positions count from the start of each document, not of the sample",
             STRATA_MEMBER(model.transformer.reset_positions)),
      whole("lora.rank", "",
            "rank of the adapters of attention and mlp layers, which alone are trained; 0: none", 0,
            STRATA_MEMBER(lora.adapters.rank), kMostUnits),
      number("lora.alpha", "",
             "the output of an adapter is multiplied by alpha / rank; 0: alpha = rank", kFromZero,
             STRATA_MEMBER(lora.adapters.alpha)),
      text("lora.products", "names, or empty",
           "matrix products with adapters, of qkv, output, up, gate, down, with commas between "
           "them; empty: all",
           STRATA_MEMBER(lora.adapters.products)),
      text("lora.train", "patterns, or empty",
           "parameters that are trained beside adapters, by name with * and ?, as in *norm.*",
           STRATA_MEMBER(lora.train)),
  };
}

std::vector<Option> model_and_data() {
  return {
      choice("model.loss",
             "the loss function; auto: cross_entropy for classes, mean_squared_error for values",
             STRATA_MEMBER(model.loss)),
      choice("model.sync_batch_norm",
             "batch_norm layers without sync=; on: statistics over the microbatches that all lanes "
             "compute together; off: over each microbatch",
             STRATA_MEMBER(model.sync_batch_norm)),
      text("data.train", "file, or files",
           "master file of the training split; or several with their weights, as in "
           "a.h5:0.7, b.h5:0.3, or without, to mix them by their sizes",
           STRATA_MEMBER(data.train)),
      text("data.test", "file, files, or empty",
           "master file of the test split, or several one after the other; empty: no evaluation",
           STRATA_MEMBER(data.test)),
      choice(
          "data.mixture_by",
          "what the weights of several data sets are; samples: parts of the samples; tokens: "
          "parts of the tokens, without padding; epochs: how often each set is read, relative to "
          "the others",
          STRATA_MEMBER(data.mixture.by)),
      number("data.mixture_temperature", "",
             "of several data sets without weights: their parts are as samples^(1 / temperature); "
             "1: by their sizes; larger: more alike",
             kAboveZero, STRATA_MEMBER(data.mixture.temperature)),
      choice(
          "data.accept_change",
          "on: a resumed run goes on although data.train is another data set, or mixed otherwise",
          STRATA_MEMBER(data.accept_change)),
      choice("data.normalise",
             "how inputs are normalised; none: as stored; unit: bytes / 255; standard: minus mean, "
             "over deviation of the training split; auto: unit for bytes, standard for columns of "
             "tables, none for others",
             STRATA_MEMBER(data.normalise)),
      choice(
          "data.targets",
          "units of the values that a model learns; none: as stored; standard: minus mean, over "
          "deviation of the training split, so that one learning rate suits all; losses, figures "
          "and predictions are in the data's units; auto: standard",
          STRATA_MEMBER(data.targets)),
      choice("data.sampling",
             "of tokens; blocks: every block of a context's length once an epoch, shuffled; "
             "windows: at random positions",
             STRATA_MEMBER(data.sampling)),
      choice("data.packing",
             "how samples are made of tokens; blocks: consecutive blocks of a context's length; "
             "documents: a document each, long ones in parts; best-fit: as many documents each as "
             "fit; pairs: the two answers of a pair each, as train.objective = dpo has it; what is "
             "left is padding, which counts nowhere",
             STRATA_MEMBER(data.packing)),
      choice("data.flip", "of images, in training: on: half of them are mirrored, left to right",
             STRATA_MEMBER(data.augmentation.flip)),
      whole("data.crop_padding", "pixels",
            "images, in training: padding with zeros, followed by a random crop to the image's "
            "size; 0: none",
            0, STRATA_MEMBER(data.augmentation.crop_padding), kMostPixels),
      whole(
          "data.cutout", "pixels",
          "images, in training: side of a square at a random position that is set to zero; 0: none",
          0, STRATA_MEMBER(data.augmentation.cutout), kMostPixels),
      whole("data.reader_threads", "threads",
            "threads of each rank that read and prepare samples; the numbers do not depend on them",
            1, STRATA_MEMBER(data.reader_threads), kMostReaders),
      whole("batch.global", "samples", "samples of one optimizer step, over all ranks", 1,
            STRATA_MEMBER(batch.global), kMostSamples),
      whole("batch.micro", "samples",
            "microbatch size; 0: the largest divisor of a lane's samples up to 32 "
            "(language models: up to 4096 tokens); on GPUs up to 64 (16384 tokens) where their "
            "memory holds it",
            0, STRATA_MEMBER(batch.micro), kMostSamplesAPass),
  };
}

std::vector<Option> parallel_and_numerics() {
  return {
      or_auto(whole("parallel.data", "replicas",
                    "data-parallel replicas; 0: what the launched ranks allow", 0,
                    STRATA_MEMBER(parallel.data), kMostRanks)),
      or_auto(whole(
          "parallel.pipeline", "stages",
          "pipeline stages; 0: the fastest number on run.machine; without it the checkpoint's if "
          "the launched ranks allow it, else one that they allow; 1 in a new run",
          0, STRATA_MEMBER(parallel.pipeline), kMostRanks)),
      or_auto(whole("parallel.tensor", "ranks",
                    "tensor-parallel ranks, which share each split layer; 0: as parallel.pipeline",
                    0, STRATA_MEMBER(parallel.tensor), kMostRanks)),
      choice(
          "parallel.sequence",
          "on: tensor ranks also share a transformer's token rows between split layers "
          "(sequence parallelism), with the same bits; auto: on with several tensor ranks, where "
          "the layers and numbers allow it and numerics.mode is invariant",
          STRATA_MEMBER(parallel.sequence)),
      {.key = "parallel.schedule",
       .values = "gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, auto, file:PATH",
       .unit = {},
       .help = "order of forward and backward passes; gpipe: all forwards first; 1f1b: "
               "alternating, with fewer microbatches in memory; interleaved: 1f1b with several "
               "chunks of layers a rank, a smaller bubble for more messages; zb-h1: 1f1b with "
               "weight gradients in the bubble, with as many microbatches on each stage as 1f1b "
               "has on the first; zb-h2: almost no bubble, with up to twice as many; zb-v: almost "
               "no bubble within that of 1f1b, with two chunks a rank; auto: the fastest that a "
               "search finds for the costs of the stages; file:PATH: a schedule file of "
               "torch.distributed.pipelining",
       .set =
           [](RunConfig& config, const std::string& value) {
             if (value.starts_with(kFileSchedule) && value.size() > kFileSchedule.size()) {
               config.parallel.schedule = pipeline::ScheduleKind::kFile;
               config.parallel.schedule_file = value.substr(kFileSchedule.size());
               return;
             }
             config.parallel.schedule_file.clear();
             if (value == "auto") {
               config.parallel.schedule.reset();
               return;
             }
             const auto kind =
                 enum_from_name<pipeline::ScheduleKind>(value_meant_by(value, schedule_names()));
             if (!kind || *kind == pipeline::ScheduleKind::kForwardOnly ||
                 *kind == pipeline::ScheduleKind::kFile) {
               refuse("parallel.schedule", value,
                      "one of gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, auto, or file:PATH");
             }
             config.parallel.schedule = *kind;
           },
       .get = [](const RunConfig& config) { return schedule_name(config); },
       .words = schedule_names()},
      or_auto(whole("parallel.chunks", "chunks",
                    "model chunks per rank (virtual pipeline stages), for interleaved and auto; 0: "
                    "2 for interleaved and zb-v, the best of 1 to 4 for auto, else 1",
                    0, STRATA_MEMBER(parallel.chunks), pipeline::kMostChunks)),
      or_auto(whole("parallel.activations", "activations",
                    "for auto: the most that a rank holds at once, in activations of its layers; "
                    "0: as many as there are stages, the most of 1f1b",
                    0, STRATA_MEMBER(parallel.activations), kMostRanks)),
      choice("parallel.backward",
             "fused: a layer's input and weight gradient one after the other, so that the "
             "gradients of one layer are in memory at a time, and a stage sends its gradient "
             "after both; split: the input gradients of all layers first, which shortens the "
             "bubble; auto: split where there are several stages, no recomputation and "
             "numerics.loss_pieces = 1, and the GPUs have enough memory",
             STRATA_MEMBER(parallel.backward)),
      text("parallel.split", "auto, or layers",
           "auto: chunks of about equal cost; otherwise the first layer of each stage, or of each "
           "chunk in layer order, by name or number",
           STRATA_MEMBER(parallel.split)),
      or_auto(number("parallel.bucket", "MiB",
                     "size of the gradient buckets, each of which is reduced as one message; on "
                     "GPUs the least size of buckets of whole layers; 0: 64 on GPUs, 4 on CPUs",
                     kBucket, STRATA_MEMBER(parallel.bucket_mib))),
      or_auto(whole("parallel.node_ranks", "ranks",
                    "ranks per node for hierarchical gradient reduction; 0: as launched, where all "
                    "nodes hold as many; 1: flat reduction",
                    0, STRATA_MEMBER(parallel.node_ranks), kMostRanks)),
      choice("parallel.sync",
             "step: gradients are summed in every step; local: islands of replicas train "
             "local.steps steps by themselves, then their weights are averaged, for slow networks; "
             "async: workers fetch weights and push gradients at their own pace",
             STRATA_MEMBER(parallel.sync)),
      or_auto(whole("parallel.islands", "islands",
                    "groups of replicas that train by themselves, each on its part of "
                    "batch.global; fixes the numbers; 0: one for each replica at first launch",
                    0, STRATA_MEMBER(parallel.islands), kMostRanks)),
      text("parallel.island_of", "directory",
           "where islands that are jobs of their own meet, each with its own ranks and "
           "run.dir; empty: all islands are in this job",
           STRATA_MEMBER(parallel.island_of)),
      whole("parallel.island", "island", "which island this job is, from 0", 0,
            STRATA_MEMBER(parallel.island), kMostRanks),
      whole("local.steps", "steps",
            "steps of a round, after which the weights of all islands have been averaged once", 1,
            STRATA_MEMBER(local.steps)),
      number("local.outer_rate", "", "learning rate of the outer optimizer; 1: plain averaging",
             kAboveZero, STRATA_MEMBER(local.outer_rate)),
      number("local.outer_momentum", "", "Nesterov momentum of the outer optimizer; 0: none",
             kFraction, STRATA_MEMBER(local.outer_momentum)),
      whole("local.fragments", "fragments",
            "parts of the layers that are averaged in turns during a round, with smaller peaks of "
            "traffic; 1: all weights at its end",
            1, STRATA_MEMBER(local.fragments), kMostRanks),
      whole("local.delay", "steps",
            "steps during which a fragment's exchange overlaps with training", 0,
            STRATA_MEMBER(local.delay)),
      number("local.mix", "",
             "share of an island's own weights in what it goes on with after an exchange; the rest "
             "are the outer weights",
             kFraction, STRATA_MEMBER(local.mix)),
      choice("local.exchange",
             "how numbers are sent between islands: in full, or rounded, with the error added to "
             "the next exchange",
             STRATA_MEMBER(local.exchange)),
      whole("async.servers", "ranks",
            "first ranks, which hold the parameters of asynchronous training and compute no "
            "gradients; 0: every rank holds a share and computes",
            0, STRATA_MEMBER(async.servers), kMostRanks),
      whole("async.staleness", "updates",
            "most updates between a worker's fetch and its push; a staler push is as async.stale "
            "says, and never waited for; 0: no bound",
            0, STRATA_MEMBER(async.options.staleness)),
      choice("async.stale",
             "what becomes of a staler push; scale: its step is scaled by async.staleness / its "
             "staleness; drop: it is not applied",
             STRATA_MEMBER(async.options.stale)),
      choice("async.rate",
             "step size of pushes within async.staleness; divided: by their staleness",
             STRATA_MEMBER(async.options.rate)),
      whole("async.ahead", "units",
            "most units of work, of batch.global / numerics.lanes samples, that a worker may be "
            "ahead of the slowest, for which it then waits; 0: no bound",
            0, STRATA_MEMBER(async.ahead)),
      number("local.deadline", "seconds",
             "how long an island waits for the others at the end of a "
             "round; who comes later is left out of it",
             kFromZero, STRATA_MEMBER(local.deadline_seconds)),
      text("local.record", "directory",
           "repeats, in one job, the rounds of islands that met in this parallel.island_of: an "
           "island that was left out of a round does not train in it; empty: all train in all",
           STRATA_MEMBER(local.record)),
      whole(
          "numerics.lanes", "lanes",
          "streams of microbatches in a global batch, a multiple of every parallel.data to be "
          "used; fixes the numbers; 0: the checkpoint's, in a new run up to 8 by batch.global and "
          "at least the replicas; others than the checkpoint's go on with other numbers",
          0, STRATA_MEMBER(numerics.lanes), kMostRanks),
      whole("numerics.shards", "shards",
            "slices of each tensor-parallel matrix, a multiple of every parallel.tensor to be "
            "used; fixes the numbers; 0: the checkpoint's, in a new run parallel.tensor; others "
            "than the checkpoint's go on with other numbers",
            0, STRATA_MEMBER(numerics.shards), kMostRanks),
      whole("numerics.row_pieces", "pieces",
            "language models with several shards: pieces of a microbatch's rows whose messages "
            "between tensor ranks overlap the products of other pieces; fixes the numbers",
            1, STRATA_MEMBER(numerics.row_pieces), kMostRowPieces),
      choice(
          "numerics.shard_sums",
          "bfloat16: each shard's contribution to a sum over shards is rounded to bfloat16, which "
          "halves the bytes of tensor ranks with one shard each; the sum itself is float32",
          STRATA_MEMBER(numerics.shard_sums)),
      or_auto(whole("numerics.loss_pieces", "pieces",
                    "language models: pieces of a microbatch's tokens in which the head computes "
                    "logits and their gradients, so that those of one piece are in memory at a "
                    "time, with parallel.backward = fused; fixes the numbers; 0: pieces of about "
                    "4,096 tokens where that saves more than a tenth of the memory, else 1; stored "
                    "in the checkpoint",
                    0, STRATA_MEMBER(numerics.loss_pieces), kMostSamplesAPass)),
      of_names(setting(
          "numerics.dtype", "float32, bfloat16, float64", {},
          "type of weights and activations; bfloat16 keeps float32 master weights, gradients and "
          "optimizer state",
          STRATA_MEMBER(numerics.dtype), "one of float32, bfloat16, float64",
          [](const std::string& text) {
            const auto dtype = enum_from_name<DType>(text);
            return dtype == DType::kFloat32 || dtype == DType::kBfloat16 || dtype == DType::kFloat64
                       ? dtype
                       : std::nullopt;
          },
          name_of<DType>)),
      choice("numerics.mode",
             "invariant: the same bits on every grid; fast: MPI or NCCL reduces, with lanes and "
             "shards of the grid",
             STRATA_MEMBER(numerics.mode)),
      choice("numerics.tf32",
             "on: a GPU computes float32 matrix products and convolutions in TF32 on tensor cores; "
             "results differ from off but are the same on every grid. CPUs do not support TF32",
             STRATA_MEMBER(numerics.tf32)),
      choice("numerics.split_k",
             "on: cuBLASLt may cut the long sums of a GPU's matrix products into parts, which it "
             "adds in a fixed order; results differ from off. Experimental: not yet validated on a "
             "GPU",
             STRATA_MEMBER(numerics.split_k)),
      choice("numerics.attention",
             "implementation of bfloat16 attention on a GPU. library: cuDNN, where it and NVRTC "
             "are found and support the shape; own: strata's kernels. Results differ but are the "
             "same on every grid. CPUs use strata's kernels",
             STRATA_MEMBER(numerics.attention)),
      choice("numerics.isa",
             "CPUs only: class of the instruction sets that oneDNN uses; fixes the numbers; "
             "native: the highest class that all ranks have; refused if a rank lacks it",
             STRATA_MEMBER(numerics.isa)),
  };
}

std::vector<Option> optimisation() {
  return {
      choice("optimizer.kind", "the update rule; auto: adamw, or the checkpoint's",
             STRATA_MEMBER(optimizer.kind)),
      or_open(number("optimizer.learning_rate", "",
                     "peak learning rate; auto: adam, adamw: 0.0006 for 124 million trained "
                     "parameters, more for fewer, by the fourth root, up to 0.01; sgd: 0.1 times "
                     "(1 - optimizer.momentum); adagrad: 0.01; a tenth of that with "
                     "checkpoint.init",
                     kFromZero, STRATA_MEMBER(schedule.peak)),
              STRATA_MEMBER(schedule.peak)),
      number("optimizer.momentum", "", "momentum factor", kFraction,
             STRATA_MEMBER(optimizer.options.momentum)),
      choice("optimizer.nesterov", "Nesterov momentum", STRATA_MEMBER(optimizer.options.nesterov)),
      number("optimizer.beta1", "", "adam, adamw: decay of the mean of gradients", kFraction,
             STRATA_MEMBER(optimizer.options.beta1)),
      number("optimizer.beta2", "", "adam, adamw: decay of the mean of squared gradients",
             kFraction, STRATA_MEMBER(optimizer.options.beta2)),
      number("optimizer.epsilon", "", "adam, adamw, adagrad: added to the divisor", kAboveZero,
             STRATA_MEMBER(optimizer.options.epsilon)),
      number("optimizer.weight_decay", "",
             "weight decay; adamw: decoupled, others: added to the gradient", kFromZero,
             STRATA_MEMBER(optimizer.options.weight_decay)),
      choice("optimizer.decay",
             "tensors that weight decay applies to; matrices: those of two dimensions or more, so "
             "no biases and norms",
             STRATA_MEMBER(optimizer.options.decay_scope)),
      setting("optimizer.groups", "groups, or empty", {},
              "factors of learning rate and weight decay for parameters by name with * and ?, as "
              "in embedding.*: learning_rate=0.1; *.bias, *norm.weight: weight_decay=0; later "
              "groups replace the factors of earlier ones and of optimizer.decay",
              STRATA_MEMBER(optimizer.options.groups),
              "PATTERNS: learning_rate=FACTOR weight_decay=FACTOR, with one of the two or both, "
              "and ; between groups",
              optim::parse_groups, [](const auto& groups) { return optim::text_of(groups); }),
      text("optimizer.frozen", "patterns, or empty",
           "parameters that are not trained, by name with * and ?, as in embedding.*,blocks.0.*; "
           "they "
           "have no optimizer state, count in no norm, and matrices have no gradients",
           STRATA_MEMBER(optimizer.frozen)),
      number("optimizer.clip_norm", "", "largest norm of the whole gradient; 0: no clipping",
             kFromZero, STRATA_MEMBER(optimizer.clip_norm)),
      choice("schedule.kind", "how the learning rate decays after warm-up",
             STRATA_MEMBER(schedule.kind)),
      or_open(whole("schedule.warmup_steps", "steps",
                    "linear warm-up; auto: a twentieth of the run, at most 100, if optimizer.kind "
                    "or optimizer.learning_rate is auto, else 0",
                    0, STRATA_MEMBER(schedule.warmup_steps)),
              STRATA_MEMBER(schedule.warmup_steps)),
      whole("schedule.decay_steps", "steps",
            "steps over which the learning rate falls to schedule.minimum; 0: train.steps", 0,
            STRATA_MEMBER(schedule.decay_steps)),
      number("schedule.minimum", "", "the learning rate at the end", kFromZero,
             STRATA_MEMBER(schedule.minimum)),
      whole("schedule.every", "steps", "steps between two reductions", 1,
            STRATA_MEMBER(schedule.every_steps)),
      number("schedule.factor", "", "factor of each reduction", kFactor,
             STRATA_MEMBER(schedule.factor)),
  };
}

std::vector<Option> running() {
  return {
      whole("train.steps", "steps", "length of the run; 0: set by train.epochs", 0,
            STRATA_MEMBER(train.steps)),
      number("train.epochs", "epochs", "length of the run; 0: set by train.steps", kFromZero,
             STRATA_MEMBER(train.epochs)),
      whole("train.evaluate_every", "steps", "steps between evaluations; 0: only at the end", 0,
            STRATA_MEMBER(train.evaluate_every)),
      whole("train.evaluate_batches", "batches",
            "upper bound on the global batches of an evaluation, of each data set of data.test; 0: "
            "the whole test split",
            0, STRATA_MEMBER(train.evaluate_batches)),
      whole("train.patience", "evaluations",
            "the run ends when its test loss (the accuracy with checkpoint.best = accuracy) has "
            "not improved in so many consecutive evaluations; 0: off",
            0, STRATA_MEMBER(train.patience)),
      choice("train.objective",
             "targets: the loss of each target; dpo: direct preference optimization, on pairs of a "
             "preferred and a rejected answer (strata data import --format=preferences), with the "
             "initial weights as the reference",
             STRATA_MEMBER(train.objective)),
      number("train.dpo_beta", "",
             "factor of the log-probabilities' ratio to the reference in the loss; larger values "
             "keep the model nearer to it",
             kAboveZero, STRATA_MEMBER(train.dpo_beta)),
      number(
          "train.label_smoothing", "",
          "share of the target's probability that is spread evenly over all classes, in training "
          "alone",
          kFraction, STRATA_MEMBER(train.label_smoothing)),
      number("train.z_loss", "",
             "factor of log(sum of exp(logits))^2, which is added to the loss of a target in "
             "training and keeps logits small; 0.0001 is usual",
             kFromZero, STRATA_MEMBER(train.z_loss)),
      choice("train.recompute",
             "what the backward pass recomputes to save memory; selective: norms and the MLP's "
             "activation; full: all inside a transformer sublayer. The same bits, but for "
             "selective on a GPU in bfloat16 with a GELU MLP",
             STRATA_MEMBER(train.recompute)),
      whole(
          "train.log_every", "steps",
          "steps between progress lines; 0: by the clock, 1, 2, 5, 10, 20, 30 and then 60 seconds "
          "apart",
          0, STRATA_MEMBER(train.log_every)),
      whole("train.metrics_every", "steps",
            "steps between lines of metrics.jsonl, whose numbers are means over these steps; 0: "
            "every step up to 5,000, every second to 10,000, fifth to 25,000, tenth to 50,000, and "
            "so on",
            0, STRATA_MEMBER(train.metrics_every)),
      choice(
          "train.nonfinite",
          "at a step whose loss or gradient norm is not finite; stop: exit code 6, before the "
          "update; skip: leave the update out, at most 10 times in a row, and count the step in "
          "the schedule and in Adam's bias correction; repeat: compute the step once more: go on "
          "if the result differs and is finite, else stop",
          STRATA_MEMBER(train.nonfinite)),
      choice("train.check",
             "on: replicas compare hashes of their weights after an update, and each rank compares "
             "its weights and optimizer state before the next one; a difference ends the run with "
             "exit code 5",
             STRATA_MEMBER(train.check)),
      whole("train.check_every", "steps",
            "steps between the checks of train.check; 0: every 100 steps, less often where they "
            "would take more "
            "than 1 % of the time",
            0, STRATA_MEMBER(train.check_every)),
      setting("train.repeat_every", "auto, or whole number from 0", "steps",
              "interval of steps that other ranks compute again, to detect silent data corruption; "
              "a difference ends the run with exit code 5; auto: every 200 steps, less often where "
              "they would take more than 1 % of the time; 0: none, and none where train.check is "
              "off",
              STRATA_MEMBER(train.repeat_every), "auto, or whole number from 0", parse_repetition,
              [](const auto& steps) { return steps ? fmt::format("{}", *steps) : "auto"; }),
      whole("checkpoint.every", "steps", "steps between checkpoints; 0: by checkpoint.minutes only",
            0, STRATA_MEMBER(checkpoint.every)),
      number("checkpoint.minutes", "minutes",
             "time between checkpoints, and one early, after 20 seconds and 3 steps; 0: none by "
             "the clock",
             kFromZero, STRATA_MEMBER(checkpoint.minutes)),
      whole("checkpoint.keep", "checkpoints", "number of newest checkpoints to keep", 1,
            STRATA_MEMBER(checkpoint.keep)),
      whole("checkpoint.keep_every", "steps",
            "steps between checkpoints that are kept permanently, besides the newest; 0: none", 0,
            STRATA_MEMBER(checkpoint.keep_every)),
      choice("checkpoint.best",
             "keeps the checkpoint whose evaluation on data.test has the least loss or the highest "
             "accuracy, besides the others; an evaluation that improves it saves",
             STRATA_MEMBER(checkpoint.best)),
      choice("checkpoint.background",
             "on: a thread writes a copy of the state while training goes on; off: training waits "
             "for the files",
             STRATA_MEMBER(checkpoint.background)),
      text("checkpoint.init", "directory, or empty",
           "a run directory or a checkpoint whose weights a new run starts from, at step 0 and "
           "without its optimizer state; not read when the run is resumed",
           STRATA_MEMBER(checkpoint.init)),
      text("checkpoint.init_except", "patterns, or empty",
           "parameters that need not match those of checkpoint.init (missing, of another shape, "
           "surplus), by name with * and ?, as in head.*; they are initialized as in a new run",
           STRATA_MEMBER(checkpoint.init_except)),
      choice("checkpoint.drop_state",
             "on: a resume may change parallel.sync or parallel.islands; it goes on from the "
             "weights, and the state of the optimizer and of islands is dropped",
             STRATA_MEMBER(checkpoint.drop_state)),
      text("run.dir", "directory, or empty",
           "where the run's files go; empty: runs/NAME, with the name of the config file without "
           "its ending",
           STRATA_MEMBER(run.dir)),
      whole("run.seed", "", "seed of initial weights, dropout and the order of samples", 0,
            STRATA_MEMBER(run.seed)),
      whole("run.threads", "threads",
            "threads of each rank; 0: the cores it may use, at most the CPU quota of its cgroup, "
            "shared among the ranks of the node",
            0, STRATA_MEMBER(run.threads), 4096),
      choice("run.device",
             "where stages compute; auto: cuda if every rank finds a GPU, otherwise cpu",
             STRATA_MEMBER(run.device)),
      choice("run.transport",
             "how ranks exchange GPU tensors; auto: NCCL if it is found and no two ranks share a "
             "GPU, otherwise MPI through pinned memory",
             STRATA_MEMBER(run.transport)),
      choice("run.cuda_graphs",
             "on: from the third step on, each pass of a stage is launched as one CUDA graph; the "
             "same bits. Refused where messages are part of a pass: under parallel.tensor, and "
             "with batch_norm over all lanes on several replicas. CPUs have none",
             STRATA_MEMBER(run.cuda_graphs)),
      choice("run.resume",
             "what to do with checkpoints in run.dir; never: refuse a directory that holds a run; "
             "auto: continue from the newest good one, or start anew if there is none; must: as "
             "auto, but refuse to start anew",
             STRATA_MEMBER(run.resume)),
      number("run.timeout", "seconds",
             "how long a rank waits for another rank before the job is aborted", kAboveZero,
             STRATA_MEMBER(run.timeout_seconds)),
      number("run.time_limit", "minutes",
             "the run stops early enough to end, with a checkpoint and exit code 75, within this "
             "time; 0: at the end of the Slurm allocation, if there is one",
             kFromZero, STRATA_MEMBER(run.time_limit_minutes)),
      setting("run.timeline", "off, FIRST-LAST", "steps",
              "write timeline.json: when each rank did what in the steps FIRST to LAST, for "
              "chrome://tracing or Perfetto; as many whole steps as have 20,000 actions a rank",
              STRATA_MEMBER(run.timeline), "off, or the first and the last step, as in 5-7",
              parse_timeline,
              [](const auto& steps) {
                return steps ? fmt::format("{}-{}", steps->first, steps->last) : "off";
              }),
      setting("run.sniff", "off, start, or whole number from 1", "steps",
              "before the first step, and with a number every so many steps, all ranks compute the "
              "same small problem: products, a norm, sums and messages; other bits than the "
              "majority's end the run with exit code 5, a slow rank gets a warning",
              STRATA_MEMBER(run.sniff), "off, start, or the steps between two tests, as in 1000",
              parse_sniff,
              [](const auto& steps) {
                return !steps ? "off" : *steps == 0 ? "start" : fmt::format("{}", *steps);
              }),
      choice(
          "run.tensorboard",
          "on: an event file for TensorBoard in tensorboard/ of run.dir has the numbers of "
          "metrics.jsonl, the config, the graph of layers and, of image classifiers, test images "
          "with their predictions",
          STRATA_MEMBER(run.tensorboard)),
      whole("run.tensorboard_histograms", "steps",
            "steps between histograms of every parameter and its gradient; 0: "
            "none",
            0, STRATA_MEMBER(run.tensorboard_histograms)),
      whole(
          "run.tensorboard_text", "tokens",
          "at each evaluation a language model continues the beginning of "
          "data.test, 16 tokens, by at most this many, each a forward pass of a microbatch; 0: no "
          "text",
          0, STRATA_MEMBER(run.tensorboard_text)),
      setting("run.receipts", "off, on, whole number from 1", "steps",
              "writes receipts.jsonl, which strata replay and strata verify compare with what they "
              "compute again: a line a step, and digests of weights, optimizer state and gradients "
              "after each of so many steps; on: 500",
              STRATA_MEMBER(run.receipts), "off, on or a whole number from 1", parse_receipts,
              [](std::int64_t every) { return every == 0 ? "off" : fmt::format("{}", every); }),
      text("run.machine", "file, name or empty",
           "a machine of strata plan (a file, or the name of a shipped one), on which a launch "
           "looks for the fastest grid where parallel.pipeline or parallel.tensor is 0, with the "
           "schedule, batch.micro and train.recompute unless they are given, and with whose "
           "forecast a run compares its steps; empty: neither",
           STRATA_MEMBER(run.machine)),
      number("run.peak_tflops", "TFLOP/s",
             "peak throughput of a rank's GPU, or of its cores, in matrix products of "
             "numerics.dtype; 0: the published value of known GPUs. The MFU is relative to it",
             kFromZero, STRATA_MEMBER(run.peak_tflops)),
  };
}

#undef STRATA_MEMBER

/// Says what settings need, in their help too.
void add_needs(std::vector<Option>& table) {
  const std::vector<std::pair<std::vector<std::string>, Need>> needs{
      {{"optimizer.momentum", "optimizer.nesterov"}, {"optimizer.kind", {"sgd"}}},
      {{"optimizer.beta1", "optimizer.beta2"}, {"optimizer.kind", {"auto", "adam", "adamw"}}},
      {{"optimizer.epsilon"}, {"optimizer.kind", {"auto", "adam", "adamw", "adagrad"}}},
      {{"schedule.every", "schedule.factor"}, {"schedule.kind", {"step"}}},
      {{"schedule.minimum", "schedule.decay_steps"}, {"schedule.kind", {"linear", "cosine"}}},
      {{"parallel.islands", "parallel.island_of"}, {"parallel.sync", {"local"}}},
      {{"parallel.island", "local.deadline"},
       {"parallel.island_of", {}, "", "name a directory where jobs meet"}},
      {{"train.check_every", "train.repeat_every"}, {"parallel.sync", {"step"}}},
      {{"parallel.node_ranks"},
       {"parallel.sync", {"step", "local"}, "", "set parallel.sync to step"}},
      {{"local.steps", "local.outer_rate", "local.outer_momentum", "local.fragments", "local.delay",
        "local.mix", "local.exchange", "local.record"},
       {"parallel.sync", {"local"}}},
      {{"async.servers", "async.ahead", "async.staleness", "async.rate"},
       {"parallel.sync", {"async"}}},
      {{"async.stale"}, {"async.staleness", {}, "", "set a bound"}},
      {{"train.dpo_beta"}, {"train.objective", {"dpo"}}},
      {{"train.label_smoothing", "train.z_loss"}, {"train.objective", {"targets"}}},
      {{"checkpoint.init_except"}, {"checkpoint.init", {}, "", "name a checkpoint there"}},
      {{"lora.alpha", "lora.products", "lora.train"},
       {"lora.rank", {}, "", "set the rank of adapters there"}},
      {{"run.tensorboard_histograms", "run.tensorboard_text"}, {"run.tensorboard", {"on"}}},
      {{"run.tensorboard_text"}, {"data.test", {}, "", "name the test split"}},
      {{"checkpoint.best", "train.patience"},
       {"data.test", {}, "", "name the test split, as in --data.test=DIR/test.h5"}},
      {{"checkpoint.best", "train.patience"},
       {"train.evaluate_every", {}, "", "set the steps between evaluations"}},
      {{"numerics.shard_sums"}, {"numerics.dtype", {"bfloat16"}, ", whose sums are not rounded"}},
      {{"numerics.shard_sums", "numerics.row_pieces"},
       {"numerics.mode", {"invariant"}, ", whose sums are the library's"}},
      {{"train.repeat_every"},
       {"numerics.mode", {"invariant"}, ", whose sums depend on who computes what"}}};
  for (const auto& [settings, need] : needs) {
    for (const std::string& setting : settings) {
      Option& option = *std::ranges::find(table, setting, &Option::key);
      option.help += fmt::format(
          "{} {}{}", option.needs.empty() ? "; needs" : " and", need.setting,
          need.values.empty() ? "" : fmt::format(" = {}", fmt::join(need.values, " or ")));
      option.needs.push_back(need);
    }
  }
}

std::vector<Option> make_table() {
  std::vector<Option> table;
  for (const auto part :
       {transformer, model_and_data, parallel_and_numerics, optimisation, running}) {
    for (Option& option : part()) {
      table.push_back(std::move(option));
    }
  }
  add_needs(table);
  return table;
}

}  // namespace

const std::vector<Option>& option_table() {
  static const std::vector<Option> kTable = make_table();
  return kTable;
}

const std::vector<Section>& section_table() {
  static const std::vector<Section> kSections{
      {"model", "the network, layer by layer, and its loss"},
      {"lora", "low-rank adapters"},
      {"data", "the data sets, made with strata data import"},
      {"batch", "how many samples make a step"},
      {"parallel", "the grid of ranks"},
      {"local", "rounds of parallel.sync = local"},
      {"async", "parameters and pushes of parallel.sync = async"},
      {"numerics", "settings that determine the bits of the result"},
      {"optimizer", "the update of the weights"},
      {"schedule", "the learning rate over the steps"},
      {"train", "length, evaluation and progress"},
      {"checkpoint", "when the state is saved"},
      {"run", "where and how the program runs"}};
  return kSections;
}

}  // namespace strata::config
