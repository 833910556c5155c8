#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "strata/io/tensor_files.hpp"

/// The readers of users' files as functions of bytes, for fuzzers and for a replay of their corpus.
namespace strata::fuzz {

/// A reader. Returns 0 where the bytes are read and where strata refuses them; any other exception
/// escapes.
struct Target {
  const char* name;
  int (*run)(std::span<const std::byte>);
  /// Places of a file at which a replay cuts and changes it.
  std::size_t places = 600;
  /// The most bytes of memory that a reader takes for each byte of its file; 0: not limited.
  std::size_t memory_per_byte = 0;
};

int run_config(std::span<const std::byte> bytes);
int run_plan(std::span<const std::byte> bytes);
int run_schedule(std::span<const std::byte> bytes);
int run_site(std::span<const std::byte> bytes);
int run_csv(std::span<const std::byte> bytes);
int run_json_lines(std::span<const std::byte> bytes);
int run_compressed(std::span<const std::byte> bytes);
int run_image(std::span<const std::byte> bytes);
int run_tokenizer(std::span<const std::byte> bytes);
int run_tokenizer_file(std::span<const std::byte> bytes);
int run_array(std::span<const std::byte> bytes);
int run_record(std::span<const std::byte> bytes);
int run_text(std::span<const std::byte> bytes);
int run_dataset(std::span<const std::byte> bytes);
int run_checkpoint(std::span<const std::byte> bytes);
int run_safetensors(std::span<const std::byte> bytes);
/// What a run that continues a checkpoint reads of it.
int run_continued(std::span<const std::byte> bytes);
int run_sharded(std::span<const std::byte> bytes);
int run_llmc(std::span<const std::byte> bytes);
int run_huggingface(std::span<const std::byte> bytes);

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Reads what can be read of a model's tensors.
void read_tensors(const io::TensorFiles& files);

/// Readers of io.
inline constexpr Target kReaders[] = {{"csv", run_csv},
                                      {"json_lines", run_json_lines},
                                      {"compressed", run_compressed},
                                      {"image", run_image},
                                      {"tokenizer", run_tokenizer},
                                      {"tokenizer_json", run_tokenizer_file, 150, 100},
                                      {"ranks", run_tokenizer_file, 150, 100},
                                      {"sentencepiece", run_tokenizer_file, 50, 100},
                                      {"array", run_array},
                                      {"record", run_record},
                                      {"text", run_text},
                                      {"dataset", run_dataset, 60},
                                      {"checkpoint", run_checkpoint, 200},
                                      {"safetensors", run_safetensors, 600, 100},
                                      {"sharded", run_sharded, 200, 100},
                                      {"llmc", run_llmc, 600, 100}};

/// Readers of the rooms above io.
inline constexpr Target kSettings[] = {{"config", run_config},
                                       {"plan", run_plan},
                                       {"schedule", run_schedule},
                                       {"site", run_site},
                                       {"checkpoint", run_continued, 50},
                                       {"huggingface", run_huggingface, 100, 100}};

}  // namespace strata::fuzz
