#include <algorithm>
#include <future>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/io/text_file.hpp"
#include "strata/io/tokenizer.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/train/checkpointing.hpp"

#include "checkpoint_adapters.hpp"
#include "huggingface_config.hpp"
#include "onnx_export.hpp"
#include "transpose.hpp"

namespace strata::exchange {
namespace {
namespace fs = std::filesystem;

/// Consecutive tensors that go into one file.
struct OutputFile {
  std::string name;
  std::vector<PublishedTensor> tensors;
};

/// A checkpoint as the tensors of an export.
class Exporter {
 public:
  Exporter(const io::Checkpoint& checkpoint, const ExportOptions& options)
      : checkpoint_(checkpoint), options_(options), adapters_(checkpoint) {
    for (const io::TensorInfo& tensor : checkpoint.tensors()) {
      if (tensor.name.starts_with(plan::kWeightPrefix) && !nn::is_adapter(tensor.name)) {
        dtype_ = tensor.dtype;
        weights_.push_back(tensor);
      }
    }
    if (weights_.empty()) {
      fail(ExitCode::kCheckpoint, "{} holds no weights; use another checkpoint",
           checkpoint.directory().string());
    }
    own_type_ = dtype_ == DType::kFloat64 ? io::StoredType::kFloat64 : io::StoredType::kFloat32;
    type_ = options.type.value_or(own_type_);
    if (options.format != ModelFormat::kSafetensors) {
      data_ = train::data_of(checkpoint);
      model_ = published_model();
    }
  }

  [[nodiscard]] ExportedModel write(const fs::path& directory) {
    ExportedModel result;
    std::vector<OutputFile> files;
    if (options_.adapters == AdapterExport::kApart) {
      write_adapters(directory, result);
      return result;
    }
    if (options_.format == ModelFormat::kLlmc) {
      files.push_back({"model.bin", llmc_tensors()});
    } else {
      files = shards(options_.format == ModelFormat::kHuggingface
                         ? published_tensors(*model_, MatrixOrder::kInputsFirst)
                         : own_tensors());
    }
    // A file is read back while the next one is written.
    std::future<void> verified;
    for (const OutputFile& file : files) {
      const fs::path path = directory / file.name;
      std::vector<std::uint64_t> checksums = write_file(path, file.tensors, result);
      if (verified.valid()) {
        verified.get();
      }
      verified = std::async(std::launch::async, [this, path, &file, sums = std::move(checksums)] {
        verify(path, file.tensors, sums);
      });
      result.files.push_back(file.name);
    }
    verified.get();
    if (files.size() > 1) {
      write_index(directory, files, result.bytes);
      static_cast<void>(io::TensorFiles::open_safetensors(directory));
      result.files.push_back("model.safetensors.index.json");
    }
    result.files.push_back(io::write_export_manifest(directory, result.files));
    if (options_.format == ModelFormat::kHuggingface) {
      DocumentEnds ends;
      std::vector<fs::path> tokenizer_files;
      if (data_->tokenizer != io::TokenizerKind::kNone) {
        const io::Tokenizer tokenizer = io::Tokenizer::of(*data_);
        const std::vector<std::uint32_t>& before = tokenizer.frame().before;
        ends = {before.empty() ? tokenizer.separator() : std::int64_t{before.front()},
                tokenizer.separator()};
        tokenizer_files = io::write_tokenizer_files(tokenizer, directory);
      }
      train::ModelTexts texts = train::model_texts(checkpoint_);
      if (const std::string& chat = data_->chat_template;
          !chat.empty() && io::published_template(texts).name != chat) {
        texts["chat_template.jinja"] = io::jinja_text(chat);
      }
      const nlohmann::json config = huggingface_config(*model_, type_, ends, texts);
      write_text(directory, "config.json", config);
      write_text(directory, "generation_config.json", generation_config(config));
      result.files.insert(result.files.end(), {"config.json", "generation_config.json"});
      for (const fs::path& file : tokenizer_files) {
        result.files.push_back(file.filename().string());
      }
      for (const std::string name : kModelTexts) {
        if (name != "config.json" && texts.contains(name)) {
          io::replace_text(directory / name, texts.at(name));
          if (std::ranges::find(result.files, name) == result.files.end()) {
            result.files.push_back(name);
          }
        }
      }
    }
    return result;
  }

