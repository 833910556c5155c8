#include "files/array_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

namespace strata::io {
namespace {

// Upper bound on elements that keeps sizes in bytes within 64 bits.
constexpr std::int64_t kMostElements = std::int64_t{1} << 56;

void read_header(InputStream& stream, std::span<std::byte> bytes, const char* format) {
  if (stream.read(bytes) != bytes.size()) {
    fail(ExitCode::kData, "{} ends within its {} header", stream.path().string(), format);
  }
}

Shape checked_shape(const std::vector<std::int64_t>& extents, const std::filesystem::path& path) {
  if (extents.empty() || extents.size() > Shape::kMaxRank) {
    fail(ExitCode::kData, "{} has {} dimensions, expected 1 to {} (samples first)", path.string(),
         extents.size(), Shape::kMaxRank);
  }
  std::int64_t elements = 1;
  for (const std::int64_t extent : extents) {
    if (extent < 1 || extent > kMostElements / elements) {
      fail(ExitCode::kData, "{} has the invalid shape {}", path.string(), Shape(extents).text());
    }
    elements *= extent;
  }
  return Shape(extents);
}

RawType idx_type(unsigned code, const std::filesystem::path& path) {
  using enum RawType::Kind;
  constexpr std::pair<unsigned, RawType> kTypes[] = {
      {0x08, {kUnsigned, 1, std::endian::big}}, {0x09, {kSigned, 1, std::endian::big}},
      {0x0B, {kSigned, 2, std::endian::big}},   {0x0C, {kSigned, 4, std::endian::big}},
      {0x0D, {kFloat, 4, std::endian::big}},    {0x0E, {kFloat, 8, std::endian::big}}};
  for (const auto& [own, type] : kTypes) {
    if (own == code) {
      return type;
    }
  }
  fail(ExitCode::kData, "{} is not an IDX file: its magic number names the element type 0x{:02x}",
       path.string(), code);
}

// The text after `'key':` in the dictionary of a .npy header, without leading blanks. The keys may
// stand in double quotes, as numpy.load() reads them.
std::string_view npy_value(std::string_view header, std::string_view key,
                           const std::filesystem::path& path) {
  const std::size_t at =
      std::min(header.find(fmt::format("'{}'", key)), header.find(fmt::format("\"{}\"", key)));
  const std::size_t colon = header.find(':', at);
  if (at == std::string_view::npos || colon == std::string_view::npos) {
    fail(ExitCode::kData, "{} has a .npy header without '{}'", path.string(), key);
  }
  return trimmed(header.substr(colon + 1));
}

// What a descr holds: the text in its quotes, or the list of a structured type.
std::string_view npy_descr(std::string_view value) {
  const std::size_t begin = value.find_first_of("'\"([{");
  if (begin == std::string_view::npos) {
    return {};
  }
  if (value[begin] == '\'' || value[begin] == '"') {
    return value.substr(begin + 1, value.find(value[begin], begin + 1) - begin - 1);
  }
  std::size_t end = begin;
  int depth = 0;
  do {
    const std::string_view bracket = value.substr(end++, 1);
    depth += bracket.find_first_of("([{") == 0 ? 1 : 0;
    depth -= bracket.find_first_of(")]}") == 0 ? 1 : 0;
  } while (depth > 0 && end < value.size());
  return value.substr(begin, end - begin);
}

RawType npy_type(std::string_view descr, const std::filesystem::path& path) {
  using enum RawType::Kind;
  const std::string_view text = npy_descr(descr);
  RawType type;
  std::int64_t bytes = 0;
  const bool has_form = text.size() >= 3 && parse_int64(text.substr(2), bytes);
  const char kind = has_form ? text[1] : '?';
  type.bytes = bytes;
  type.order = has_form && text[0] == '>' ? std::endian::big : std::endian::little;
  type.kind = kind == 'f' ? kFloat : kind == 'i' ? kSigned : kUnsigned;
  const bool whole = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
  const bool known = (kind == 'f' && (bytes == 4 || bytes == 8)) ||
                     ((kind == 'i' || kind == 'u') && whole) || (kind == 'b' && bytes == 1);
  if (!known) {
    fail(
        ExitCode::kData,
        "{} holds elements of NumPy type {}, expected f4, f8, b1, or i or u of 1 to 8 bytes; "
        "convert it with {}",
        path.string(),
        text.starts_with('[') ? printable(text) : fmt::format("'{}'", printable(text)),
        text.starts_with('[') ? "numpy.lib.recfunctions.structured_to_unstructured()" : "astype()");
  }
  return type;
}

std::vector<std::int64_t> npy_shape(std::string_view value, const std::filesystem::path& path) {
  const std::size_t end = value.find(')');
  if (value.empty() || value.front() != '(' || end == std::string_view::npos) {
    fail(ExitCode::kData, "{} has a .npy header whose shape cannot be read", path.string());
  }
  std::vector<std::int64_t> extents;
  for (const std::string& word : split_words(value.substr(1, end - 1), ",")) {
    std::int64_t extent = 0;
    // Python 2 marks long numbers, as in (8L, 3L).
    if (!parse_int64(std::string_view(word).substr(0, word.find_last_not_of('L') + 1), extent)) {
      fail(ExitCode::kData, "{} has a .npy header whose shape cannot be read", path.string());
    }
    extents.push_back(extent);
  }
  return extents;
}

}  // namespace

ArrayFile::ArrayFile(std::unique_ptr<InputStream> stream, const RawType& type, const Shape& shape,
                     std::int64_t header_bytes)
    : stream_(std::move(stream)),
      type_(type),
      shape_(shape),
      bytes_left_(shape.count() * type.bytes) {
  const std::int64_t expected = header_bytes + bytes_left_;
  const std::int64_t size = stream_->known_size();
  if (size >= 0 && size != expected) {
    fail(ExitCode::kData, "{} is {} bytes {}: its header promises {} in {} bytes, it has {}",
         path().string(), size < expected ? expected - size : size - expected,
         size < expected ? "short" : "too long", shape_.text(), expected, size);
  }
}

ArrayFile ArrayFile::open_idx(const std::filesystem::path& path) {
  auto stream = std::make_unique<InputStream>(path);
  std::array<std::byte, 4> magic{};
  read_header(*stream, magic, "IDX");
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0}) {
    fail(ExitCode::kData,
         "{} is not an IDX file: it begins with {:02x} {:02x}, an IDX file with 00 00",
         path.string(), std::to_integer<unsigned>(magic[0]), std::to_integer<unsigned>(magic[1]));
  }
  const RawType type = idx_type(std::to_integer<unsigned>(magic[2]), path);
  const auto rank = std::to_integer<std::size_t>(magic[3]);
  std::vector<std::int64_t> extents(std::min(rank, Shape::kMaxRank + 1));
  for (std::int64_t& extent : extents) {
    std::array<std::byte, 4> bytes{};
    read_header(*stream, bytes, "IDX");
    for (const std::byte byte : bytes) {
      extent = extent << 8 | std::to_integer<std::int64_t>(byte);
    }
  }
  return {std::move(stream), type, checked_shape(extents, path),
          static_cast<std::int64_t>(4 + 4 * rank)};
}

