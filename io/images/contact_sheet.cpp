#include "strata/io/contact_sheet.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <png.h>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"

#include "files/raw_elements.hpp"
#include "images/image_decoder.hpp"
#include "images/image_transform.hpp"
#include "images/pixel_font.hpp"

namespace strata::io {
namespace {

constexpr std::int64_t kMargin = 4;
constexpr std::int64_t kSmallest = 64;  ///< pixels of an image's shorter side, about
constexpr std::int64_t kLargest = 256;  ///< of its longer one
constexpr std::uint8_t kBackground = 32;
constexpr std::uint8_t kInk = 255;

/// Height and width of the displayed samples.
struct Size {
  std::int64_t height;
  std::int64_t width;
};

/// An input's shape with its channels; a matrix has one. Throws: Error(kData).
Shape image_shape(const DatasetInfo& info) {
  const Shape shape =
      info.input_shape.rank() == 2 ? info.input_shape.prepended(1) : info.input_shape;
  if (info.task == Task::kNextToken || !is_image(shape) || (shape[0] != 1 && shape[0] != 3)) {
    fail(ExitCode::kData,
         "{} holds samples of {}; a contact sheet shows images of one or three channels",
         info.path.string(), shape.text());
  }
  return shape;
}

Size shown_size(const Shape& shape) {
  const std::int64_t shorter = std::min(shape[1], shape[2]);
  const std::int64_t longer = std::max(shape[1], shape[2]);
  const std::int64_t larger =
      std::max<std::int64_t>(1, std::min((kSmallest + shorter - 1) / shorter, kLargest / longer));
  const std::int64_t smaller = (longer + kLargest - 1) / kLargest;
  return {std::max<std::int64_t>(1, shape[1] * larger / smaller),
          std::max<std::int64_t>(1, shape[2] * larger / smaller)};
}

/// A random sample from stratum `index` of `count`: a fixed stride would hit the same few classes
/// where classes alternate.
std::int64_t shown_sample(std::int64_t index, std::int64_t count, std::int64_t samples) {
  const std::int64_t first = index * samples / count;
  const std::int64_t end = (index + 1) * samples / count;
  const RandomStream random(0, RandomPurpose::kSample, subject_of("contact sheet"));
  const double position = random.uniform(static_cast<std::uint64_t>(index));
  return first + static_cast<std::int64_t>(position * static_cast<double>(end - first));
}

/// The bytes of a sample; other types are scaled from black (smallest) to white (largest).
std::vector<std::uint8_t> bytes_of(const Dataset& dataset, std::int64_t sample) {
  const DatasetInfo& info = dataset.info();
  const std::span<const std::byte> stored = dataset.sample_input(sample);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(info.input_shape.count()));
  if (info.input_dtype == DType::kUint8) {
    std::memcpy(bytes.data(), stored.data(), stored.size());
    return bytes;
  }
  std::vector<double> values(bytes.size());
  decode(stored, stored_type(info.input_dtype), DType::kFloat64,
         std::as_writable_bytes(std::span(values)));
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double least = *low;
  const double range = *high > least ? *high - least : 1.0;
  std::transform(values.begin(), values.end(), bytes.begin(), [&](double value) {
    return static_cast<std::uint8_t>(std::lround((value - least) / range * 255.0));
  });
  return bytes;
}

Image image_of(const Dataset& dataset, std::int64_t sample, const Shape& shape) {
  const std::vector<std::uint8_t> bytes = bytes_of(dataset, sample);
  Image image;
  image.resize(shape[1], shape[2]);
  const std::size_t pixels = image.pixels.size() / 3;
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    const std::size_t channel = shape[0] == 3 ? i % 3 : 0;
    image.pixels[i] = bytes[channel * pixels + i / 3];
  }
  return image;
}

/// Class name, or class number, or the first value.
std::string label_of(const Dataset& dataset, std::int64_t sample) {
  const DatasetInfo& info = dataset.info();
  const std::byte* target = dataset.sample_target(sample).data();
  if (info.task == Task::kRegression) {
    return fmt::format("{:.4g}", load<double>(target));
  }
  const auto label = load<std::int64_t>(target);
  const bool named = label >= 0 && label < std::ssize(info.class_names);
  return named ? info.class_names[static_cast<std::size_t>(label)] : std::to_string(label);
}

/// Draws an image, enlarged to `size`, with its top left corner at (top, left). Pre: the size is a
/// multiple of the image's.
void draw(const Image& image, const Size& size, std::int64_t top, std::int64_t left, Image& sheet) {
  for (std::int64_t y = 0; y < size.height; ++y) {
    for (std::int64_t x = 0; x < size.width; ++x) {
      const std::int64_t from =
          y * image.height / size.height * image.width + x * image.width / size.width;
      std::copy_n(image.pixels.begin() + 3 * from, 3,
                  sheet.pixels.begin() + 3 * ((top + y) * sheet.width + left + x));
    }
  }
}

void write_text(const std::string& text, std::int64_t top, std::int64_t left,
                std::int64_t most_pixels, Image& sheet) {
  const auto shown = static_cast<std::size_t>(most_pixels / (kGlyphWidth + 1));
  for (const char character : text.substr(0, shown)) {
    const Glyph glyph = glyph_of(character);
    for (std::int64_t y = 0; y < kGlyphHeight; ++y) {
      for (std::int64_t x = 0; x < kGlyphWidth; ++x) {
        if ((glyph[static_cast<std::size_t>(y)] >> (kGlyphWidth - 1 - x) & 1) != 0) {
          const std::int64_t at = (top + y) * sheet.width + left + x;
          std::fill_n(sheet.pixels.begin() + 3 * at, 3, kInk);
        }
      }
    }
    left += kGlyphWidth + 1;
  }
}

void write_png(const Image& image, const std::filesystem::path& file) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(image.height);
  png.width = static_cast<png_uint_32>(image.width);
  png.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&png, file.c_str(), 0, image.pixels.data(), 0, nullptr) == 0) {
    fail(ExitCode::kUsage, "cannot write the contact sheet {}: {}", file.string(), png.message);
  }
}

}  // namespace

void write_contact_sheet(const Dataset& dataset, const std::filesystem::path& file,
                         std::int64_t samples) {
  require(samples > 0, "a contact sheet of {} samples", samples);
  const Shape shape = image_shape(dataset.info());
  const Size size = shown_size(shape);
  const std::int64_t count = std::min(samples, dataset.info().samples);
  const auto columns = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  const std::int64_t cell_width = std::max(size.width, kSmallest) + kMargin;
  const std::int64_t cell_height = size.height + kGlyphHeight + 3 * kMargin;
  Image sheet;
  sheet.resize((count + columns - 1) / columns * cell_height + kMargin,
               columns * cell_width + kMargin);
  std::fill(sheet.pixels.begin(), sheet.pixels.end(), kBackground);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t sample = shown_sample(i, count, dataset.info().samples);
    dataset.check_input(sample);
    dataset.check_target(sample);
    Image image = image_of(dataset, sample, shape);
    if (size.height < image.height || size.width < image.width) {
      Image smaller;
      resize(image, size.height, size.width, smaller);
      image = std::move(smaller);
    }
    const std::int64_t top = kMargin + i / columns * cell_height;
    const std::int64_t left = kMargin + i % columns * cell_width;
    draw(image, size, top, left, sheet);
    write_text(label_of(dataset, sample), top + size.height + kMargin, left, cell_width, sheet);
  }
  write_png(sheet, file);
}

}  // namespace strata::io
