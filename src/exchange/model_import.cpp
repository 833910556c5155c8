#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/plan/checkpoint_names.hpp"

#include "families.hpp"
#include "huggingface_config.hpp"
#include "transpose.hpp"

namespace strata::exchange {
namespace {

namespace fs = std::filesystem;

ModelFormat detected_format(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return ModelFormat::kHuggingface;
  }
  std::array<char, 4> first{};
  if (fs::is_regular_file(path, error)) {
    std::ifstream(path, std::ios::binary).read(first.data(), first.size());
  }
  constexpr std::array<char, 4> kLlmcMagic{'\xc6', '\xd7', '\x34', '\x01'};  // 20240326
  if (first == kLlmcMagic) {
    return ModelFormat::kLlmc;
  }
  // A zip file, or the pickle that older versions of torch.save() wrote.
  if ((first[0] == 'P' && first[1] == 'K') || first[0] == '\x80') {
    const std::string file = printable(path.string());
    const fs::path beside = path.has_parent_path() ? path.parent_path() : ".";
    const std::string converted = printable(
        (fs::exists(beside / "config.json", error) ? beside : fs::path(path).replace_extension())
            .string());
    fail(ExitCode::kData,
         "{} is a file of torch.save(); run python3 torch_to_safetensors.py {} {}, which is in "
         "share/strata/python, and import {}",
         file, file, converted, converted);
  }
  fail(
      ExitCode::kData,
      "{} is {}; give a directory with config.json and model.safetensors, or a model file of llm.c",
      path.string(), fs::exists(path, error) ? "no model that strata knows" : "missing");
}

/// The model of llm.c: GPT-2 in any size.
PublishedModel model_of_llmc(const fs::path& path, const io::LlmcHeader& header) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24U;
  const auto checked = [&](const char* name, std::int64_t value) {
    if (value < 1 || value > kMost) {
      fail(ExitCode::kData, "{}: {} is {}, a whole number from 1 to {} was expected", path.string(),
           name, value, kMost);
    }
    return value;
  };
  PublishedModel model;
  nn::TransformerOptions& o = model.options;
  o.preset = nn::Preset::kGpt;
  o.blocks = checked("n_layer", header.blocks);
  o.heads = checked("n_head", header.heads);
  o.width = checked("n_embd", header.width);
  o.context = checked("block_size", header.positions);
  o.vocabulary = checked("vocab_size", header.vocabulary);
  if (o.width % o.heads != 0 || o.blocks > kMostBlocks) {
    fail(ExitCode::kData,
         "{}: n_embd is {}, n_head {} and n_layer {}; heads that divide the width and at most {} "
         "layers were expected",
         path.string(), o.width, o.heads, o.blocks, kMostBlocks);
  }
  model.options = resolved(o);
  model.family = "gpt2";
  return model;
}

/// Buffers that published files hold beside weights: causal masks and rotary frequencies.
bool is_buffer(const std::string& name) {
  constexpr std::array kEnds{".attn.bias", ".attn.masked_bias", ".attention.bias",
                             ".attention.masked_bias", ".rotary_emb.inv_freq"};
  return std::ranges::any_of(kEnds, [&](const char* end) { return name.ends_with(end); });
}

/// Refuses a config that asks for much more than the files hold, before its tensors are listed.
void require_size(const fs::path& path, const ForeignModel& foreign) {
  const nn::TransformerOptions& o = foreign.model.options;
  const auto& found = foreign.files.tensors();
  std::int64_t bytes = 0;
  for (const auto& [name, stored] : found) {
    bytes += std::ssize(stored.bytes);
  }
  // Of 16 bits: the embedding, and two matrices of a layer.
  const std::int64_t in_layer = o.heads * nn::head_size_of(o) + o.hidden;
  const double least = 2.0 * static_cast<double>(o.width) *
                       (static_cast<double>(o.vocabulary) +
                        static_cast<double>(o.blocks) * static_cast<double>(in_layer));
  if (least > static_cast<double>(bytes) || o.blocks > std::ssize(found)) {
    fail(ExitCode::kData,
         "{}: its config asks for {} layers of width {} and {} token ids, which its {} tensors of "
         "{} in all cannot hold: it is of another model",
         path.string(), o.blocks, o.width, o.vocabulary, found.size(), bytes_text(bytes));
  }
}