 private:
  void write_adapters(const fs::path& directory, ExportedModel& result) {
    const auto refuse = [](const std::string& why) {
      fail(ExitCode::kUsage, "--adapters=apart: {}; leave it out", why);
    };
    if (options_.format != ModelFormat::kHuggingface) {
      refuse(fmt::format("--format={} has no form for adapters, huggingface has that of PEFT",
                         name_of(options_.format)));
    }
    if (adapters_.empty()) {
      refuse(fmt::format("{} has no adapters", checkpoint_.directory().string()));
    }
    if (!checkpoint_.metadata().value(plan::kOnlyAdapters, false)) {
      refuse("the run trained other parameters too, which would be lost");
    }
    const std::vector<PublishedTensor> weights =
        published_tensors(*model_, MatrixOrder::kInputsFirst);
    const OutputFile file{"adapter_model.safetensors", adapters_.tensors(weights)};
    const auto checksums = write_file(directory / file.name, file.tensors, result);
    write_text(directory, "adapter_config.json", adapters_.config(weights));
    verify(directory / file.name, file.tensors, checksums);
    result.files = {file.name};
    result.files.push_back(io::write_export_manifest(directory, result.files));
    result.files.emplace_back("adapter_config.json");
  }

  [[nodiscard]] PublishedModel published_model() const {
    const nlohmann::json& metadata = checkpoint_.metadata();
    const auto lines = metadata.value("layers", std::vector<std::string>());
    const std::string name = fmt::format("{}embedding.tokens.weight", plan::kWeightPrefix);
    const auto embedding = std::ranges::find(weights_, name, &io::TensorInfo::name);
    if (!data_ || data_->task != io::Task::kNextToken || embedding == weights_.end()) {
      fail(ExitCode::kUsage,
           "{} is no checkpoint of a transformer as presets have it, which --format={} needs; take "
           "it out with --format=safetensors",
           checkpoint_.directory().string(), name_of(options_.format));
    }
    PublishedModel model = published_model_of(lines, data_->input_shape[0], embedding->shape[0]);
    model.family = family_of(model, came_as(train::model_texts(checkpoint_)));
    const bool gpt2 = model.family == "gpt2";
    const nn::TransformerOptions& o = model.options;
    const auto check = [&](bool fits, const std::string& what) {
      if (!fits) {
        fail(ExitCode::kUsage, "--format={} cannot hold {}; take it out with --format=safetensors",
             name_of(options_.format), what);
      }
    };
    check(!gpt2 || o.bias == Switch::kOn, "a GPT without biases (model.bias = off)");
    if (options_.format == ModelFormat::kLlmc) {
      check(gpt2, fmt::format("a model of the family {}", model.family));
      check(o.mlp == nn::MlpKind::kGelu && o.hidden == 4 * o.width && o.tied == Switch::kOn &&
                o.epsilon == 1e-5,
            "another GPT than one with gelu, hidden units of 4 times the width, a tied head and "
            "epsilon = 1e-5");
      if (type_ != io::StoredType::kFloat32 && type_ != io::StoredType::kBfloat16) {
        fail(ExitCode::kUsage, "--format=llmc holds float32 or bfloat16, not {}; set --dtype",
             name_of(type_));
      }
    }
    return model;
  }

  /// All weights under strata's names.
  [[nodiscard]] std::vector<PublishedTensor> own_tensors() const {
    std::vector<PublishedTensor> tensors;
    for (const io::TensorInfo& weight : weights_) {
      const std::string name = weight.name.substr(plan::kWeightPrefix.size());
      const std::int64_t rows = weight.shape.rank() == 0 ? 1 : weight.shape[0];
      tensors.push_back(
          {.name = name, .shape = weight.shape, .rows = {{name, weight.shape, {0, rows}}}});
    }
    return tensors;
  }

  /// The order of llm.c: a layer's tensor of all blocks, then the next.
  [[nodiscard]] std::vector<PublishedTensor> llmc_tensors() const {
    constexpr std::int64_t kAround = 2;  // tensors before the blocks, and as many after them
    std::vector<PublishedTensor> all = published_tensors(*model_, MatrixOrder::kOutputsFirst);
    const std::int64_t blocks = model_->options.blocks;
    const std::int64_t in_block = (std::ssize(all) - 2 * kAround) / blocks;
    std::vector<PublishedTensor> tensors(all.begin(), all.begin() + kAround);
    for (std::int64_t i = 0; i < in_block * blocks; ++i) {
      const std::int64_t tensor = i / blocks;
      const std::int64_t block = i % blocks;
      tensors.push_back(all[static_cast<std::size_t>(kAround + block * in_block + tensor)]);
    }
    tensors.insert(tensors.end(), all.end() - kAround, all.end());
    return tensors;
  }

