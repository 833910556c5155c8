#include <algorithm>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/dataset.hpp"

#include "image_files.hpp"

namespace strata::io::import_images_test {
namespace {

using namespace std::string_literals;

using test::error_of;
using test::image_options;
using test::jpeg;
using test::picture;
using test::png;
using test::TemporaryDirectory;
using test::values_of;
using test::write_image;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::string import_error(const ImportOptions& options, ExitCode code = ExitCode::kData) {
  const std::string message = error_of([&] { import_dataset(options); }, code);
  EXPECT_FALSE(std::filesystem::exists(options.output / "train.h5"));
  return message;
}

// The stored planes as pixels of red, green and blue.
std::vector<std::uint8_t> pixels_of(const Dataset& dataset, std::int64_t sample) {
  const auto planes = values_of<std::uint8_t>(dataset.sample_input(sample));
  std::vector<std::uint8_t> pixels(planes.size());
  const std::size_t count = planes.size() / 3;
  for (std::size_t i = 0; i < planes.size(); ++i) {
    pixels[i % count * 3 + i / count] = planes[i];
  }
  return pixels;
}

std::int64_t label_of(const Dataset& dataset, std::int64_t sample) {
  return values_of<std::int64_t>(dataset.sample_target(sample))[0];
}

int largest_difference(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  EXPECT_EQ(a.size(), b.size());
  int largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(int{a[i]} - int{b[i]}));
  }
  return largest;
}

// One image alone, imported.
std::vector<std::uint8_t> imported(const std::string& file,
                                   const ImageOptions& images = ImageOptions()) {
  const TemporaryDirectory directory;
  write_image(directory / "in/a/x", file);
  ImportOptions options = image_options({directory / "in"}, directory / "out", "1");
  options.images = images;
  const Dataset dataset = Dataset::open(import_dataset(options).train);
  return images.channels == 3 ? pixels_of(dataset, 0)
                              : values_of<std::uint8_t>(dataset.sample_input(0));
}

TEST(ImportImages, TakesEveryClassInTurn) {
  const TemporaryDirectory directory;
  std::int64_t number = 0;
  for (const char* name : {"train/b/2.png", "train/b/1.png", "train/a/9.png", "train/a/1.jpg",
                           "train/a/5.png", "test/b/1.png", "test/a/1.png"}) {
    const bool compressed = std::string(name).ends_with("jpg");
    write_image(directory / name, compressed ? jpeg(6, 8, number) : png(6, 8, number));
    ++number;
  }
  write_image(directory / "train/a/.hidden", "no image");
  write_image(directory / "train/readme.txt", "no class");
  ImportOptions options =
      image_options({directory / "train", directory / "test"}, directory / "out", "5,2");
  const ImportReport report = import_dataset(options);
  const Dataset train = Dataset::open(report.train);
  const Dataset test = Dataset::open(report.test);
  EXPECT_EQ(train.info().input_shape, (Shape{3, 6, 8}));
  EXPECT_THAT(train.info().class_names, ElementsAre("a", "b"));
  EXPECT_EQ(train.info().source, "images: train, test");
  EXPECT_THAT(train.info().mean, SizeIs(3));
  // In train a/1.jpg, b/1.png, a/5.png, b/2.png, a/9.png.
  const std::vector<std::int64_t> numbers{3, 1, 4, 0, 2};
  const std::vector<std::int64_t> labels{0, 1, 0, 1, 0};
  for (std::int64_t i = 0; i < 5; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(label_of(train, i), labels[at]);
    EXPECT_LE(largest_difference(pixels_of(train, i), picture(6, 8, numbers[at])), i == 0 ? 4 : 0);
  }
  EXPECT_EQ(pixels_of(test, 0), picture(6, 8, 6));
  EXPECT_EQ(pixels_of(test, 1), picture(6, 8, 5));
}

