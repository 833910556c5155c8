#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/config/config_file.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/text_file.hpp"
#include "strata/io/tokenizer.hpp"
#include "strata/train/checkpointing.hpp"

#include "commands/commands.hpp"
#include "commands/models/check_logits.hpp"
#include "environment/run_inputs.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPathAndOutput = "one path and --output=DIR";

/// The tokenizer that the arguments name, or that lies beside the weights.
std::optional<io::Tokenizer> tokenizer_of(const config::CommandLine& line, const fs::path& path,
                                          const exchange::ForeignModel& model) {
  if (line.has("data")) {
    const io::Dataset data = io::Dataset::open(line.value("data", ""));
    if (data.info().task != io::Task::kNextToken ||
        data.info().tokenizer == io::TokenizerKind::kNone) {
      fail(ExitCode::kUsage, "--data={} has no tokenizer; name a data set made from text",
           line.value("data", ""));
    }
    return io::Tokenizer::of(data.info());
  }
  if (line.has("tokenizer")) {
    return io::Tokenizer::from_file(line.value("tokenizer", ""));
  }
  if (line.has("encoder") != line.has("merges")) {
    fail(ExitCode::kUsage, "--encoder and --merges go together; give both");
  }
  if (line.has("encoder")) {
    return io::Tokenizer::gpt2(line.value("encoder", ""), line.value("merges", ""));
  }
  std::error_code error;
  if (model.format != exchange::ModelFormat::kHuggingface) {
    return std::nullopt;
  }
  std::optional<io::Tokenizer> converted;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(path / name, error)) {
      try {
        io::Tokenizer tokenizer = io::Tokenizer::from_file(path / name);
        if (tokenizer.kind() <= io::TokenizerKind::kSentencePiece) {
          return tokenizer;
        }
        converted.emplace(std::move(tokenizer));  // SentencePiece's model beside it comes first
      } catch (const Error& refusal) {
        print_error(fmt::format("warning: this tokenizer is left out: {}\n", refusal.what()));
      }
    }
  }
  if (converted) {
    return converted;
  }
  if (model.model.family == "gpt2" && fs::exists(path / "vocab.json", error) &&
      fs::exists(path / "merges.txt", error)) {
    return io::Tokenizer::gpt2(path / "vocab.json", path / "merges.txt");
  }
  return std::nullopt;
}