  [[nodiscard]] std::vector<OutputFile> shards(std::vector<PublishedTensor> tensors) const {
    std::vector<OutputFile> files(1);
    std::int64_t bytes = 0;
    for (PublishedTensor& tensor : tensors) {
      const std::int64_t size = tensor.shape.count() * io::size_bytes(type_);
      if (!files.back().tensors.empty() && bytes + size > options_.shard_bytes) {
        files.emplace_back();
        bytes = 0;
      }
      bytes += size;
      files.back().tensors.push_back(std::move(tensor));
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
      files[i].name = files.size() == 1
                          ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    }
    return files;
  }

  /// Passes the bytes of a tensor in the export to `sink`, in pieces.
  template <typename Sink>
  void stream(const PublishedTensor& tensor, const Sink& sink) {
    const std::int64_t count = tensor.shape.count();
    // Whole rows, for adapters.
    const std::int64_t columns = columns_of(tensor.rows.front());
    const std::int64_t most =
        std::max(kPieceBytes / size_bytes(dtype_) / columns, std::int64_t{1}) * columns;
    if (tensor.order == MatrixOrder::kOutputsFirst) {
      for (std::int64_t begin = 0; begin < count; begin += most) {
        const grid::Range range{begin, std::min(begin + most, count)};
        const TensorView view = resized(piece_, {range.count()});
        read(tensor, range, view);
        sink(view);
      }
      return;
    }
    const std::int64_t inputs = tensor.shape[0];
    const std::int64_t outputs = tensor.shape[1];
    const TensorView whole = resized(whole_, {count});
    read(tensor, {0, count}, whole);
    const std::int64_t rows = std::max(most / outputs, std::int64_t{16});
    for (std::int64_t begin = 0; begin < inputs; begin += rows) {
      const std::int64_t taken = std::min(rows, inputs - begin);
      const TensorView turned = resized(piece_, {taken * outputs});
      with_floating(dtype_, [&]<typename T>(T) {
        transpose<T>({whole.host<T>().data() + begin, inputs}, outputs, taken,
                     {turned.host<T>().data(), outputs});
      });
      sink(turned);
    }
  }

  [[nodiscard]] TensorView resized(std::vector<std::byte>& memory, const Shape& shape) const {
    memory.resize(
        std::max(memory.size(), static_cast<std::size_t>(shape.count() * size_bytes(dtype_))));
    return {memory.data(), shape, dtype_};
  }

  /// The elements of a row; the same in all parameters of a tensor.
  static std::int64_t columns_of(const ParameterRows& rows) {
    return rows.shape.rank() == 0 ? 1 : std::max(rows.shape.tail().count(), std::int64_t{1});
  }

  /// Reads whole rows of a tensor, outputs first, from the parameters that hold them, with adapters
  /// merged. `wanted` is in elements.
  void read(const PublishedTensor& tensor, const grid::Range& wanted, const TensorView& out) const {
    std::int64_t before = 0;  // elements of the tensor before these rows
    for (const ParameterRows& rows : tensor.rows) {
      const std::int64_t columns = columns_of(rows);
      const std::int64_t first = rows.rows.begin * columns - before;
      const std::int64_t begin = std::max(wanted.begin, before);
      before += rows.rows.count() * columns;
      const std::int64_t end = std::min(wanted.end, before);
      if (begin < end) {
        const grid::Range range{first + begin, first + end};
        const TensorView part = out.flat_slice(begin - wanted.begin, end - begin);
        checkpoint_.read(fmt::format("{}{}", plan::kWeightPrefix, rows.parameter), rows.shape, {},
                         range, part);
        adapters_.merge({rows.parameter, rows.shape, {range.begin / columns, range.end / columns}},
                        part);
      }
    }
  }

