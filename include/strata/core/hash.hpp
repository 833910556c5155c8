#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
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

/// SHA-256 fed piece by piece, by the CPU's instructions for it where it has them. Source: NIST
/// FIPS 180-4, 2015, https://doi.org/10.6028/NIST.FIPS.180-4, computed by OpenSSL's libcrypto.
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  /// The hash of all bytes so far as 64 hexadecimal digits; ends the use of the object.
  [[nodiscard]] std::string finish();

 private:
  struct End {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, End> state_;
};

/// SHA-256 of a text as 64 hexadecimal digits.
[[nodiscard]] std::string sha256_text(std::string_view text);

/// Sums over the elements of tensors, modulo 2^64, of mixed (tensor, index in it, bits), so that
/// they depend neither on how tensors are cut nor on the order. `sum` and `check` together find
/// differences that are not made on purpose. `place` is `sum` with each tensor weighted by a number
/// of its name: where two digests differ in one tensor, it tells which (weighted checksums: K.-H.
/// Huang, J. A. Abraham, IEEE Trans. Comput. C-33, 518, 1984).
struct Digest {
  std::uint64_t sum = 0;
  std::uint64_t check = 0;
  std::uint64_t place = 0;

  Digest& operator+=(const Digest& other);
  friend bool operator==(const Digest&, const Digest&) = default;
};

/// Of elements that follow each other in the tensor `name` from the index `first` on: their bits.
[[nodiscard]] Digest digest_of(std::string_view name, std::int64_t first,
                               std::span<const std::uint32_t> bits);
[[nodiscard]] Digest digest_of(std::string_view name, std::int64_t first,
                               std::span<const std::uint64_t> bits);

/// Whether two digests that differ may do so in this tensor alone.
[[nodiscard]] bool differ_in(std::string_view name, const Digest& left, const Digest& right);

/// As hexadecimal digits, and back. Pre: `text` has as many.
inline constexpr std::size_t kDigestDigits = 48;
[[nodiscard]] std::string digest_text(const Digest& digest);
[[nodiscard]] Digest digest_in(const std::string& text);

/// CRC-32C (Castagnoli) of a byte range, which formats of other programs ask for.
[[nodiscard]] std::uint32_t crc32c_of(std::string_view bytes);

/// A hash as 16 hexadecimal digits, as files hold it.
[[nodiscard]] std::string hash_text(std::uint64_t hash);

}  // namespace strata