TEST(ImportImages, BytesDoNotDependOnTheThreads) {
  const TemporaryDirectory directory;
  for (int i = 0; i < 60; ++i) {
    write_image(directory / ("in/" + std::to_string(i % 3) + "/" + std::to_string(i)),
                jpeg(16, 16 + i % 4, i));
  }
  std::vector<std::string> shards;
  for (const std::int64_t threads : {1, 2, 5}) {
    ImportOptions options =
        image_options({directory / "in"}, directory / ("out" + std::to_string(threads)), "0.8,0.2");
    options.images = {.shorter_side = 12, .crop = 10, .threads = threads};
    const ImportReport report = import_dataset(options);
    EXPECT_EQ(report.train_samples, 48);
    shards.push_back(test::read_file(options.output / "train-00000.h5"));
  }
  EXPECT_EQ(shards[0], shards[1]);
  EXPECT_EQ(shards[0], shards[2]);
}

TEST(ImportImages, ReadsEveryKindOfPixel) {
  const std::vector<std::uint8_t> rgb = picture(5, 7, 2);
  EXPECT_EQ(imported(png(5, 7, 2)), rgb);
  EXPECT_LE(largest_difference(imported(jpeg(5, 7, 2)), rgb), 4);

  std::vector<std::uint8_t> grey;
  std::vector<std::uint8_t> repeated;
  std::vector<std::uint8_t> luma;
  std::vector<std::uint8_t> transparent;
  std::vector<std::uint8_t> on_black;
  for (std::size_t i = 0; i < 35; ++i) {
    grey.push_back(rgb[3 * i]);
    repeated.insert(repeated.end(), 3, rgb[3 * i]);
    const double y = 0.299 * rgb[3 * i] + 0.587 * rgb[3 * i + 1] + 0.114 * rgb[3 * i + 2];
    luma.push_back(static_cast<std::uint8_t>(y + 0.5));
    const auto alpha = static_cast<std::uint8_t>(i * 7);
    for (std::size_t channel = 0; channel < 3; ++channel) {
      transparent.push_back(rgb[3 * i + channel]);
      on_black.push_back(static_cast<std::uint8_t>(rgb[3 * i + channel] * alpha / 255.0 + 0.5));
    }
    transparent.push_back(alpha);
  }
  const ImageOptions one_channel{.channels = 1};
  EXPECT_EQ(imported(png(grey, 5, 7, PNG_FORMAT_GRAY)), repeated);
  EXPECT_EQ(imported(png(grey, 5, 7, PNG_FORMAT_GRAY), one_channel), grey);
  EXPECT_LE(
      largest_difference(imported(jpeg(grey, 5, 7, TJPF_GRAY, TJSAMP_GRAY), one_channel), grey), 4);
  EXPECT_EQ(imported(png(5, 7, 2), one_channel), luma);
  EXPECT_EQ(imported(png(transparent, 5, 7, PNG_FORMAT_RGBA)), on_black);

  const std::vector<std::uint8_t> palette{1, 2, 3, 250, 128, 7};
  const std::vector<std::uint8_t> indices{0, 1, 1, 0, 0, 1};
  EXPECT_THAT(imported(png(indices, 2, 3, PNG_FORMAT_RGB_COLORMAP, palette.data(), 2)),
              ElementsAre(1, 2, 3, 250, 128, 7, 250, 128, 7, 1, 2, 3, 1, 2, 3, 250, 128, 7));
  // Four inks, as what is left of the light: half of it, by black alone.
  const std::vector<std::uint8_t> inks{255, 255, 255, 128};
  std::vector<std::uint8_t> flat;
  for (int i = 0; i < 64; ++i) {
    flat.insert(flat.end(), inks.begin(), inks.end());
  }
  const auto half = imported(jpeg(flat, 8, 8, TJPF_CMYK));
  EXPECT_LE(largest_difference(half, std::vector<std::uint8_t>(192, 128)), 2);
}

std::string with_chunk(const std::string& png, const std::string& name, const std::string& data) {
  const auto number = [](std::size_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes += static_cast<char>(value >> shift);
    }
    return bytes;
  };
  const std::string body = name + data;
  const uLong checksum =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  constexpr std::size_t kAfterHeader = 33;
  return png.substr(0, kAfterHeader) + number(data.size()) + body + number(checksum) +
         png.substr(kAfterHeader);
}

// A PNG file without the sRGB chunk that libpng writes, beside which it ignores others.
std::string without_srgb(std::string png) {
  constexpr std::size_t kAfterHeader = 33;
  EXPECT_EQ(png.substr(kAfterHeader + 4, 4), "sRGB");
  return png.erase(kAfterHeader, 13);
}

