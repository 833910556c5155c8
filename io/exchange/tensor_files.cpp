#include "strata/io/tensor_files.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

#include "exchange/tensor_contents.hpp"
#include "files/manifest.hpp"
#include "files/raw_elements.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;

/// Beside the weights of an export, with their checksums.
constexpr const char* kExportManifest = "weights.manifest";

/// IEEE 754's half precision: 1 bit of sign, 5 of exponent, 10 of fraction.
class Float16 {
 public:
  Float16() = default;
  /// Rounds to nearest, ties to even.
  explicit Float16(float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000U : 0U;
    const float size = std::abs(value);
    if (std::isnan(value)) {
      bits_ = 0x7E00U;
      return;
    }
    constexpr float kOverflow = 65520.0F;  // halfway between the largest number and the next
    if (size >= kOverflow) {
      bits_ = sign | 0x7C00U;
      return;
    }
    // The exponent of the last place: 10 bits below the leading one, and not below 2^-24.
    const int exponent = size == 0.0F ? -14 : std::max(std::ilogb(size), -14);
    const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    // A carry out of the fraction adds to the exponent, which is right.
    bits_ = static_cast<std::uint16_t>(
        sign | (steps + (static_cast<std::uint32_t>(exponent + 14) << 10U)));
  }
  explicit operator float() const {
    const int exponent = (bits_ >> 10U) & 0x1FU;
    const int fraction = bits_ & 0x3FFU;
    float size = 0.0F;
    if (exponent == 0x1F) {
      size = fraction == 0 ? HUGE_VALF : NAN;
    } else if (exponent == 0) {
      size = std::ldexp(static_cast<float>(fraction), -24);
    } else {
      size = std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
    }
    return (bits_ & 0x8000U) != 0 ? -size : size;
  }

 private:
  std::uint16_t bits_ = 0;
};
static_assert(sizeof(Float16) == 2);

/// Calls `function(T{})` with T the C++ type of the elements.
template <typename Function>
decltype(auto) with_stored_type(StoredType type, Function&& function) {
  require(type != StoredType::kOther, "elements of a type that strata only skips");
  switch (type) {
    case StoredType::kFloat64:
      return function(double{});
    case StoredType::kFloat16:
      return function(Float16{});
    case StoredType::kBfloat16:
      return function(BFloat16{});
    default:
      return function(float{});
  }
}

/// Through float32 where one side has 16 bits, as PyTorch converts.
template <typename To, typename From>
To converted(From value) {
  if constexpr (sizeof(To) == 2 || sizeof(From) == 2) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace

std::int64_t size_bytes(StoredType type) {
  return with_stored_type(type, [](auto element) { return std::int64_t{sizeof element}; });
}

void read_elements(const StoredTensor& tensor, std::int64_t begin, const TensorView& out) {
  with_floating(out.dtype(), [&]<typename To>(To) {
    with_stored_type(tensor.type, [&]<typename From>(From) {
      const std::byte* from = tensor.bytes.data() + begin * std::int64_t{sizeof(From)};
      for (To& element : out.host<To>()) {
        element = converted<To>(load<From>(from));
        from += sizeof(From);
      }
    });
  });
}

std::vector<std::byte> stored_bytes(const ConstTensorView& elements, StoredType type) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements.count() * size_bytes(type)));
  with_floating(elements.dtype(), [&]<typename From>(From) {
    with_stored_type(type, [&]<typename To>(To) {
      std::byte* at = bytes.data();
      for (const From element : elements.host<From>()) {
        const To value = converted<To>(element);
        std::memcpy(at, &value, sizeof value);
        at += sizeof value;
      }
    });
  });
  return bytes;
}

void release_pages(std::span<const std::byte> mapped) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(mapped.data());
  const std::uintptr_t before = (page - first % page) % page;  // bytes before the first whole page
  if (before < mapped.size()) {
    // Only a hint.
    static_cast<void>(::madvise(const_cast<std::byte*>(mapped.data()) + before,
                                (mapped.size() - before) / page * page, MADV_DONTNEED));
  }
}

