#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "strata/core/utf8.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/tensor_files.hpp"
#include "strata/io/tokenizer.hpp"

#include "files/array_file.hpp"
#include "files/csv_reader.hpp"
#include "files/input_stream.hpp"
#include "files/json_lines.hpp"
#include "images/image_decoder.hpp"
#include "memory_file.hpp"
#include "refused_or_read.hpp"
#include "targets.hpp"

namespace strata::fuzz {
namespace {}  // namespace

int run_csv(std::span<const std::byte> bytes) {
  return refused_or_read([&] {
    const MemoryFile file(bytes);
    io::CsvReader reader(file.path());
    while (reader.next()) {
    }
  });
}

int run_json_lines(std::span<const std::byte> bytes) {
  return refused_or_read([&] {
    const MemoryFile file(bytes);
    io::JsonTable table(file.path(), [](const std::string&) { return true; });
    while (table.next()) {
    }
  });
}

int run_compressed(std::span<const std::byte> bytes) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
  return refused_or_read([&] {
    const MemoryFile file(bytes);
    io::InputStream stream(file.path());
    static_cast<void>(stream.read_whole(kMostBytes));
  });
}

int run_image(std::span<const std::byte> bytes) {
  // Larger ones only take longer.
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 20;
  return refused_or_read([&] {
    io::ImageDecoder decoder;
    if (decoder.size_of(bytes).pixels() <= kMostPixels) {
      io::Image image;
      decoder.decode(bytes, image);
    }
  });
}

// The encoder, a NUL, and the merges.
int run_tokenizer(std::span<const std::byte> bytes) {
  return refused_or_read([&] {
    const auto end = std::find(bytes.begin(), bytes.end(), std::byte{0});
    const auto length = static_cast<std::size_t>(end - bytes.begin());
    const MemoryFile encoder(bytes.first(length));
    const MemoryFile merges(bytes.subspan(std::min(length + 1, bytes.size())));
    const io::Tokenizer tokenizer = io::Tokenizer::gpt2(encoder.path(), merges.path());
    static_cast<void>(tokenizer.decode(tokenizer.encode("A day's work: 2026!\n\xf0\x9f\x98\x80")));
  });
}

// A tokenizer.json, ranks or a model of SentencePiece.
int run_tokenizer_file(std::span<const std::byte> bytes) {
  return refused_in_one_line_or_read([&] {
    const std::string_view text = text_of(bytes);
    const MemoryFile file(bytes);
    const char* pattern = text.starts_with('{') || text.starts_with('\n') ? "" : "llama3";
    const io::Tokenizer tokenizer = io::Tokenizer::from_file(file.path(), pattern);
    static_cast<void>(tokenizer.decode(tokenizer.encode("A day's work: 2026!\n\xf0\x9f\x98\x80")));
  });
}

int run_array(std::span<const std::byte> bytes) {
  constexpr std::int64_t kMostRowBytes = std::int64_t{1} << 20;
  return refused_or_read([&] {
    const MemoryFile file(bytes);
    const bool npy = text_of(bytes).starts_with("\x93");
    io::ArrayFile array =
        npy ? io::ArrayFile::open_npy(file.path()) : io::ArrayFile::open_idx(file.path());
    if (array.row_bytes() <= kMostRowBytes) {
      std::vector<std::byte> row(static_cast<std::size_t>(array.row_bytes()));
      array.read(row);
      array.finish();
    }
  });
}

int run_record(std::span<const std::byte> bytes) {
  return refused_or_read([&] {
    const io::PartRecord record = io::part_record_of(std::string(text_of(bytes)));
    // What was read can be written and read again.
    static_cast<void>(io::part_record_of(io::text_of(record)));
  });
}

void read_tensors(const io::TensorFiles& files) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 16U;
  for (const auto& [name, tensor] : files.tensors()) {
    const std::int64_t count = tensor.shape.count();
    if (tensor.type != io::StoredType::kOther && count <= kMostElements) {
      std::vector<float> elements(static_cast<std::size_t>(count));
      io::read_elements(tensor, 0, TensorView(std::span<float>(elements), tensor.shape));
    }
  }
}

namespace {

int run_tensors(std::span<const std::byte> bytes,
                io::TensorFiles (*open)(const std::filesystem::path&)) {
  return refused_in_one_line_or_read([&] {
    const MemoryFile file(bytes);
    read_tensors(open(file.path()));
  });
}

}  // namespace

int run_safetensors(std::span<const std::byte> bytes) {
  return run_tensors(bytes, io::TensorFiles::open_safetensors);
}

int run_llmc(std::span<const std::byte> bytes) {
  return run_tensors(bytes, io::TensorFiles::open_llmc);
}

int run_text(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  for (const std::string& shown : {printable(text, 20), printable_lines(text), quoted_text(text)}) {
    const bool control = std::any_of(shown.begin(), shown.end(), [](char byte) {
      return static_cast<unsigned char>(byte) < 0x20 && byte != '\n' && byte != '\t';
    });
    if (control || utf8_prefix(shown).bytes != shown.size()) {
      std::abort();
    }
  }
  return 0;
}

}  // namespace strata::fuzz