ArrayFile ArrayFile::open_npy(const std::filesystem::path& path) {
  auto stream = std::make_unique<InputStream>(path);
  std::array<std::byte, 8> magic{};
  read_header(*stream, magic, ".npy");
  if (std::memcmp(magic.data(), "\x93NUMPY", 6) != 0) {
    fail(ExitCode::kData, "{} is not a .npy file: it does not begin with \\x93NUMPY",
         path.string());
  }
  const auto version = std::to_integer<int>(magic[6]);
  if (version < 1 || version > 3) {
    fail(ExitCode::kData, "{} has .npy version {}, known are 1 to 3", path.string(), version);
  }
  std::array<std::byte, 4> length_bytes{};
  const std::size_t length_size = version == 1 ? 2 : 4;
  read_header(*stream, std::span(length_bytes).first(length_size), ".npy");
  std::uint32_t length = 0;
  std::memcpy(&length, length_bytes.data(), sizeof length);
  constexpr std::uint32_t kLongestHeader = 1U << 20U;
  if (length > kLongestHeader) {
    fail(ExitCode::kData, "{} has a .npy header of {} bytes, which no array of numbers has",
         path.string(), length);
  }
  std::string header(length, '\0');
  read_header(*stream, std::as_writable_bytes(std::span(header)), ".npy");
  const RawType type = npy_type(npy_value(header, "descr", path), path);
  if (npy_value(header, "fortran_order", path).substr(0, 5) != "False") {
    fail(ExitCode::kData,
         "{} is stored in Fortran order; save it with numpy.ascontiguousarray() first",
         path.string());
  }
  const Shape shape = checked_shape(npy_shape(npy_value(header, "shape", path), path), path);
  return {std::move(stream), type, shape,
          static_cast<std::int64_t>(magic.size() + length_size + length)};
}

void ArrayFile::read(std::span<std::byte> raw) {
  const auto wanted = static_cast<std::int64_t>(raw.size());
  require(wanted <= bytes_left_, "{} bytes of an array with {} left", wanted, bytes_left_);
  const auto count = static_cast<std::int64_t>(stream_->read(raw));
  bytes_left_ -= count;
  if (count != wanted) {
    fail(ExitCode::kData, "{} was cut short: it ends {} bytes before the end of its {} elements",
         path().string(), bytes_left_, shape_.text());
  }
}

void ArrayFile::finish() {
  std::vector<std::byte> buffer(1 << 16);
  while (bytes_left_ > 0) {
    read(std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::int64_t>(bytes_left_, std::ssize(buffer)))));
  }
  if (stream_->read(std::span(buffer).first(1)) != 0) {
    fail(ExitCode::kData, "{} goes on after the {} elements that its header promises",
         path().string(), shape_.text());
  }
}

}  // namespace strata::io
