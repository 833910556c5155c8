#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <mutex>
#include <numeric>
#include <thread>

#include "strata/core/blocked_signals.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "files/user_file.hpp"
#include "images/image_decoder.hpp"
#include "images/image_folders.hpp"
#include "images/image_transform.hpp"
#include "import/sample_source.hpp"

namespace strata::io {
namespace {

constexpr std::size_t kShownFiles = 20;

// Images with more pixels than this are decoded one at a time, so that the memory of all threads
// together stays bounded.
constexpr std::int64_t kLargePixels = std::int64_t{1} << 24;

// Upper bound on the pixels of a resized image, exceeded by very narrow images only.
constexpr std::int64_t kMostResized = ImageDecoder::kMostPixels;

constexpr std::int64_t kMostFileBytes = std::int64_t{256} << 20;

/// A file that cannot be imported.
struct BadFile {
  std::int64_t file;
  std::string text;  ///< its name and the reason
};

/// Reads a whole file into `bytes`. Throws: BadInput.
void read_whole(const std::filesystem::path& path, std::vector<std::byte>& bytes) {
  const UserFile file(path);
  if (file.size_bytes > kMostFileBytes) {
    throw BadInput(fmt::format("has {}, too many for an image: at most {} are read",
                               bytes_text(file.size_bytes), bytes_text(kMostFileBytes)));
  }
  bytes.resize(static_cast<std::size_t>(file.size_bytes));
  bytes.resize(file.read(bytes));
}

/// Buffers of one decoder thread.
struct Worker {
  ImageDecoder decoder;
  std::vector<std::byte> bytes;
  Image image;
  Image resized;

  void release_buffers() {
    decoder.release_buffers();
    bytes = {};
    image = {};
    resized = {};
  }
};

/// Images in folders, decoded by several threads in a fixed order.
class ImageSource final : public SampleSource {
 public:
  ImageSource(const ImportOptions& options, const SampleProgress& checking);

  void next(std::int64_t count, SampleBatch& batch) override;
  [[nodiscard]] std::vector<std::int32_t> labels() override;
  [[nodiscard]] bool choose(std::vector<std::int64_t> samples) override;
  /// Images in no split are not read: no other sample depends on them.
  void finish() override { refuse_bad(); }
  [[nodiscard]] std::vector<std::string> skipped() const override { return skipped_; }

 private:
  /// Calls `use` with the decoded and resized image.
  void with_image(Worker& worker, const std::filesystem::path& path,
                  const std::function<void(const Image&)>& use);
  /// The size after resizing. Throws: BadImage for one that is too large.
  [[nodiscard]] ImageSize resized_size(const ImageSize& size) const;
  void load(Worker& worker, const ImageSize& resized) const;
  void check_size(const Image& image) const;
  void find_size();
  /// Takes samples for a model.
  void take_layout(const DatasetInfo& model);
  void find_bad(const SampleProgress& checking);
  /// Decodes the good files [first, first + count) and calls `use` with each image and its index in
  /// that range; records bad files.
  void decode(std::int64_t first, std::int64_t count,
              const std::function<void(const Image&, std::int64_t)>& use);
  void work(Worker& worker, std::int64_t first, std::int64_t count,
            std::atomic<std::int64_t>& next_file,
            const std::function<void(const Image&, std::int64_t)>& use);
  void refuse_bad();