// The eight orientations as CIPA DC-008 draws them, of blocks of 8 x 8 pixels.
TEST(ImportImages, AJpegIsTurnedAsItsExifDataSay) {
  constexpr std::string_view kStored = "ABC/DEF";
  const auto blocks_of = [](const std::vector<std::uint8_t>& pixels, std::int64_t rows,
                            std::int64_t columns) {
    std::string text;
    for (std::int64_t row = 0; row < rows; ++row) {
      text += row > 0 ? "/" : "";
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t at = ((8 * row + 4) * 8 * columns + 8 * column + 4) * 3;
        text += static_cast<char>('A' + (pixels[static_cast<std::size_t>(at)] + 20) / 40 - 1);
      }
    }
    return text;
  };
  std::vector<std::uint8_t> pixels;
  for (std::int64_t y = 0; y < 16; ++y) {
    for (std::int64_t x = 0; x < 24; ++x) {
      pixels.insert(pixels.end(), 3, static_cast<std::uint8_t>(40 * (1 + y / 8 * 3 + x / 8)));
    }
  }
  const std::string file = jpeg(pixels, 16, 24);
  EXPECT_EQ(blocks_of(imported(file), 2, 3), kStored);
  const std::vector<std::string> shown{"ABC/DEF",  "CBA/FED",  "FED/CBA",  "DEF/ABC",
                                       "AD/BE/CF", "DA/EB/FC", "FC/EB/DA", "CF/BE/AD"};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    for (const char order : {'I', 'M'}) {
      const std::string& expected = shown[static_cast<std::size_t>(orientation - 1)];
      EXPECT_EQ(blocks_of(imported(test::with_orientation(file, orientation, order)),
                          orientation > 4 ? 3 : 2, orientation > 4 ? 2 : 3),
                expected)
          << order;
    }
  }
  // Sizes are those of what is shown.
  EXPECT_EQ(imported(test::with_orientation(file, 6, 'M'), {.height = 3, .width = 2}).size(), 18U);
  EXPECT_EQ(blocks_of(imported(test::with_orientation(file, 9, 'I')), 2, 3), kStored);
}

TEST(ImportImages, PixelsAreTheBytesOfAPngWhateverItSaysOfColours) {
  const std::vector<std::uint8_t> rgb = picture(5, 7, 2);
  const std::vector<std::uint8_t> grey(rgb.begin(), rgb.begin() + 35);
  const std::vector<std::uint8_t> transparent(rgb.begin(), rgb.begin() + 100);
  const std::vector<std::uint8_t> palette{1, 2, 3, 250, 128, 7};
  const std::vector<std::uint8_t> indices{0, 1, 1, 0, 0, 1};
  const std::string plain_grey = without_srgb(png(grey, 5, 7, PNG_FORMAT_GRAY));
  const std::vector<std::string> files{
      without_srgb(png(5, 7, 2)), plain_grey, without_srgb(png(transparent, 5, 5, PNG_FORMAT_RGBA)),
      without_srgb(png(indices, 2, 3, PNG_FORMAT_RGB_COLORMAP, palette.data(), 2)),
      with_chunk(plain_grey, "tRNS", {'\0', static_cast<char>(grey[3])})};
  // Gammas of 1, 1/1.8 and 1/4.4; chromaticities of red, green and blue in turn; Display P3.
  const std::vector<std::pair<const char*, std::string>> chunks{
      {"gAMA", "\0\x01\x86\xa0"s},
      {"gAMA", "\0\0\xd9\x04"s},
      {"gAMA", "\0\0\x58\xc7"s},
      {"sRGB", "\0"s},
      {"cHRM",
       "\0\0\x7a\x26\0\0\x80\x84\0\0\x75\x30\0\0\xea\x60\0\0\x3a\x98\0\0\x17\x70\0\0\xfa\0\0\0\x80"
       "\xe8"s},
      {"cICP", "\x0c\x0d\0\x01"s},
      {"iCCP", "profile\0\0rubbish"s},
      {"bKGD", "\0\xff\0\xff\0\xff"s},
      {"sBIT", "\4\4\4"}};
  EXPECT_EQ(imported(files[0]), rgb);
  for (const std::string& file : files) {
    const std::vector<std::uint8_t> pixels = imported(file);
    for (const auto& [name, data] : chunks) {
      EXPECT_EQ(imported(with_chunk(file, name, data)), pixels) << name;
    }
  }
  const auto opaque = imported(plain_grey);
  const auto keyed = imported(files.back());
  for (std::size_t i = 0; i < opaque.size(); ++i) {
    EXPECT_EQ(keyed[i], opaque[i] == grey[3] ? 0 : opaque[i]);
  }
}