/// Finds every tensor of the model under one of its names, counts those of other parts, and refuses
/// others.
void match_tensors(const fs::path& path, ForeignModel& foreign) {
  const auto& found = foreign.files.tensors();
  const PublishedModel& model = foreign.model;
  const std::vector<std::string> heads = names_in_files(model, "lm_head.weight");
  std::set<std::string> used;
  std::size_t form = 0;  // of the names in these files
  for (const PublishedTensor& tensor : foreign.tensors) {
    const std::vector<std::string> names = names_in_files(model, tensor.name);
    auto at = found.end();
    for (std::size_t i = 0; i < names.size() && at == found.end(); ++i) {
      at = found.find(names[i]);
      form = at == found.end() ? form : i;
    }
    if (at == found.end() && names == heads) {
      fail(ExitCode::kData,
           "{} has no tensor lm_head.weight, which a head that is not tied to the embedding needs; "
           "if it is tied, set tie_word_embeddings to true in {}config.json, else copy the model "
           "again",
           path.string(), model.part_of.empty() ? "" : "text_config of ");
    }
    if (at == found.end()) {
      std::vector<std::string> others;
      for (const auto& [name, stored] : found) {
        if (!used.contains(name) && other_part(model, name).empty()) {
          others.push_back(name);
        }
      }
      fail(ExitCode::kData,
           "{} has no tensor {}, {} was expected{}: it is a model of another architecture or size",
           path.string(), names[form], tensor.shape.text(),
           others.empty()
               ? ""
               : fmt::format(" (the nearest is {})", printable(nearest(names[form], others))));
    }
    if (at->second.shape != tensor.shape) {
      fail(ExitCode::kData,
           "{}: tensor {} is {}, its config asks for {}; use the config that the weights were "
           "saved with",
           path.string(), at->first, at->second.shape.text(), tensor.shape.text());
    }
    if (at->second.type == io::StoredType::kOther) {
      fail(ExitCode::kData,
           "{}: tensor {} holds no floating-point numbers of 16, 32 or 64 bits; convert the model",
           path.string(), at->first);
    }
    used.insert(at->first);
    foreign.stored.push_back(&at->second);
  }
  for (const auto& [name, stored] : found) {
    if (const std::string_view part = other_part(model, name); !part.empty()) {
      ++foreign.left_out.tensors;
      foreign.left_out.bytes += std::ssize(stored.bytes);
      foreign.left_out.parts.emplace(part);
      continue;
    }
    if (used.contains(name) || is_buffer(name)) {
      continue;
    }
    const bool tied_head =
        std::ranges::find(heads, name) != heads.end() && model.options.tied == Switch::kOn;
    if (!tied_head) {
      fail(ExitCode::kData,
           "{} has the tensor {} ({}), which {} of this config lacks: it is a model of another "
           "architecture or size",
           path.string(), printable(name), stored.shape.text(), model.family);
    }
    if (!std::ranges::equal(stored.bytes, foreign.stored.front()->bytes)) {
      fail(ExitCode::kData,
           "{}: lm_head.weight differs from the embedding's table, but the head is tied to it; "
           "set tie_word_embeddings to false{}",
           path.string(), model.part_of.empty() ? "" : " in text_config");
    }
  }
}

/// Rows of a parameter and where a stored tensor has them.
struct Piece {
  std::size_t tensor = 0;
  std::int64_t first = 0;  ///< row of the stored tensor, transposed back
  grid::Range rows;        ///< of the parameter
};

/// The parameters of one file of a checkpoint.
struct PartInMemory {
  std::vector<std::vector<std::byte>> memory;
  std::vector<io::TensorSlice> slices;
  std::int64_t bytes = 0;
};

void read_piece(const ForeignModel& foreign, const Piece& piece, const Shape& shape,
                const TensorView& parameter) {
  const io::StoredTensor& stored = *foreign.stored[piece.tensor];
  const std::int64_t columns = shape.tail().count();
  const std::int64_t rows = piece.rows.count();
  if (foreign.tensors[piece.tensor].order == MatrixOrder::kOutputsFirst) {
    io::read_elements(stored, piece.first * columns,
                      parameter.flat_slice(piece.rows.begin * columns, rows * columns));
    return;
  }
  // A few columns at a time, so that neither side is read element by element.
  constexpr std::int64_t kColumns = 16;
  const std::int64_t stored_rows = stored.shape[1];
  with_floating(parameter.dtype(), [&]<typename T>(T) {
    std::vector<T> block(static_cast<std::size_t>(kColumns * rows));
    const TensorView view(std::span<T>(block), Shape{kColumns, rows});
    const std::span<T> out = parameter.host<T>();
    for (std::int64_t c = 0; c < columns; c += kColumns) {
      const std::int64_t count = std::min(kColumns, columns - c);
      for (std::int64_t i = 0; i < count; ++i) {
        io::read_elements(stored, (c + i) * stored_rows + piece.first,
                          view.flat_slice(i * rows, rows));
      }
      transpose<T>({block.data(), rows}, count, rows,
                   {out.data() + piece.rows.begin * columns + c, columns});
    }
  });
}