  ImageOptions options_;
  ImageFolders folders_;
  std::vector<std::int64_t> good_;  ///< indices of files to import, in order
  std::string sized_by_;            ///< the file that sets the required size
  std::vector<std::string> skipped_;
  std::int64_t at_ = 0;  ///< next index in good_
  std::vector<Worker> workers_;
  std::mutex mutex_;
  std::vector<BadFile> bad_;  ///< guarded by mutex_
  std::mutex large_image_;
};

ImageSource::ImageSource(const ImportOptions& options, const SampleProgress& checking)
    : options_(options.images),
      folders_(options.model == nullptr ? ImageFolders(options.inputs)
                                        : ImageFolders::without_classes(options.inputs)),
      good_(static_cast<std::size_t>(folders_.files())),
      workers_(static_cast<std::size_t>(std::max<std::int64_t>(1, options.images.threads))) {
  std::iota(good_.begin(), good_.end(), 0);
  for (const std::filesystem::path& path : options.inputs) {
    // A path may end in a slash, or be a dot.
    const std::filesystem::path whole = (std::filesystem::absolute(path) / "").lexically_normal();
    info_.source += fmt::format("{}{}", info_.source.empty() ? "" : ", ",
                                whole.parent_path().filename().string());
  }
  if (options.model == nullptr) {
    info_.class_names = folders_.classes();
    find_size();
  } else {
    take_layout(*options.model);
  }
  if (options_.bad_files == BadFiles::kSkip) {
    find_bad(checking);
  }
  info_.samples = std::ssize(good_);
  ends_.resize(options.inputs.size());
  for (const std::int64_t file : good_) {
    ++ends_[folders_.directory_of(file)];
  }
  std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
  if (options.model != nullptr) {
    std::ranges::transform(good_, std::back_inserter(ids_),
                           [&](std::int64_t file) { return folders_.path(file).string(); });
  }
}

void ImageSource::take_layout(const DatasetInfo& model) {
  const std::string source = info_.source;
  info_ = model_layout(model);
  info_.source = source;
  const Shape& shape = info_.input_shape;
  if (!is_image(shape) || info_.input_dtype != DType::kUint8 || (shape[0] != 1 && shape[0] != 3)) {
    fail(ExitCode::kData, "the model takes samples of {} ({}), which are no pictures", shape.text(),
         name_of(info_.input_dtype));
  }
  options_.channels = shape[0];
  sized_by_ = "an image of the training data";
}

std::vector<std::int32_t> ImageSource::labels() {
  std::vector<std::int32_t> labels;
  labels.reserve(good_.size());
  for (const std::int64_t file : good_) {
    labels.push_back(static_cast<std::int32_t>(folders_.class_of(file)));
  }
  return labels;
}

bool ImageSource::choose(std::vector<std::int64_t> samples) {
  for (std::int64_t& sample : samples) {
    sample = good_[static_cast<std::size_t>(sample)];
  }
  good_ = std::move(samples);
  return true;
}

ImageSize ImageSource::resized_size(const ImageSize& size) const {
  ImageSize resized = size;
  if (options_.shorter_side > 0) {
    const std::int64_t shorter = std::min(size.height, size.width);
    resized = {size.height * options_.shorter_side / shorter,
               size.width * options_.shorter_side / shorter};
  } else if (options_.height > 0) {
    resized = {options_.height, options_.width};
  }
  // Between the two passes of resizing, an image has its old height and its new width.
  if (resized.width > kMostResized / std::max(resized.height, size.height)) {
    throw BadImage(fmt::format("is {} x {} (height x width), of which resizing would make {} x {}",
                               size.height, size.width, resized.height, resized.width));
  }
  return resized;
}

void ImageSource::with_image(Worker& worker, const std::filesystem::path& path,
                             const std::function<void(const Image&)>& use) {
  read_whole(path, worker.bytes);
  const ImageSize size = worker.decoder.size_of(worker.bytes);
  const ImageSize resized = resized_size(size);
  if (std::max({size.pixels(), resized.pixels(), size.height * resized.width}) <= kLargePixels) {
    load(worker, resized);
    return use(worker.image);
  }
  const std::scoped_lock one_at_a_time(large_image_);
  struct Release {
    Worker& worker;
    ~Release() { worker.release_buffers(); }
  } const release{worker};
  load(worker, resized);
  use(worker.image);
}

void ImageSource::load(Worker& worker, const ImageSize& resized) const {
  Image& image = worker.image;
  worker.decoder.decode(worker.bytes, image);
  if (resized.height != image.height || resized.width != image.width) {
    resize(image, resized.height, resized.width, worker.resized);
    std::swap(image, worker.resized);
  }
  if (options_.crop > 0) {
    if (image.height < options_.crop || image.width < options_.crop) {
      throw BadImage(
          fmt::format("is {} x {} (height x width), too small for --crop={}; give --resize={} too",
                      image.height, image.width, options_.crop, options_.crop));
    }
    crop_centre(image, options_.crop, options_.crop);
  }
}

void ImageSource::check_size(const Image& image) const {
  const Shape& shape = info_.input_shape;
  if (image.height != shape[1] || image.width != shape[2]) {
    throw BadImage(fmt::format(
        "becomes {} x {} (height x width) but {} becomes {} x {}; make all the same size with "
        "--resize=HxW, or with --resize=N and --crop=N",
        image.height, image.width, sized_by_, shape[1], shape[2]));
  }
}

// The first good image sets the size of all images.
void ImageSource::find_size() {
  for (std::int64_t file = 0; file < folders_.files(); ++file) {
    const std::filesystem::path path = folders_.path(file);
    try {
      with_image(workers_.front(), path, [&](const Image& image) {
        info_.input_shape = Shape{options_.channels, image.height, image.width};
      });
      sized_by_ = path.string();
      bad_.clear();
      return;
    } catch (const BadInput& problem) {
      bad_.push_back({file, fmt::format("{} {}", path.string(), problem.what())});
    }
  }
  refuse_bad();
}

void ImageSource::find_bad(const SampleProgress& checking) {
  constexpr std::int64_t kBlock = 1024;
  for (std::int64_t first = 0; first < folders_.files(); first += kBlock) {
    const std::int64_t count = std::min(kBlock, folders_.files() - first);
    decode(first, count, [](const Image&, std::int64_t) {});
    if (checking) {
      checking(first + count, folders_.files());
    }
  }
  std::vector<std::int64_t> left;
  std::size_t at = 0;
  for (const std::int64_t file : good_) {
    if (at < bad_.size() && bad_[at].file == file) {
      skipped_.push_back(std::move(bad_[at++].text));
    } else {
      left.push_back(file);
    }
  }
  good_ = std::move(left);
  bad_.clear();
}

void ImageSource::work(Worker& worker, std::int64_t first, std::int64_t count,
                       std::atomic<std::int64_t>& next_file,
                       const std::function<void(const Image&, std::int64_t)>& use) {
  for (std::int64_t i = next_file++; i < count; i = next_file++) {
    const std::int64_t file = good_[static_cast<std::size_t>(first + i)];
    const std::filesystem::path path = folders_.path(file);
    try {
      with_image(worker, path, [&](const Image& image) {
        check_size(image);
        use(image, i);
      });
    } catch (const BadInput& problem) {
      const std::scoped_lock lock(mutex_);
      bad_.push_back({file, fmt::format("{} {}", path.string(), problem.what())});
    }
  }
}

void ImageSource::decode(std::int64_t first, std::int64_t count,
                         const std::function<void(const Image&, std::int64_t)>& use) {
  std::atomic<std::int64_t> next_file = 0;
  std::exception_ptr failure;
  const auto guarded = [&](Worker& worker) {
    try {
      work(worker, first, count, next_file, use);
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    {
      const BlockedSignals blocked;
      for (std::size_t i = 1; i < workers_.size() && static_cast<std::int64_t>(i) < count; ++i) {
        threads.emplace_back(guarded, std::ref(workers_[i]));
      }
    }
    guarded(workers_.front());
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  std::sort(bad_.begin(), bad_.end(),
            [](const BadFile& a, const BadFile& b) { return a.file < b.file; });
}

void ImageSource::next(std::int64_t count, SampleBatch& batch) {
  const auto bytes = static_cast<std::size_t>(info_.input_bytes());
  batch.resize(info_, count);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t label = folders_.class_of(good_[static_cast<std::size_t>(at_ + i)]);
    std::memcpy(batch.targets.data() + i * info_.target_bytes(), &label, sizeof label);
  }
  decode(at_, count, [&](const Image& image, std::int64_t i) {
    write_planes(image, options_.channels,
                 std::span(batch.inputs).subspan(static_cast<std::size_t>(i) * bytes, bytes));
  });
  at_ += count;
}

void ImageSource::refuse_bad() {
  if (bad_.empty()) {
    return;
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(bad_.size(), kShownFiles); ++i) {
    text += "\n  " + bad_[i].text;
  }
  if (bad_.size() > kShownFiles) {
    text += fmt::format("\n  ... and {} more",
                        count_text(static_cast<std::int64_t>(bad_.size() - kShownFiles)));
  }
  fail(
      ExitCode::kData,
      "{} of {} files cannot be imported; mend them or take them away, or give --skip-bad to leave "
      "them out:{}",
      count_text(std::ssize(bad_)), count_text(folders_.files()), text);
}

/// Refuses a crop larger than any resized image.
void check_crop(const ImageOptions& images) {
  const std::int64_t shorter =
      images.height > 0 ? std::min(images.height, images.width) : images.shorter_side;
  if (shorter == 0 || images.crop <= shorter) {
    return;
  }
  const std::string resize = images.height > 0 ? fmt::format("{}x{}", images.height, images.width)
                                               : std::to_string(shorter);
  fail(ExitCode::kUsage,
       "--crop is {}, but --resize={} makes the shorter side {} pixels; give a --crop of at most "
       "{}, or a larger --resize",
       images.crop, resize, shorter, shorter);
}

}  // namespace

std::unique_ptr<SampleSource> open_image_source(const ImportOptions& options,
                                                const SampleProgress& checking) {
  const ImageOptions& images = options.images;
  if (options.inputs.empty() || !options.targets.empty()) {
    fail(ExitCode::kUsage, "an import of images takes one or more directories and nothing else");
  }
  if ((images.channels != 1 && images.channels != 3) || images.crop < 0 ||
      images.shorter_side < 0 || images.height < 0 || images.width < 0 ||
      (images.height > 0) != (images.width > 0) || (images.height > 0 && images.shorter_side > 0)) {
    fail(ExitCode::kUsage, "--channels is {}, 1 or 3 were expected; or --resize is contradictory",
         images.channels);
  }
  check_crop(images);
  return std::make_unique<ImageSource>(options, checking);
}

}  // namespace strata::io
