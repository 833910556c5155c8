#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace strata {

/// 64-bit XXH3 of a whole text. Source: xxHash, https://xxhash.com
[[nodiscard]] std::uint64_t hash_of(std::string_view text);

/// 64-bit XXH3 of a byte range.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes);

/// 64-bit XXH3 fed piece by piece; equal to hash_of over the concatenation.
class StreamingHash {
 public:
  StreamingHash();
  ~StreamingHash();
  StreamingHash(const StreamingHash&) = delete;
  StreamingHash& operator=(const StreamingHash&) = delete;
  StreamingHash(StreamingHash&& other) noexcept;
  StreamingHash& operator=(StreamingHash&& other) noexcept;

  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t digest() const;

 private:
  void* state_;
};

/// CRC-32C (Castagnoli) of a byte range, which formats of other programs ask for.
[[nodiscard]] std::uint32_t crc32c_of(std::string_view bytes);

/// A hash as 16 hexadecimal digits, as files hold it.
[[nodiscard]] std::string hash_text(std::uint64_t hash);

}  // namespace strata