TEST(ImportImages, ResizesAndCrops) {
  // A slope stays a slope, away from its ends, and a flat image flat.
  std::vector<std::uint8_t> slope;
  for (int i = 0; i < 8 * 40; ++i) {
    slope.insert(slope.end(), 3, static_cast<std::uint8_t>(i % 40 * 6));
  }
  const auto narrow = imported(png(slope, 8, 40, PNG_FORMAT_RGB), {.height = 8, .width = 20});
  ASSERT_EQ(narrow.size(), 8U * 20 * 3);
  for (std::size_t x = 1; x < 19; ++x) {
    EXPECT_NEAR(narrow[3 * x], 12.0 * static_cast<double>(x) + 3.0, 1.0) << x;
  }
  const auto wide = imported(png(slope, 8, 40, PNG_FORMAT_RGB), {.height = 16, .width = 80});
  for (std::size_t x = 1; x < 79; ++x) {
    EXPECT_NEAR(wide[3 * x], 3.0 * static_cast<double>(x) - 1.5, 1.0) << x;
  }
  const std::vector<std::uint8_t> flat(33 * 47 * 3, 201);
  EXPECT_THAT(imported(png(flat, 33, 47, PNG_FORMAT_RGB), {.height = 13, .width = 60}),
              ::testing::Each(201));
  // 20 x 30 by its shorter side is 10 x 15.
  EXPECT_THAT(imported(png(20, 30, 1), {.shorter_side = 10}), SizeIs(10 * 15 * 3));
  // The centre of 9 x 12 pixels: rows 2 to 6, columns 3 to 7.
  const auto centre = imported(png(9, 12, 1), {.crop = 5});
  const auto whole = picture(9, 12, 1);
  ASSERT_EQ(centre.size(), 75U);
  for (std::size_t i = 0; i < 75; ++i) {
    EXPECT_EQ(centre[i], whole[((2 + i / 15) * 12 + 3) * 3 + i % 15]);
  }
}

// A directory with two good images of 6 x 8, and then bad ones of every kind.
void write_bad_files(const TemporaryDirectory& directory) {
  write_image(directory / "in/a/0.jpg", jpeg(6, 8, 0));
  write_image(directory / "in/b/0.png", png(6, 8, 1));
  const std::string good = jpeg(6, 8, 2);
  write_image(directory / "in/a/1-cut.jpg", good.substr(0, good.size() - 40));
  write_image(directory / "in/a/2-cut.png", png(6, 8, 2).substr(0, 90));
  write_image(directory / "in/a/3-deep.png",
              png(std::vector<std::uint16_t>(6 * 8 * 3, 1000), 6, 8, PNG_FORMAT_LINEAR_RGB));
  write_image(directory / "in/a/4-text.jpg", "not an image at all");
  write_image(directory / "in/a/5-empty.png", "");
  write_image(directory / "in/a/6-large.png", png(7, 8, 2));
  std::string damaged = png(6, 8, 2);
  damaged[damaged.size() - 30] = static_cast<char>(damaged[damaged.size() - 30] ^ 1);
  write_image(directory / "in/a/7-damaged.png", damaged);
}

TEST(ImportImages, NamesAllBadFiles) {
  const TemporaryDirectory directory;
  write_bad_files(directory);
  const ImportOptions options = image_options({directory / "in"}, directory / "out", "1.0");
  EXPECT_THAT(
      import_error(options),
      AllOf(HasSubstr("7 of 9 files"), HasSubstr("--skip-bad"),
            HasSubstr("1-cut.jpg is a damaged JPEG file or cut short"),
            HasSubstr("2-cut.png is a PNG file that was cut short"),
            HasSubstr("3-deep.png is a PNG file of 16 bits"),
            HasSubstr("4-text.jpg is no JPEG or PNG file"), HasSubstr("5-empty.png is empty"),
            AllOf(HasSubstr("6-large.png becomes 7 x 8 (height x width) but"),
                  HasSubstr("0.jpg becomes 6 x 8"), HasSubstr("--resize=HxW")),
            HasSubstr("7-damaged.png is a damaged PNG")));
}

