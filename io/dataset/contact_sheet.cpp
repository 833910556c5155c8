#include "strata/io/contact_sheet.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <png.h>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"
#include "strata/io/text_file.hpp"

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

using Ink = std::array<std::uint8_t, 3>;
constexpr Ink kWhite{255, 255, 255};
constexpr Ink kRed{255, 96, 96};

/// A line of text below an image.
struct Label {
  std::string text;
  Ink ink = kWhite;
};

/// An image of a sheet.
struct Cell {
  std::int64_t sample = 0;
  std::vector<Label> labels;
};

/// An input's shape with its channels; a matrix has one.
Shape image_shape(const DatasetInfo& info) {
  return info.input_shape.rank() == 2 ? info.input_shape.prepended(1) : info.input_shape;
}

ImageSize shown_size(const Shape& shape) {
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
  return dataset.info().task == Task::kRegression
             ? fmt::format("{:.4g}", load<double>(dataset.sample_target(sample).data()))
             : class_text(dataset.info().class_names, dataset.label(sample));
}

/// Draws an image, enlarged to `size`, with its top left corner at (top, left). Pre: the size is a
/// multiple of the image's.
void draw(const Image& image, const ImageSize& size, std::int64_t top, std::int64_t left,
          Image& sheet) {
  for (std::int64_t y = 0; y < size.height; ++y) {
    for (std::int64_t x = 0; x < size.width; ++x) {
      const std::int64_t from =
          y * image.height / size.height * image.width + x * image.width / size.width;
      std::copy_n(image.pixels.begin() + 3 * from, 3,
                  sheet.pixels.begin() + 3 * ((top + y) * sheet.width + left + x));
    }
  }
}

void write_text(const Label& label, std::int64_t top, std::int64_t left, std::int64_t most_pixels,
                Image& sheet) {
  const auto shown = static_cast<std::size_t>(most_pixels / (kGlyphWidth + 1));
  for (const char character : label.text.substr(0, shown)) {
    const Glyph glyph = glyph_of(character);
    for (std::int64_t y = 0; y < kGlyphHeight; ++y) {
      for (std::int64_t x = 0; x < kGlyphWidth; ++x) {
        if ((glyph[static_cast<std::size_t>(y)] >> (kGlyphWidth - 1 - x) & 1) != 0) {
          const std::int64_t at = (top + y) * sheet.width + left + x;
          std::ranges::copy(label.ink, sheet.pixels.begin() + 3 * at);
        }
      }
    }
    left += kGlyphWidth + 1;
  }
}

Picture picture_of(const Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(image.height);
  png.width = static_cast<png_uint_32>(image.width);
  png.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(png);
  Picture picture{.height = image.height, .width = image.width, .png = std::string(bytes, 0)};
  require(png_image_write_to_memory(&png, picture.png.data(), &bytes, 0, image.pixels.data(), 0,
                                    nullptr) != 0,
          "a contact sheet could not be compressed: {}", png.message);
  picture.png.resize(bytes);
  return picture;
}

Picture sheet_of(const Dataset& dataset, const std::vector<Cell>& cells) {
  const Shape shape = image_shape(dataset.info());
  const ImageSize size = shown_size(shape);
  const std::int64_t count = std::ssize(cells);
  const auto columns = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  constexpr std::int64_t kLine = kGlyphHeight + kMargin;
  const std::int64_t cell_width = std::max(size.width, kSmallest) + kMargin;
  const std::int64_t cell_height =
      size.height + std::ssize(cells.front().labels) * kLine + 2 * kMargin;
  Image sheet;
  sheet.resize((count + columns - 1) / columns * cell_height + kMargin,
               columns * cell_width + kMargin);
  std::fill(sheet.pixels.begin(), sheet.pixels.end(), kBackground);
  for (std::int64_t i = 0; i < count; ++i) {
    const Cell& cell = cells[static_cast<std::size_t>(i)];
    Image image = image_of(dataset, cell.sample, shape);
    if (size.height < image.height || size.width < image.width) {
      Image smaller;
      resize(image, size.height, size.width, smaller);
      image = std::move(smaller);
    }
    const std::int64_t left = kMargin + i % columns * cell_width;
    std::int64_t top = kMargin + i / columns * cell_height;
    draw(image, size, top, left, sheet);
    top += size.height + kMargin;
    for (const Label& label : cell.labels) {
      write_text(label, top, left, cell_width, sheet);
      top += kLine;
    }
  }
  return picture_of(sheet);
}

}  // namespace

bool holds_pictures(const DatasetInfo& info) {
  const Shape shape = image_shape(info);
  return info.task != Task::kNextToken && is_image(shape) && (shape[0] == 1 || shape[0] == 3);
}

void write_contact_sheet(const Dataset& dataset, const std::filesystem::path& file,
                         std::int64_t samples) {
  require(samples > 0, "a contact sheet of {} samples", samples);
  const DatasetInfo& info = dataset.info();
  if (!holds_pictures(info)) {
    fail(ExitCode::kData,
         "{} holds samples of {}; a contact sheet shows images of one or three channels",
         info.path.string(), image_shape(info).text());
  }
  const std::int64_t count = std::min(samples, info.samples);
  std::vector<Cell> cells;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t sample = shown_sample(i, count, info.samples);
    cells.push_back({.sample = sample, .labels = {{.text = label_of(dataset, sample)}}});
  }
  const Picture sheet = sheet_of(dataset, cells);
  if (!write_output(file, sheet.png)) {
    fail(ExitCode::kUsage, "cannot write the contact sheet {}: {}", file.string(),
         std::strerror(errno));
  }
}

Picture answers_sheet(const Dataset& dataset, std::span<const std::int64_t> answers) {
  std::vector<Cell> cells;
  for (const std::int64_t answer : answers) {
    const std::int64_t sample = std::ssize(cells);
    const Label given{.text = class_text(dataset.info().class_names, answer),
                      .ink = answer == dataset.label(sample) ? kWhite : kRed};
    cells.push_back({.sample = sample, .labels = {{.text = label_of(dataset, sample)}, given}});
  }
  return sheet_of(dataset, cells);
}

}  // namespace strata::io
