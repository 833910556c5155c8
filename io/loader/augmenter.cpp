#include "loader/augmenter.hpp"

#include <algorithm>
#include <cstring>

#include "strata/core/error.hpp"

namespace strata::io {
namespace {

// A uniform number in [0, choices) from a random word.
std::int64_t chosen(std::uint32_t word, std::int64_t choices) {
  return static_cast<std::int64_t>(std::uint64_t{word} * static_cast<std::uint64_t>(choices) >>
                                   32U);
}

void set_zero(std::byte* bytes, std::int64_t count) {
  std::memset(bytes, 0, static_cast<std::size_t>(count));
}

}  // namespace

Augmenter::Augmenter(const Augmentation& augmentation, std::uint64_t seed, const Shape& image,
                     DType dtype)
    : augmentation_(augmentation),
      random_(seed, RandomPurpose::kAugment, 0),
      height_(image[0]),
      width_(image[1]),
      pixel_bytes_(image[2] * size_bytes(dtype)) {
  require(augmentation.crop_padding >= 0 && augmentation.cutout >= 0,
          "images are cropped with a padding of {} and {} pixels are cut out",
          augmentation.crop_padding, augmentation.cutout);
}

// Each step uses words of its own, so that enabling one does not change the others.
Augmenter::Choice Augmenter::choice_at(std::int64_t position) const {
  const auto at = static_cast<std::uint64_t>(position);
  const auto words = random_.words(at, 0);
  Choice choice;
  choice.flip = augmentation_.flip == Switch::kOn && chosen(words[0], 2) == 1;
  const std::int64_t padding = augmentation_.crop_padding;
  choice.down = padding - chosen(words[1], 2 * padding + 1);
  choice.right = padding - chosen(words[2], 2 * padding + 1);
  if (augmentation_.cutout > 0) {
    const auto more = random_.words(at, 1);
    choice.top = chosen(more[0], height_) - augmentation_.cutout / 2;
    choice.left = chosen(more[1], width_) - augmentation_.cutout / 2;
  }
  return choice;
}

void Augmenter::move_row(const Choice& choice, const std::byte* in, std::byte* out) const {
  const std::int64_t first = std::clamp<std::int64_t>(choice.right, 0, width_);
  const std::int64_t end = std::clamp<std::int64_t>(width_ + choice.right, 0, width_);
  const std::byte* from = in + (first - choice.right) * pixel_bytes_;
  if (!choice.flip) {
    set_zero(out, first * pixel_bytes_);
    std::memcpy(out + first * pixel_bytes_, from,
                static_cast<std::size_t>(std::max<std::int64_t>(0, end - first) * pixel_bytes_));
    set_zero(out + end * pixel_bytes_, (width_ - end) * pixel_bytes_);
    return;
  }
  set_zero(out, width_ * pixel_bytes_);
  for (std::int64_t x = first; x < end; ++x, from += pixel_bytes_) {
    std::memcpy(out + (width_ - 1 - x) * pixel_bytes_, from,
                static_cast<std::size_t>(pixel_bytes_));
  }
}

void Augmenter::cut_out(const Choice& choice, std::byte* out) const {
  const std::int64_t side = augmentation_.cutout;
  const std::int64_t left = std::max<std::int64_t>(0, choice.left);
  const std::int64_t right = std::min(width_, choice.left + side);
  const std::int64_t bottom = std::min(height_, choice.top + side);
  for (std::int64_t y = std::max<std::int64_t>(0, choice.top); y < bottom; ++y) {
    set_zero(out + (y * width_ + left) * pixel_bytes_,
             std::max<std::int64_t>(0, right - left) * pixel_bytes_);
  }
}

void Augmenter::apply(std::int64_t position, const std::byte* in, std::byte* out) const {
  const Choice choice = choice_at(position);
  const std::int64_t row_bytes = width_ * pixel_bytes_;
  for (std::int64_t y = 0; y < height_; ++y) {
    const std::int64_t from = y - choice.down;
    if (from < 0 || from >= height_) {
      set_zero(out + y * row_bytes, row_bytes);
    } else {
      move_row(choice, in + from * row_bytes, out + y * row_bytes);
    }
  }
  if (augmentation_.cutout > 0) {
    cut_out(choice, out);
  }
}

}  // namespace strata::io