std::uint64_t checksum_of(const StoredTensor& tensor) {
  constexpr std::size_t kPiece = std::size_t{8} << 20U;
  StreamingHash hash;
  for (std::size_t at = 0; at < tensor.bytes.size(); at += kPiece) {
    const auto piece = tensor.bytes.subspan(at, std::min(kPiece, tensor.bytes.size() - at));
    hash.update(piece);
    release_pages(piece);
  }
  return hash.digest();
}

MappedFile map_model_file(const fs::path& path) {
  const std::optional<std::int64_t> bytes = regular_file_bytes(path, ExitCode::kData);
  if (!bytes) {
    fail(ExitCode::kData, "{} does not exist; give the file or directory of a model",
         path.string());
  }
  if (*bytes == 0) {
    fail(ExitCode::kData, "{} is empty; copy it again", path.string());
  }
  const fs::path manifest = path.parent_path() / kExportManifest;
  if (const auto checksums = Manifest::read(manifest, ExitCode::kData)) {
    checksums->check(
        path, ExitCode::kData,
        fmt::format("copy it again, or remove {} if it was changed on purpose", manifest.string()));
  }
  return MappedFile(path);
}

TensorFiles::TensorFiles(Contents contents)
    : files_(std::make_unique<Contents>(std::move(contents))),
      tensors_(std::move(files_->tensors)),
      llmc_(files_->llmc) {}
TensorFiles::~TensorFiles() = default;
TensorFiles::TensorFiles(TensorFiles&&) noexcept = default;

struct TensorFileWriter::File {
  PosixFile file;
  std::int64_t bytes = 0;
  std::int64_t on_their_way = 0;  ///< to the disk
};

TensorFileWriter::TensorFileWriter(const fs::path& path, std::span<const std::byte> header) {
  const FileDescriptor created(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!created.is_open()) {
    fail(ExitCode::kData, "cannot create {}: {}; choose another --output", path.string(),
         std::strerror(errno));
  }
  file_ = std::make_unique<File>(File{PosixFile(path)});
  append(header);
}
TensorFileWriter::~TensorFileWriter() = default;
TensorFileWriter::TensorFileWriter(TensorFileWriter&&) noexcept = default;

void TensorFileWriter::append(std::span<const std::byte> bytes) {
  file_->file.write_at(file_->bytes, bytes);
  file_->bytes += std::ssize(bytes);
  constexpr std::int64_t kPiece = std::int64_t{8} << 20U;
  if (const std::int64_t waiting = file_->bytes - file_->on_their_way; waiting >= kPiece) {
    file_->file.begin_sync(file_->on_their_way, waiting);
    file_->on_their_way = file_->bytes;
  }
}

void TensorFileWriter::finish() {
  file_->file.finish();
}

std::string write_export_manifest(const fs::path& directory, std::span<const std::string> files) {
  std::vector<ManifestEntry> entries;
  for (const std::string& file : files) {
    entries.push_back(manifest_entry_of(directory / file, {}, ExitCode::kData));
  }
  Manifest(std::move(entries)).write(directory / kExportManifest, ExitCode::kData);
  return kExportManifest;
}

void publish_directory(const fs::path& from, const fs::path& to) {
  const auto sync = [](const fs::path& path) {
    const FileDescriptor directory(path, O_RDONLY | O_DIRECTORY);
    return directory.is_open() && ::fsync(directory.get()) == 0;
  };
  if (!sync(from) || ::rename(from.c_str(), to.c_str()) != 0 || !sync(to.parent_path())) {
    fail(ExitCode::kData, "cannot rename {} to {}: {}; choose another --output", from.string(),
         to.string(), std::strerror(errno));
  }
}

}  // namespace strata::io
