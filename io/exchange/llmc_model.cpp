#include <array>
#include <cstring>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/tensor_files.hpp"

#include "exchange/tensor_contents.hpp"
#include "files/raw_elements.hpp"

namespace strata::io {
namespace {

constexpr std::int32_t kMagic = 20240326;
constexpr std::size_t kHeaderBytes = 256 * sizeof(std::int32_t);

/// In the header after the magic number and the version; the padded vocabulary follows.
constexpr std::array kSizes{&LlmcHeader::positions, &LlmcHeader::vocabulary, &LlmcHeader::blocks,
                            &LlmcHeader::heads, &LlmcHeader::width};
constexpr std::size_t kFirstSize = 2;

}  // namespace

TensorFiles TensorFiles::open_llmc(const std::filesystem::path& path) {
  Contents contents;
  contents.files.push_back(map_model_file(path));
  const std::span<const std::byte> file = contents.files.back().bytes();
  const auto refuse = [&](const std::string& why) {
    fail(ExitCode::kData, "{} is no model file of llm.c that strata reads: {}", path.string(), why);
  };
  if (file.size() < kHeaderBytes) {
    refuse(fmt::format("it has {} bytes, its header alone has {}", file.size(), kHeaderBytes));
  }
  const auto field = [&](std::size_t index) {
    return std::int64_t{load<std::int32_t>(file.data() + index * sizeof(std::int32_t))};
  };
  if (field(0) != kMagic || (field(1) != 3 && field(1) != 5)) {
    refuse(
        fmt::format("it has the magic number {} and version {}, {} and 3 (float32) or 5 "
                    "(bfloat16) were expected",
                    field(0), field(1), kMagic));
  }
  LlmcHeader& header = contents.llmc;
  header.type = field(1) == 3 ? StoredType::kFloat32 : StoredType::kBfloat16;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    header.*kSizes[i] = field(kFirstSize + i);
  }
  const auto [type, positions, vocabulary, blocks, heads, width] = header;
  const std::int64_t padded = field(kFirstSize + kSizes.size());
  constexpr std::int64_t kMostBlocks = 10'000;
  if (positions < 1 || vocabulary < 1 || blocks < 1 || blocks > kMostBlocks || heads < 1 ||
      width < 1 || padded < vocabulary) {
    refuse(
        fmt::format("its header has {} positions, {} token ids padded to {}, {} layers, {} heads "
                    "and a width of {}",
                    positions, vocabulary, padded, blocks, heads, width));
  }
  auto left = file.subspan(kHeaderBytes);
  const auto take = [&, type = type](const std::string& name, const Shape& shape,
                                     const Shape& kept) {
    const std::int64_t bytes = checked_bytes(shape, size_bytes(type));
    if (bytes < 0 || bytes > std::ssize(left)) {
      refuse(fmt::format("it ends at byte {}, within {}: it is truncated", file.size(), name));
    }
    contents.tensors[name] = {
        type, kept, left.first(static_cast<std::size_t>(kept.count() * size_bytes(type)))};
    left = left.subspan(static_cast<std::size_t>(bytes));
  };
  take("transformer.wte.weight", {padded, width}, {vocabulary, width});
  take("transformer.wpe.weight", {positions, width}, {positions, width});
  const std::array<std::pair<const char*, Shape>, 12> layers{
      {{"ln_1.weight", {width}},
       {"ln_1.bias", {width}},
       {"attn.c_attn.weight", {3 * width, width}},
       {"attn.c_attn.bias", {3 * width}},
       {"attn.c_proj.weight", {width, width}},
       {"attn.c_proj.bias", {width}},
       {"ln_2.weight", {width}},
       {"ln_2.bias", {width}},
       {"mlp.c_fc.weight", {4 * width, width}},
       {"mlp.c_fc.bias", {4 * width}},
       {"mlp.c_proj.weight", {width, 4 * width}},
       {"mlp.c_proj.bias", {width}}}};
  for (const auto& [name, shape] : layers) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      take(fmt::format("transformer.h.{}.{}", block, name), shape, shape);
    }
  }
  take("transformer.ln_f.weight", {width}, {width});
  take("transformer.ln_f.bias", {width}, {width});
  if (!left.empty()) {
    refuse(fmt::format("{} bytes follow the last tensor", left.size()));
  }
  return TensorFiles(std::move(contents));
}

TensorFileWriter TensorFileWriter::llmc(const std::filesystem::path& path,
                                        const LlmcHeader& header) {
  std::vector<std::byte> bytes(kHeaderBytes);
  const auto set = [&](std::size_t index, std::int64_t value) {
    const auto field = static_cast<std::int32_t>(value);
    std::memcpy(bytes.data() + index * sizeof field, &field, sizeof field);
  };
  set(0, kMagic);
  set(1, header.type == StoredType::kFloat32 ? 3 : 5);
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    set(kFirstSize + i, header.*kSizes[i]);
  }
  set(kFirstSize + kSizes.size(), header.padded_vocabulary());
  return TensorFileWriter(path, bytes);
}

}  // namespace strata::io
