#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "strata/core/hash.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/dataset.hpp"

#include "checkpoint/checkpoint_format.hpp"
#include "dataset/dataset_format.hpp"
#include "described_file.hpp"
#include "files/manifest.hpp"
#include "refused_or_read.hpp"
#include "scratch_directory.hpp"
#include "targets.hpp"

namespace strata::fuzz {
namespace {

namespace fs = std::filesystem;
namespace names = io::dataset_format;

/// Writes a manifest of the other files where the text is "whole"; else the text with the checksum
/// of its lines put right, so that the lines are read.
void write_manifest(const fs::path& path, std::string text) {
  if (!text.starts_with("whole")) {
    text = text.substr(0, text.rfind("checksum "));
    std::ofstream(path) << text << fmt::format("checksum {}\n", hash_text(hash_of(text)));
    return;
  }
  std::vector<io::ManifestEntry> entries;
  for (const auto& entry : fs::directory_iterator(path.parent_path())) {
    entries.push_back(io::manifest_entry_of(entry.path(), {}, ExitCode::kData));
  }
  io::Manifest(std::move(entries)).write(path, ExitCode::kData);
}

// HDF5 needs long for the thousands of items that larger ones may describe.
constexpr std::size_t kMostDescribedBytes = std::size_t{1} << 14U;

bool is_hdf5(const std::string& text) {
  return text.starts_with("\x89HDF");
}

/// HDF5's own faults with damaged headers are not strata's: strata compares them with the manifest
/// before. `seal` puts the checksums of a described master right.
template <typename Seal>
void write_bundle(const fs::path& directory, Bundle bundle, const Seal& seal) {
  const std::string manifest = bundle["master.manifest"];
  std::map<std::string, Description> described;
  for (const auto& [name, text] : bundle) {
    if (!io::is_file_name(name) || name.size() > 100 || !name.ends_with(".h5")) {
      continue;
    }
    if (is_hdf5(text)) {
      if (manifest.empty() || manifest.starts_with("whole")) {
        fail(ExitCode::kData, "no manifest for {}", name);
      }
      std::ofstream(directory / name, std::ios::binary) << text;
    } else {
      described[name] = description_of(text);
    }
  }
  // The master after its shards or parts.
  for (const auto& [name, description] : described) {
    if (name != "master.h5") {
      write_described(directory / name, description);
    }
  }
  if (described.contains("master.h5")) {
    seal(described);
    write_described(directory / "master.h5", described["master.h5"]);
  }
  if (!manifest.empty()) {
    write_manifest(directory / "master.manifest", manifest);
  }
}

std::vector<std::int64_t> vector_of(const Description& description, const char* name) {
  return elements_of(item_of(description, fmt::format("data {}", name)));
}

/// The hash of a tokenizer's tables, as the writer computes it.
std::uint64_t tables_hash(const Description& master, const std::string& kind) {
  StreamingHash hash;
  hash.update(std::as_bytes(std::span(kind)));
  const auto update = [&](auto element, const std::vector<std::int64_t>& values) {
    for (const std::int64_t value : values) {
      element = static_cast<decltype(element)>(value);
      hash.update(std::as_bytes(std::span(&element, 1)));
    }
  };
  update(std::uint32_t{}, vector_of(master, names::kCharacters));
  if (kind == "gpt2" || kind == "unigram") {
    update(std::uint8_t{}, vector_of(master, names::kTokenBytes));
    update(std::int64_t{}, vector_of(master, names::kTokenEnds));
    update(std::uint32_t{}, vector_of(master, names::kMerges));
    update(std::int64_t{}, {int_of(item_of(master, "int separator"))});
  }
  if (kind == "unigram") {
    update(std::uint8_t{}, vector_of(master, names::kRules));
    update(double{}, vector_of(master, names::kScores));
  }
  return hash.digest();
}

void set_hash(Description& master, const std::string& name, std::uint64_t hash) {
  master["hash " + name] = {name, {hash_text(hash)}, {}};
}

void read_token_facts(Description& master, io::DatasetInfo& info) {
  const std::string kind = text_of(item_of(master, "text tokenizer"));
  info.tokens = int_of(item_of(master, "int tokens"));
  info.classes = int_of(item_of(master, "int vocabulary"));
  info.tokenizer = enum_from_name<io::TokenizerKind>(kind).value_or(io::TokenizerKind::kNone);
  info.tokenizer_checksum = tables_hash(master, kind);
  set_hash(master, names::kTokenizerChecksum, info.tokenizer_checksum);
}

void read_sample_facts(const Description& master, io::DatasetInfo& info) {
  info.samples = int_of(item_of(master, "int samples"));
  info.classes = int_of(item_of(master, "int classes"));
  info.class_names = item_of(master, "texts class_names").texts;
  for (const std::int64_t value : vector_of(master, names::kMean)) {
    info.mean.push_back(static_cast<double>(value));
  }
  for (const std::int64_t value : vector_of(master, names::kDeviation)) {
    info.deviation.push_back(static_cast<double>(value));
  }
}

/// Puts the checksum of the facts right.
void seal_dataset(std::map<std::string, Description>& files) {
  Description& master = files["master.h5"];
  io::DatasetInfo info;
  info.task = enum_from_name<io::Task>(text_of(item_of(master, "text task")))
                  .value_or(io::Task::kClassification);
  const std::vector<std::string> shards = item_of(master, "texts shards/file").texts;
  const auto samples = vector_of(master, names::kShardSamples);
  const auto checksums = vector_of(master, names::kShardChecksums);
  for (std::size_t i = 0; i < std::min({shards.size(), samples.size(), checksums.size()}); ++i) {
    info.shards.push_back({shards[i], samples[i], 0, static_cast<std::uint64_t>(checksums[i])});
  }
  const bool tokens = info.task == io::Task::kNextToken;
  tokens ? read_token_facts(master, info) : read_sample_facts(master, info);
  const Description shard = shards.empty() ? Description() : files[shards.front()];
  const auto facts_of = [&](const char* name, DType& dtype, Shape& shape) {
    const Item item = item_of(shard, fmt::format("data {}", name));
    dtype = enum_from_name<DType>(text_of(item)).value_or(DType::kUint8);
    const Shape whole(integers(item.words.size() < 2 ? "" : item.words[1], Shape::kMaxRank));
    shape = tokens || whole.rank() == 0 ? Shape() : whole.tail();
  };
  facts_of(tokens ? names::kTokens : names::kInputs, info.input_dtype, info.input_shape);
  if (!tokens) {
    facts_of(names::kTargets, info.target_dtype, info.target_shape);
  }
  set_hash(master, names::kChecksum, io::facts_checksum(info));
}

/// Puts the checksum of step, metadata and records right, "@bytes" to the size of the first part,
/// and "@tokenizer" to the hash of the tokenizer's tables.
void seal_checkpoint(const fs::path& directory, std::map<std::string, Description>& files) {
  Description& master = files["master.h5"];
  const auto replace = [](std::string& text, std::string_view mark, const std::string& value) {
    if (const std::size_t at = text.find(mark); at != std::string::npos) {
      text.replace(at, mark.size(), value);
    }
  };
  Item& parts = master["texts parts"];
  std::error_code missing;
  const auto bytes = fs::file_size(directory / "part-00000.h5", missing);
  for (std::string& record : parts.texts) {
    replace(record, "@bytes", missing ? "0" : std::to_string(bytes));
  }
  Item& metadata = master["text metadata"];
  if (!metadata.texts.empty()) {
    replace(metadata.texts.front(), "@tokenizer", hash_text(tables_hash(master, "chars")));
  }
  set_hash(master, io::checkpoint::kChecksumAttribute,
           io::checkpoint::master_checksum(int_of(item_of(master, "int step")), text_of(metadata),
                                           parts.texts));
}

void use(const io::Checkpoint& checkpoint) {
  constexpr std::int64_t kMostRead = 1 << 16;
  static_cast<void>(printable_lines(checkpoint.describe() + checkpoint.warning()));
  for (std::int64_t part = 0; part < checkpoint.part_count(); ++part) {
    refused_or_read([&] { checkpoint.verify_part(part); });
  }
  for (const io::TensorInfo& tensor : checkpoint.tensors()) {
    const std::int64_t count = tensor.shape.count();
    std::vector<std::byte> elements(
        static_cast<std::size_t>(std::min(count, kMostRead) * size_bytes(tensor.dtype)));
    refused_or_read([&] {
      if (count <= kMostRead) {
        checkpoint.read(tensor.name, tensor.shape, {}, {0, count},
                        TensorView(elements.data(), Shape{count}, tensor.dtype));
      }
    });
  }
}

}  // namespace

int open_checkpoint(std::span<const std::byte> bytes, const CheckpointUse& use) {
  if (bytes.size() > kMostDescribedBytes) {
    return 0;
  }
  static const Directory kDirectory;
  const fs::path directory = kDirectory.fresh("step-00000001");
  refused_or_read([&] {
    write_bundle(directory, bundle_of(text_of(bytes)),
                 [&](auto& files) { seal_checkpoint(directory, files); });
    use(io::Checkpoint::open(directory));
  });
  return 0;
}

int run_dataset(std::span<const std::byte> bytes) {
  if (bytes.size() > kMostDescribedBytes) {
    return 0;
  }
  static const Directory kDirectory;
  const fs::path directory = kDirectory.fresh("data");
  const fs::path master = directory / "master.h5";
  refused_or_read([&] {
    write_bundle(directory, bundle_of(text_of(bytes)), seal_dataset);
    static_cast<void>(printable_lines(io::inspect_dataset(master, io::Inspect::kVerify).text));
    static_cast<void>(io::inspect_dataset(master, io::Inspect::kDescribe));
  });
  refused_or_read([&] {
    const io::Dataset dataset = io::Dataset::open(master);
    if (dataset.info().tokenizer != io::TokenizerKind::kNone) {
      const io::Tokenizer tokenizer = io::Tokenizer::of(dataset.info());
      static_cast<void>(tokenizer.decode(tokenizer.encode("ab A\n\xf0\x9f\x98\x80")));
    }
  });
  return 0;
}

int run_checkpoint(std::span<const std::byte> bytes) {
  return open_checkpoint(bytes, use);
}

// An index and its shards.
int run_sharded(std::span<const std::byte> bytes) {
  static const Directory kDirectory;
  const fs::path directory = kDirectory.fresh("model");
  return refused_in_one_line_or_read([&] {
    for (const auto& [name, text] : bundle_of(text_of(bytes))) {
      if (io::is_file_name(name) && name.size() <= 100) {
        std::ofstream(directory / name, std::ios::binary) << text;
      }
    }
    read_tensors(io::TensorFiles::open_safetensors(directory));
  });
}

}  // namespace strata::fuzz