TEST(ImportImages, ShowsTwentyBadFilesAndCountsTheRest) {
  const TemporaryDirectory directory;
  write_image(directory / "in/a/good", png(4, 4, 0));
  for (int i = 10; i < 43; ++i) {
    write_image(directory / ("in/b/" + std::to_string(i)), "x");
  }
  const std::string message =
      import_error(image_options({directory / "in"}, directory / "out", "1.0"));
  EXPECT_THAT(message, AllOf(HasSubstr("33 of 34 files"), HasSubstr("/29 is no"),
                             Not(HasSubstr("/30 is no")), HasSubstr("... and 13 more")));
  std::filesystem::remove(directory / "in/a/good");
  write_image(directory / "in/a/bad", "x");
  EXPECT_THAT(import_error(image_options({directory / "in"}, directory / "out", "1.0")),
              HasSubstr("34 of 34 files"));
}

// A PNG or JPEG file whose header says that it is of another size.
std::string claiming(std::string file, std::uint32_t height, std::uint32_t width) {
  const auto put = [&](std::size_t at, std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      file[at + static_cast<std::size_t>(i)] = static_cast<char>(value >> 8 * (bytes - 1 - i));
    }
  };
  if (file.starts_with("\x89PNG")) {
    put(16, width, 4);
    put(20, height, 4);
    const auto* chunk = reinterpret_cast<const Bytef*>(file.data() + 12);
    put(29, static_cast<std::uint32_t>(crc32(0, chunk, 17)), 4);
  } else {
    const std::size_t frame = file.find("\xff\xc0");
    put(frame + 5, height, 2);
    put(frame + 7, width, 2);
  }
  return file;
}

TEST(ImportImages, TooManyPixelsAreRefusedBeforeDecoding) {
  for (const std::string& file : {png(8, 8, 0), jpeg(8, 8, 0)}) {
    const TemporaryDirectory directory;
    write_image(directory / "in/a/0", png(8, 8, 0));
    write_image(directory / "in/a/1", claiming(file, 1U << 13U, (1U << 13U) + 1));
    ImportOptions options = image_options({directory / "in"}, directory / "out", "1.0");
    const std::string limit = "is 8192 x 8193 (height x width); images of 1 to 67,108,864 pixels";
    EXPECT_THAT(import_error(options), HasSubstr(limit));
    options.images.bad_files = BadFiles::kSkip;
    EXPECT_THAT(import_dataset(options).skipped, testing::ElementsAre(HasSubstr(limit)));
    // The largest allowed size is only cut short.
    write_image(directory / "in/a/1", claiming(file, 1U << 13U, 1U << 13U));
    options.existing = Existing::kReplace;
    EXPECT_THAT(import_dataset(options).skipped, testing::ElementsAre(HasSubstr("cut short")));
  }
}

TEST(ImportImages, LargeOnesGiveTheSamePixels) {
  const TemporaryDirectory directory;
  // 2^24 pixels are the most that threads decode at the same time.
  write_image(directory / "in/a/0", claiming(png(4, 4, 0), 4, 4));
  const std::vector<std::uint8_t> grey((std::size_t{1} << 24) + 4096, 77);
  write_image(directory / "in/a/1", png(grey, 4097, 4096, PNG_FORMAT_GRAY));
  write_image(directory / "in/b/2", png(grey, 4097, 4096, PNG_FORMAT_GRAY));
  ImportOptions options = image_options({directory / "in"}, directory / "out", "1.0");
  options.images.height = options.images.width = 4;
  options.images.threads = 3;
  const Dataset train = Dataset::open(import_dataset(options).train);
  EXPECT_EQ(train.info().samples, 3);
  EXPECT_THAT(values_of<std::uint8_t>(train.sample_input(2)), testing::Each(77));
}