ExitCode import_model(const config::CommandLine& line) {
  const fs::path path = line.positions().front();
  const fs::path output = line.required("output");
  exchange::ForeignModel model =
      exchange::open_model(path, line.choice<exchange::ModelFormat>("format"));
  nn::AdapterOptions adapters;
  if (line.has("adapters")) {
    model.adapters.emplace(exchange::open_adapters(line.value("adapters", ""), model.model));
    model.texts["adapter_config.json"] = model.adapters->config;
    adapters = model.adapters->options;
  }
  const std::optional<io::Tokenizer> tokenizer = tokenizer_of(line, path, model);
  const nn::TransformerOptions& sizes = model.model.options;
  if (tokenizer && tokenizer->vocabulary() > sizes.vocabulary) {
    fail(ExitCode::kData,
         "the tokenizer has {} token ids, with those of files beside it, and the model {}; use the "
         "tokenizer that it learned with",
         tokenizer->vocabulary(), sizes.vocabulary);
  }
  const io::PublishedTemplate chat = io::published_template(model.texts);
  const io::DatasetInfo data{
      .task = io::Task::kNextToken,
      .input_shape = {sizes.context},
      .input_dtype = DType::kInt64,
      .target_shape = {sizes.context},
      .classes = tokenizer ? tokenizer->vocabulary() : sizes.vocabulary,
      .tokenizer = tokenizer ? tokenizer->kind() : io::TokenizerKind::kNone,
      .tokenizer_checksum = tokenizer ? io::tokenizer_checksum(*tokenizer) : 0,
      .chat_template = chat.name};
  config::GivenConfig given;
  config::RunConfig& config = given.config;
  constexpr std::int64_t kSteps = 1000;
  config.model.layers = exchange::layer_lines(model.model);
  config.model.transformer.context = sizes.context;
  config.model.transformer.vocabulary = sizes.vocabulary;
  config.numerics.dtype = line.choice<DType>("dtype").value_or(exchange::dtype_of(model));
  config.train.steps = kSteps;
  config.run.dir = output.string();
  config.lora.adapters = adapters;
  for (const char* key : {"lora.rank", "lora.alpha", "lora.products"}) {
    if (model.adapters) {
      given.origins[key] = config::Origin::kGiven;
    }
  }
  for (const char* key :
       {"model.context", "model.vocabulary", "numerics.dtype", "train.steps", "run.dir"}) {
    given.origins[key] = config::Origin::kGiven;
  }
  exchange::fill_new_directory(output, [&](const fs::path& directory) {
    exchange::import_model(
        model, directory / "checkpoints", compute_dtype(config.numerics.dtype),
        train::imported_metadata(
            nn::adapted_layers(config.model.layers, adapters), data,
            fmt::format("{}: {}{}", name_of(model.format), printable(path.string()),
                        model.adapters
                            ? fmt::format(", adapters: {}", printable(line.value("adapters", "")))
                            : ""),
            model.texts),
        tokenizer ? &*tokenizer : nullptr);
    io::replace_text(directory / "config.ini", config::resolved_config_text(given, config, {}));
  });
  std::int64_t elements = 0;
  for (const io::StoredTensor* tensor : model.stored) {
    elements += tensor->shape.count();
  }
  const std::int64_t added = tokenizer ? tokenizer->added_tokens() : 0;
  fmt::print("{}: {} weights of {} in {} tensors, tokenizer {}{}\n", output.string(),
             count_text(elements), model.model.family, model.stored.size(), name_of(data.tokenizer),
             added > 0 ? fmt::format(" of {} ids, {} of them added_tokens",
                                     count_text(tokenizer->vocabulary()), added)
                       : "");
  if (const exchange::LeftOut& left = model.left_out; !model.model.part_of.empty()) {
    fmt::print("left out of {}: {} tensors of {}{}{}; exports are of {}, the text part alone\n",
               model.model.part_of, count_text(left.tensors), bytes_text(left.bytes),
               left.parts.empty() ? "" : ", ", fmt::join(left.parts, " and "), model.model.family);
  }
  if (model.adapters) {
    const exchange::ForeignAdapters& came = *model.adapters;
    fmt::print(
        "adapters of {}: rank {}, alpha {}, of {}{}{}\n", printable(line.value("adapters", "")),
        adapters.rank, adapters.alpha, adapters.products,
        came.stacked > 1 ? fmt::format("; {} times their own, as {} modules of a product have an "
                                       "A each",
                                       came.stacked, came.stacked)
                         : "",
        came.dropout > 0.0 ? fmt::format("; without their lora_dropout of {}", came.dropout) : "");
  }
  if (!chat.name.empty()) {
    fmt::print("chat template {}, as in {}\n", chat.name, chat.file);
  } else if (!chat.file.empty()) {
    fmt::print("{}\n", io::unknown_template_text(chat, printable(path.string())));
  }
  return ExitCode::kDone;
}

/// `mpi`: with --check-logits, else null.
ExitCode export_model(const config::CommandLine& line, comm::MpiSession* mpi) {
  const fs::path output = line.required("output");
  static_cast<void>(line.required("format"));
  const auto format = line.choice<exchange::ModelFormat>("format").value();
  constexpr std::int64_t kMostMib = std::int64_t{1} << 30U;
  const io::Checkpoint checkpoint = open_checkpoint(line);
  exchange::ExportOptions options{.format = format,
                                  .type = line.choice<io::StoredType>("dtype"),
                                  .shard_bytes = line.count("shard-mib", 5120, 1, kMostMib) << 20U,
                                  .adapters = line.choice<exchange::AdapterExport>("adapters")
                                                  .value_or(exchange::AdapterExport::kMerged)};
  const std::string logits = line.value("logits", "");
  for (const char* name : {"logits", "ranks", "hostfile"}) {
    if (mpi == nullptr && line.has(name)) {
      fail(ExitCode::kUsage, "--{} needs --check-logits; give both", name);
    }
  }
  std::string checked;
  if (mpi != nullptr) {
    const bool apart = options.adapters == exchange::AdapterExport::kApart;
    if (apart || format == exchange::ModelFormat::kSafetensors ||
        format == exchange::ModelFormat::kOnnx) {
      fail(ExitCode::kUsage,
           "--check-logits reads the files as a model, which strata does not do with {}; their "
           "bytes are compared without it",
           apart ? "--adapters=apart" : fmt::format("--format={}", name_of(format)));
    }
    options.check = [&](const fs::path& directory) {
      checked = check_logits(*mpi, checkpoint, directory, format, logits);
    };
  }
  const exchange::ExportedModel written = exchange::export_model(checkpoint, output, options);
  fmt::print("{}: {} tensors, {}, read back and equal; {}\n", output.string(), written.tensors,
             bytes_text(written.bytes), fmt::join(written.files, ", "));
  if (!checked.empty()) {
    fmt::print("{}\n", checked);
  }
  return ExitCode::kDone;
}

