#include "import/megatron_index.hpp"

#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "files/posix_file.hpp"
#include "files/raw_elements.hpp"
#include "files/user_file.hpp"

namespace strata::io {
namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::uint64_t kVersion = 1;
// Magic, version, type, number of sequences, number of document indices.
constexpr std::int64_t kIndexHeaderBytes = 9 + 8 + 1 + 8 + 8;

MegatronIndex type_of(int code, const std::filesystem::path& path) {
  constexpr std::pair<int, MegatronIndex> kTypes[] = {{1, {1, false}}, {2, {1, true}},
                                                      {3, {2, true}},  {4, {4, true}},
                                                      {5, {8, true}},  {8, {2, false}}};
  for (const auto& [own, type] : kTypes) {
    if (own == code) {
      return type;
    }
  }
  fail(ExitCode::kData,
       "{} says that its tokens have the type {}; whole numbers have 1, 2, 3, 4, 5 or 8",
       path.string(), code);
}

// The index's arrays: sizes (int32) and byte offsets (int64) of the sequences, then the first
// sequence of each document (int64).
struct Arrays {
  std::filesystem::path path;
  std::span<const std::byte> bytes;
  std::int64_t sequences = 0;
  std::int64_t documents = 0;

  [[nodiscard]] std::int64_t size(std::int64_t i) const {
    return load<std::int32_t>(bytes.data() + kIndexHeaderBytes + 4 * i);
  }
  [[nodiscard]] std::int64_t offset(std::int64_t i) const {
    return load<std::int64_t>(bytes.data() + kIndexHeaderBytes + 4 * sequences + 8 * i);
  }
  [[nodiscard]] std::int64_t document(std::int64_t i) const {
    return load<std::int64_t>(bytes.data() + kIndexHeaderBytes + 12 * sequences + 8 * i);
  }
};

void check_sequences(const Arrays& arrays, const std::filesystem::path& bin, std::int64_t bin_bytes,
                     std::int64_t id_bytes) {
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < arrays.sequences; ++i) {
    if (arrays.size(i) < 0 || arrays.offset(i) != end) {
      fail(ExitCode::kData,
           "{} has its sequence {} of {} tokens at byte {}; byte {} was expected, where the one "
           "before ends",
           arrays.path.string(), i, arrays.size(i), arrays.offset(i), end);
    }
    end += arrays.size(i) * id_bytes;
  }
  if (end != bin_bytes) {
    fail(ExitCode::kData,
         "{} describes {} bytes of tokens, {} holds {}: they do not belong together",
         arrays.path.string(), count_text(end), bin.string(), count_text(bin_bytes));
  }
}

/// The end of each document that has tokens.
std::vector<std::int64_t> document_ends(const Arrays& arrays) {
  std::vector<std::int64_t> ends;
  std::int64_t tokens = 0;
  for (std::int64_t i = 1, sequence = 0; i < arrays.documents; ++i) {
    const std::int64_t before = tokens;
    for (; sequence < arrays.document(i); ++sequence) {
      tokens += arrays.size(sequence);
    }
    if (tokens > before) {
      ends.push_back(tokens);
    }
  }
  return ends;
}

void check_documents(const Arrays& arrays) {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < arrays.documents; ++i) {
    const std::int64_t first = arrays.document(i);
    const bool at_the_end = i + 1 == arrays.documents;
    if (first < before || (i == 0 && first != 0) || (at_the_end && first != arrays.sequences)) {
      fail(ExitCode::kData,
           "{} lets its document {} begin at sequence {}; they go from 0 to {} in ascending order",
           arrays.path.string(), i, first, arrays.sequences);
    }
    before = first;
  }
}

}  // namespace

std::filesystem::path megatron_bin(const std::filesystem::path& file) {
  std::filesystem::path bin = file;
  if (file.extension() == ".idx") {
    bin.replace_extension(".bin");
  } else if (file.extension() != ".bin") {
    bin += ".bin";
  }
  return bin;
}

MegatronIndex check_megatron_index(const std::filesystem::path& bin, std::int64_t bin_bytes) {
  std::filesystem::path path = bin;
  path.replace_extension(".idx");
  const std::int64_t size = UserFile(path, ExitCode::kData).size_bytes;
  if (size < kIndexHeaderBytes) {
    fail(ExitCode::kData, "{} has {} bytes, fewer than the header of a Megatron index",
         path.string(), size);
  }
  const MappedFile mapped(path);
  const auto bytes = mapped.bytes();
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0 ||
      load<std::uint64_t>(bytes.data() + std::ssize(kMagic)) != kVersion) {
    fail(ExitCode::kData, "{} is no Megatron index of version {}: it does not begin with MMIDIDX",
         path.string(), kVersion);
  }
  MegatronIndex index = type_of(load<std::uint8_t>(bytes.data() + 17), path);
  const Arrays arrays{path, bytes, load<std::int64_t>(bytes.data() + 18),
                      load<std::int64_t>(bytes.data() + 26)};
  const bool possible = arrays.sequences >= 0 && arrays.documents >= 0 &&
                        arrays.sequences <= size / 12 && arrays.documents <= size / 8;
  const std::int64_t expected =
      possible ? kIndexHeaderBytes + 12 * arrays.sequences + 8 * arrays.documents : -1;
  // Multimodal data have one byte per sequence after the arrays.
  if (!possible || (size != expected && size != expected + arrays.sequences)) {
    fail(
        ExitCode::kData,
        "{} has {} bytes, which is not what an index of {} sequences and {} documents takes: it is "
        "damaged; fetch it again",
        path.string(), size, arrays.sequences, arrays.documents);
  }
  check_sequences(arrays, bin, bin_bytes, index.id_bytes);
  check_documents(arrays);
  index.document_ends = document_ends(arrays);
  return index;
}

}  // namespace strata::io
