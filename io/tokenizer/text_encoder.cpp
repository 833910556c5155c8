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

std::size_t BytePairsEncoder::encode(std::string_view text, End end,
                                     std::vector<std::uint32_t>& ids) {
  std::size_t at = 0;
  for (std::size_t bytes = first_word(text, end, pattern_); bytes > 0;
       bytes = first_word(text.substr(at), end, pattern_)) {
    words_.encode(text.substr(at, bytes), ids);
    at += bytes;
  }
  return at;
}

std::size_t SentencePieceEncoder::encode(std::string_view text, End end,
                                         std::vector<std::uint32_t>& ids) {
  std::size_t at = 0;
  for (std::size_t cut = pieces_.cut_of(text); cut != std::string_view::npos;
       cut = pieces_.cut_of(text.substr(at))) {
    pieces_.encode(text.substr(at, cut), ids);
    at += cut + 1;  // the model puts the space before the next piece
  }
  if (end == End::kReached) {
    pieces_.encode(text.substr(at), ids);
    at = text.size();
  }
  return at;
}

MarkersEncoder::MarkersEncoder(std::unique_ptr<TextEncoder> between, std::vector<Marker> markers)
    : between_(std::move(between)), markers_(std::move(markers)) {
  std::ranges::stable_sort(markers_, std::ranges::greater(),
                           [](const Marker& marker) { return marker.text.size(); });
  for (const Marker& marker : markers_) {
    if (first_bytes_.find(marker.text[0]) == std::string::npos) {
      first_bytes_ += marker.text[0];
    }
  }
}

MarkersEncoder::Found MarkersEncoder::find_in(std::string_view text) const {
  for (std::size_t at = text.find_first_of(first_bytes_); at != std::string_view::npos;
       at = text.find_first_of(first_bytes_, at + 1)) {
    for (const Marker& marker : markers_) {
      if (text.substr(at).starts_with(marker.text)) {
        return {at, &marker};
      }
    }
  }
  return {};
}

std::size_t MarkersEncoder::encode(std::string_view text, End end,
                                   std::vector<std::uint32_t>& ids) {
  const std::size_t longest = markers_.empty() ? 1 : markers_.front().text.size();
  std::size_t at = 0;
  while (true) {
    const std::string_view rest = text.substr(at);
    const Found found = find_in(rest);
    if (found.marker == nullptr) {
      // The first bytes of a marker may be at the end of what is there.
      std::size_t sure = rest.size();
      if (end == End::kNotYet) {
        sure -= std::min(sure, longest - 1);
        while (sure > 0 && (static_cast<unsigned char>(rest[sure]) & 0xC0U) == 0x80U) {
          --sure;
        }
      }
      return at + between_->encode(rest.substr(0, sure), end, ids);
    }
    between_->encode(rest.substr(0, found.at), End::kReached, ids);
    at += found.at;
    if (end == End::kNotYet && rest.size() - found.at < longest) {
      return at;  // it may be a longer one
    }
    ids.push_back(found.marker->id);
    at += found.marker->text.size();
  }
}

}  // namespace strata::io
