#include "tokenizer/text_encoder.hpp"

#include <algorithm>

#include "strata/core/utf8.hpp"

namespace strata::io {
namespace {

constexpr std::size_t kBlock = 256;
constexpr std::size_t kCodePoints = 0x110000;

}  // namespace

std::size_t BytesEncoder::encode(std::string_view text, End /*end*/,
                                 std::vector<std::uint32_t>& ids) {
  const std::size_t before = ids.size();
  ids.resize(before + text.size());
  std::transform(text.begin(), text.end(), ids.begin() + static_cast<std::ptrdiff_t>(before),
                 [](char byte) { return static_cast<unsigned char>(byte); });
  return text.size();
}

std::uint32_t GrowingCharsEncoder::id_of(char32_t character) {
  if (blocks_.empty()) {
    blocks_.resize(kCodePoints / kBlock);
  }
  std::vector<std::uint32_t>& block = blocks_[character / kBlock];
  if (block.empty()) {
    block.resize(kBlock);
  }
  std::uint32_t& id_and_one = block[character % kBlock];
  if (id_and_one == 0) {
    characters_.push_back(character);
    id_and_one = static_cast<std::uint32_t>(characters_.size());
  }
  return id_and_one - 1;
}

std::size_t GrowingCharsEncoder::encode(std::string_view text, End /*end*/,
                                        std::vector<std::uint32_t>& ids) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Character character = first_character(text.substr(at));
    ids.push_back(id_of(character.value));
    at += character.bytes;
  }
  return at;
}

std::vector<char32_t> GrowingCharsEncoder::sorted() const {
  std::vector<char32_t> sorted = characters_;
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

std::vector<std::uint32_t> GrowingCharsEncoder::renumbering() const {
  const std::vector<char32_t> order = sorted();
  std::vector<std::uint32_t> renumbering;
  for (const char32_t character : characters_) {
    const auto place = std::lower_bound(order.begin(), order.end(), character);
    renumbering.push_back(static_cast<std::uint32_t>(place - order.begin()));
  }
  return renumbering;
}

std::size_t Gpt2Encoder::encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) {
  std::size_t at = 0;
  for (std::size_t bytes = first_word(text, end); bytes > 0;
       bytes = first_word(text.substr(at), end)) {
    words_.encode(text.substr(at, bytes), ids);
    at += bytes;
  }
  return at;
}

}  // namespace strata::io