void read_adapter(const AdapterParameter& adapter, const TensorView& out) {
  const std::int64_t columns = adapter.shape[1];
  std::memset(out.raw(), 0, out.bytes());
  for (const AdapterPiece& piece : adapter.pieces) {
    const std::int64_t width = piece.stored->shape[1];
    for (std::int64_t row = 0; row < piece.rows.count(); ++row) {
      io::read_elements(*piece.stored, (piece.first + row) * width,
                        out.flat_slice((piece.rows.begin + row) * columns + piece.column, width));
    }
  }
}

}  // namespace

ForeignModel open_model(const fs::path& path, std::optional<ModelFormat> format) {
  ForeignModel foreign = [&]() -> ForeignModel {
    const ModelFormat kind = format ? *format : detected_format(path);
    switch (kind) {
      case ModelFormat::kHuggingface: {
        const PublishedModel model = read_huggingface_config(path / "config.json");
        train::ModelTexts texts = read_model_texts(path);
        return {kind, model, io::TensorFiles::open_safetensors(path), {}, {}, std::move(texts)};
      }
      case ModelFormat::kLlmc: {
        io::TensorFiles files = io::TensorFiles::open_llmc(path);
        PublishedModel model = model_of_llmc(path, files.llmc());
        return {kind, model, std::move(files), {}, {}};
      }
      default:
        fail(ExitCode::kUsage, "--format={} is only written; import huggingface or llmc",
             name_of(kind));
    }
  }();
  require_size(path, foreign);
  foreign.tensors = published_tensors(foreign.model, foreign.format == ModelFormat::kHuggingface
                                                         ? MatrixOrder::kInputsFirst
                                                         : MatrixOrder::kOutputsFirst);
  match_tensors(path, foreign);
  return foreign;
}

DType dtype_of(const ForeignModel& model) {
  return std::ranges::any_of(model.stored,
                             [](const io::StoredTensor* tensor) {
                               return tensor->type == io::StoredType::kFloat64;
                             })
             ? DType::kFloat64
             : DType::kFloat32;
}

void import_model(const ForeignModel& foreign, const fs::path& root, DType dtype,
                  const nlohmann::json& metadata, const io::Tokenizer* tokenizer) {
  constexpr std::int64_t kPartBytes = std::int64_t{512} << 20U;
  std::map<std::string, std::vector<Piece>> parameters;
  std::map<std::string, Shape> shapes;
  for (std::size_t t = 0; t < foreign.tensors.size(); ++t) {
    std::int64_t first = 0;
    for (const ParameterRows& rows : foreign.tensors[t].rows) {
      parameters[rows.parameter].push_back({t, first, rows.rows});
      shapes[rows.parameter] = rows.shape;
      first += rows.rows.count();
    }
  }
  const fs::path directory = io::begin_checkpoint(root, 0);
  std::vector<io::PartRecord> records;
  PartInMemory part;
  // A part is written while the next one is read.
  std::future<io::PartRecord> written;
  const auto finish = [&] {
    if (written.valid()) {
      records.push_back(written.get());
    }
  };
  const auto write = [&] {
    finish();
    written = std::async(std::launch::async,
                         [&directory, index = std::ssize(records), full = std::move(part)] {
                           return io::write_part(directory, index, full.slices);
                         });
    part = {};
  };
  // The memory of a parameter, which the part's file will hold.
  const auto next = [&](const std::string& name, const Shape& shape) {
    const std::int64_t size = shape.count() * size_bytes(dtype);
    if (!part.slices.empty() && part.bytes + size > kPartBytes) {
      write();
    }
    part.bytes += size;
    part.memory.emplace_back(static_cast<std::size_t>(size));
    const TensorView parameter(part.memory.back().data(), shape, dtype);
    part.slices.push_back({.name = fmt::format("{}{}", plan::kWeightPrefix, name),
                           .global_shape = shape,
                           .range = {0, shape.count()},
                           .data = parameter,
                           .shard = {}});
    return parameter;
  };
  for (const auto& [name, pieces] : parameters) {
    const Shape& shape = shapes.at(name);
    const TensorView parameter = next(name, shape);
    for (const Piece& piece : pieces) {
      read_piece(foreign, piece, shape, parameter);
    }
    for (const Piece& piece : pieces) {
      io::release_pages(foreign.stored[piece.tensor]->bytes);
    }
  }
  for (const AdapterParameter& adapter :
       foreign.adapters ? foreign.adapters->parameters : std::vector<AdapterParameter>()) {
    read_adapter(adapter, next(adapter.name, adapter.shape));
  }
  write();
  finish();
  io::commit_checkpoint(root, 0, records, metadata, tokenizer);
}

}  // namespace strata::exchange