  /// Returns the checksum of each tensor's bytes.
  std::vector<std::uint64_t> write_file(const fs::path& path,
                                        const std::vector<PublishedTensor>& tensors,
                                        ExportedModel& result) {
    const bool llmc = options_.format == ModelFormat::kLlmc;
    const io::LlmcHeader header = llmc ? llmc_header() : io::LlmcHeader();
    std::vector<io::TensorToStore> stored;
    stored.reserve(tensors.size());
    for (const PublishedTensor& tensor : tensors) {
      stored.push_back({tensor.name, type_, tensor.shape});
    }
    io::TensorFileWriter file = llmc ? io::TensorFileWriter::llmc(path, header)
                                     : io::TensorFileWriter::safetensors(path, stored);
    std::vector<std::uint64_t> checksums;
    for (const PublishedTensor& tensor : tensors) {
      StreamingHash hash;
      stream(tensor, [&](const TensorView& piece) {
        const bool same = type_ == own_type_;
        const auto narrow = same ? std::vector<std::byte>() : io::stored_bytes(piece, type_);
        const std::span<const std::byte> bytes =
            same ? std::span<const std::byte>(piece.raw(), piece.bytes()) : narrow;
        hash.update(bytes);
        file.append(bytes);
        result.bytes += std::ssize(bytes);
      });
      ++result.tensors;
      checksums.push_back(hash.digest());
      if (llmc && tensor.name == tensors.front().name) {
        const std::int64_t rows = header.padded_vocabulary() - header.vocabulary;
        file.append(std::vector<std::byte>(
            static_cast<std::size_t>(rows * header.width * io::size_bytes(type_))));
      }
    }
    file.finish();
    return checksums;
  }

  [[nodiscard]] io::LlmcHeader llmc_header() const {
    const nn::TransformerOptions& o = model_->options;
    return {type_, o.context, o.vocabulary, o.blocks, o.heads, o.width};
  }

  template <typename Json>
  static void write_text(const fs::path& directory, const std::string& name, const Json& json) {
    io::replace_text(directory / name, json.dump(2) + "\n");
  }

  static void write_index(const fs::path& directory, const std::vector<OutputFile>& files,
                          std::int64_t bytes) {
    nlohmann::json names;
    for (const OutputFile& file : files) {
      for (const PublishedTensor& tensor : file.tensors) {
        names[tensor.name] = file.name;
      }
    }
    write_text(directory, "model.safetensors.index.json",
               nlohmann::json{{"metadata", {{"total_size", bytes}}}, {"weight_map", names}});
  }

  /// Reads a file back and compares the checksum of each tensor.
  void verify(const fs::path& path, const std::vector<PublishedTensor>& tensors,
              const std::vector<std::uint64_t>& checksums) const {
    const io::TensorFiles written = options_.format == ModelFormat::kLlmc
                                        ? io::TensorFiles::open_llmc(path)
                                        : io::TensorFiles::open_safetensors(path);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto found = written.tensors().find(tensors[i].name);
      if (found == written.tensors().end() || found->second.shape != tensors[i].shape ||
          found->second.type != type_ || io::checksum_of(found->second) != checksums[i]) {
        fail(ExitCode::kData,
             "tensor {} reads back from {} with other bytes than were written; check the disk",
             tensors[i].name, path.string());
      }
    }
  }

  static constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20U;
  const io::Checkpoint& checkpoint_;
  const ExportOptions& options_;
  std::optional<io::DatasetInfo> data_;
  CheckpointAdapters adapters_;
  std::vector<io::TensorInfo> weights_;
  DType dtype_ = DType::kFloat32;
  io::StoredType own_type_ = io::StoredType::kFloat32;  ///< the same numbers as dtype_
  io::StoredType type_ = io::StoredType::kFloat32;
  std::optional<PublishedModel> model_;
  std::vector<std::byte> piece_;
  std::vector<std::byte> whole_;
};

}  // namespace

ExportedModel export_model(const io::Checkpoint& checkpoint, const fs::path& output,
                           const ExportOptions& options) {
  if (options.format == ModelFormat::kOnnx) {
    return export_onnx(checkpoint, output, options);
  }
  Exporter exporter(checkpoint, options);
  ExportedModel result;
  fill_new_directory(output, [&](const fs::path& directory) {
    result = exporter.write(directory);
    options.check(directory);
  });
  return result;
}

}  // namespace strata::exchange