TEST(ImportImages, LeavesBadFilesOutWhenAsked) {
  const TemporaryDirectory directory;
  write_bad_files(directory);
  ImportOptions options = image_options({directory / "in"}, directory / "out", "0.5,0.5");
  options.images.bad_files = BadFiles::kSkip;
  options.images.threads = 3;
  std::int64_t checked = 0;
  const ImportReport report =
      import_dataset(options, {}, [&](std::int64_t done, std::int64_t) { checked = done; });
  EXPECT_EQ(checked, 9);
  EXPECT_EQ(report.train_samples, 1);
  EXPECT_EQ(report.test_samples, 1);
  ASSERT_THAT(report.skipped, SizeIs(7));
  EXPECT_THAT(report.skipped[0], HasSubstr("1-cut.jpg is a damaged"));
  EXPECT_THAT(report.skipped[6], HasSubstr("7-damaged.png"));
  EXPECT_EQ(pixels_of(Dataset::open(report.test), 0), picture(6, 8, 1));
}

TEST(ImportImages, RefusesFoldersThatAreNoClasses) {
  const TemporaryDirectory directory;
  const auto error = [&](const std::vector<std::filesystem::path>& inputs) {
    return import_error(image_options(inputs, directory / "out", "1.0"));
  };
  EXPECT_THAT(error({directory / "none"}), HasSubstr("cannot list the directory"));
  write_image(directory / "flat/x.png", png(4, 4, 0));
  EXPECT_THAT(error({directory / "flat"}), HasSubstr("flat has no folders"));
  write_image(directory / "one/a/x.png", png(4, 4, 0));
  std::filesystem::create_directories(directory / "one/b");
  EXPECT_THAT(error({directory / "one"}),
              AllOf(HasSubstr("the class folder"), HasSubstr("one/b is empty")));
  write_image(directory / "one/b/x.png", png(4, 4, 0));
  write_image(directory / "two/a/x.png", png(4, 4, 0));
  EXPECT_THAT(error({directory / "one", directory / "two"}),
              AllOf(HasSubstr("one has a folder for the class b"), HasSubstr("two has none")));
  EXPECT_THAT(error({directory / "two", directory / "one"}),
              AllOf(HasSubstr("one has a folder for the class b"), HasSubstr("two has none")));
  EXPECT_THAT(import_error(image_options({directory / "two"}, directory / "two/out", "1.0"),
                           ExitCode::kUsage),
              HasSubstr("two/out would be written among the files of"));
  write_image(directory / "latin/caf\xe9/x.png", png(4, 4, 0));
  EXPECT_THAT(error({directory / "latin"}),
              HasSubstr("latin/caf\\xe9 is not UTF-8 text; rename it"));
  write_image(directory / "two/a/deep/x.png", png(4, 4, 0));
  EXPECT_THAT(error({directory / "two"}),
              AllOf(HasSubstr("a/deep is a folder"), HasSubstr("images of the class a")));
}

TEST(ImportImages, RefusesACropThatIsTooLarge) {
  const TemporaryDirectory directory;
  write_image(directory / "in/a/x.png", png(8, 6, 0));
  ImportOptions options = image_options({directory / "in"}, directory / "out", "1");
  options.images.crop = 7;
  EXPECT_THAT(import_error(options),
              AllOf(HasSubstr("x.png is 8 x 6"), HasSubstr("--crop=7; give --resize=7 too")));
}

TEST(ImportImages, RefusesACropThatIsLargerThanWhatResizingMakes) {
  const TemporaryDirectory directory;
  const auto error = [&](const ImageOptions& images) {
    // Before files are looked for: there are none.
    ImportOptions options = image_options({directory / "none"}, directory / "out", "1");
    options.images = images;
    return import_error(options, ExitCode::kUsage);
  };
  EXPECT_THAT(error({.shorter_side = 128, .crop = 224}),
              AllOf(HasSubstr("--crop is 224, but --resize=128 makes the shorter side 128 pixels"),
                    HasSubstr("at most 128, or a larger --resize")));
  EXPECT_THAT(error({.height = 300, .width = 9, .crop = 10}),
              AllOf(HasSubstr("--resize=300x9 makes the shorter side 9"), HasSubstr("at most 9")));
  EXPECT_THAT(error({.height = 9, .width = 300, .crop = 10}), HasSubstr("--resize=9x300 makes"));
  // As large as the shorter side is no error.
  EXPECT_EQ(imported(png(9, 12, 1), {.shorter_side = 5, .crop = 5}).size(), 75U);
}

}  // namespace
}  // namespace strata::io::import_images_test