/// Runs on one rank; others wait in MPI_Finalize.
ExitCode export_checked_model(const config::CommandLine& line, comm::MpiSession& mpi,
                              const config::FailureHandler& /*on_failure*/) {
  const bool works = mpi.world().rank() == 0;
  mpi.separate();
  return works ? export_model(line, &mpi) : ExitCode::kDone;
}

}  // namespace

Commands model_commands() {
  return {
      {.name = "checkpoint import",
       .purpose = "a run from the weights of another program",
       .synopses = {{"PATH --output=DIR [options]"}},
       .about =
           R"(Makes a run's directory with a checkpoint of step 0 from the weights of another program. PATH
is a directory of Hugging Face (config.json, safetensors) with a GPT-2, Llama, Qwen, Mistral, SmolLM, Gemma, OLMo 2
or Phi-3 model, with a vision part beside it or without, or a model file of llm.c.
torch_to_safetensors.py in share/strata/python makes such a directory from nanoGPT's ckpt.pt.)",
       .options =
           {{"output", "DIR", "the run's directory, a new one"},
            {"format", "huggingface|llmc", "format of PATH (default: detected)"},
            {"adapters", "DIR",
             R"(low-rank adapters of PEFT for the model: adapter_config.json and
adapter_model.safetensors)"},
            {"dtype", "float32|float64|bfloat16",
             R"(numerics.dtype of the run (default: float64 for weights of float64, else float32))"},
            {"data", "FILE.h5", "a data set that was made with the model's tokenizer"},
            {"tokenizer", "FILE",
             R"(the model's tokenizer.json or tokenizer.model (default: the one in Hugging Face's
directory))"},
            {"encoder", "FILE",
             "GPT-2's tokenizer, with --merges (default: vocab.json in a GPT-2's directory)"},
            {"merges", "FILE", "as --encoder (default: merges.txt in a GPT-2's directory)"}},
       .lists = {{"Examples",
                  {{"strata evaluate DIR --data.test=FILE.h5", "loss"},
                   {"strata generate DIR --prompt=TEXT", "text, if the tokenizer is known"},
                   {"strata train DIR/config.ini --data.train=FILE.h5 --run.resume=must",
                    "continues training, on any grid"}}}},
       .positions = config::Positions::kOne,
       .needs = kPathAndOutput,
       .alone = import_model},
      {.name = "checkpoint export",
       .purpose = "weights for other programs",
       .synopses = {{"CHECKPOINT|RUN --format=FORMAT --output=DIR [options]"}},
       .about =
           R"(Writes the weights of a checkpoint, or of a run's newest one, for other programs. Every weight
is read back and compared before DIR appears.)",
       .options =
           {{"format", "huggingface|llmc|safetensors|onnx",
             R"(huggingface: the family that the model came as, or the first that has its layers; llmc: model.bin of a GPT-2; safetensors: any model, strata's names;
onnx: model.onnx of a multilayer perceptron or a convolutional network, from samples as the data set stores them to
probabilities or values)"},
            {"output", "DIR", "a new directory"},
            {"dtype", "float64|float32|float16|bfloat16",
             "of the weights (default: as in the checkpoint)"},
            {"shard-mib", "N", "limit of MiB per safetensors file (default 5120)"},
            {"adapters", config::words_of<exchange::AdapterExport>(),
             R"(merged: low-rank adapters are added to the weights (default); apart: with huggingface, they alone
are written, as PEFT does)"},
            {"checkpoint", config::words_of<WhichCheckpoint>(),
             "of a run: the newest one (default), or the best of checkpoint.best"},
            {"check-logits", "",
             R"(read the files as a model and compare its logits with the checkpoint's, before DIR appears; needs
memory for the weights, and disk for a second copy; exit code 4 where they differ)"},
            {"logits", "FILE",
             R"(with --check-logits: the token ids of the check, and the checkpoint's logits after each sequence, as JSON)"}},
       .positions = config::Positions::kOne,
       .needs = kPathAndOutput,
       .alone = [](const config::CommandLine& line) { return export_model(line, nullptr); },
       .on_ranks = export_checked_model,
       .on_ranks_with = "check-logits"}};
}

}  // namespace strata::app
