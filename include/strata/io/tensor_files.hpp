#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"

/// Weights in files of other programs: safetensors and llm.c. Format: docs/models.md.
namespace strata::io {

/// Element types that strata converts. kOther has elements that it only skips.
enum class StoredType { kFloat64, kFloat32, kFloat16, kBfloat16, kOther };

constexpr auto enum_names(StoredType) {
  return names_in_order("float64", "float32", "float16", "bfloat16", "other");
}

/// Size of one element in bytes. Pre: not kOther.
[[nodiscard]] std::int64_t size_bytes(StoredType type);

/// A dense row-major tensor in a mapped file.
struct StoredTensor {
  StoredType type = StoredType::kOther;
  Shape shape;
  std::span<const std::byte> bytes;  ///< little-endian, not necessarily aligned
};

/// Converts elements [begin, begin + out.count()), row-major, to float32 or float64.
/// Pre: the tensor is not kOther and holds these elements; `out` is host memory.
void read_elements(const StoredTensor& tensor, std::int64_t begin, const TensorView& out);

/// XXH3 of the tensor's bytes. Pages of the mapped file leave this process again as it goes on.
[[nodiscard]] std::uint64_t checksum_of(const StoredTensor& tensor);

/// Lets the pages of these bytes leave this process; their next use reads the file again.
void release_pages(std::span<const std::byte> mapped);

/// Converts float32 or float64 elements to bytes of `type`; float16 and bfloat16 round to nearest,
/// ties to even.
[[nodiscard]] std::vector<std::byte> stored_bytes(const ConstTensorView& elements, StoredType type);

/// What a model file of llm.c says about its model.
struct LlmcHeader {
  StoredType type = StoredType::kFloat32;  ///< or bfloat16
  std::int64_t positions = 0;
  std::int64_t vocabulary = 0;
  std::int64_t blocks = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;

  /// llm.c stores the embedding with rows of zeros up to a multiple of 128.
  [[nodiscard]] std::int64_t padded_vocabulary() const { return (vocabulary + 127) / 128 * 128; }
};

/// Tensors by name, in files that are mapped into memory: the system reads what is used.
class TensorFiles {
 public:
  /// One .safetensors file, or the files that the index of a sharded model names; in a directory
  /// model.safetensors or model.safetensors.index.json.
  /// Throws: Error(kData) naming the file, and what is wrong with its header, a shard that is
  /// missing, or a tensor that the index puts elsewhere.
  [[nodiscard]] static TensorFiles open_safetensors(const std::filesystem::path& path);
  /// A model file of llm.c, versions 3 (float32) and 5 (bfloat16), with the names of GPT-2's
  /// published weights and linear layers as outputs x inputs; without the rows that pad the
  /// vocabulary. Throws: Error(kData).
  [[nodiscard]] static TensorFiles open_llmc(const std::filesystem::path& path);

  ~TensorFiles();
  TensorFiles(TensorFiles&&) noexcept;

  [[nodiscard]] const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  /// Of a model file of llm.c.
  [[nodiscard]] const LlmcHeader& llmc() const { return llmc_; }

  /// What the open functions fill.
  struct Contents;

 private:
  explicit TensorFiles(Contents contents);

  std::unique_ptr<Contents> files_;
  std::map<std::string, StoredTensor> tensors_;
  LlmcHeader llmc_;
};

/// A tensor that a file will hold.
struct TensorToStore {
  std::string name;
  StoredType type = StoredType::kFloat32;
  Shape shape;
};

/// Creates a file and writes its tensors in the order given; their bytes follow in pieces.
class TensorFileWriter {
 public:
  /// Throws: Error(kData) where the file exists or cannot be written.
  [[nodiscard]] static TensorFileWriter safetensors(const std::filesystem::path& path,
                                                    std::span<const TensorToStore> tensors);
  /// Tensors follow as open_llmc() reads them, the embedding with its padding.
  [[nodiscard]] static TensorFileWriter llmc(const std::filesystem::path& path,
                                             const LlmcHeader& header);
  ~TensorFileWriter();
  TensorFileWriter(TensorFileWriter&&) noexcept;

  /// Bytes are on their way to the disk while the next ones are made.
  void append(std::span<const std::byte> bytes);
  /// Calls fsync and closes the file.
  void finish();

 private:
  TensorFileWriter(const std::filesystem::path& path, std::span<const std::byte> header);

  struct File;
  std::unique_ptr<File> file_;
};

/// Writes the checksums of weight files of a directory into its weights.manifest, with which the
/// open functions compare them, and returns its name. Throws: Error(kData).
std::string write_export_manifest(const std::filesystem::path& directory,
                                  std::span<const std::string> files);

/// Renames a directory whose files are complete and synced, and syncs both directories.
/// Throws: Error(kData) where `to` exists and is not empty.
void publish_directory(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace strata::io
