#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/text_file.hpp"

#include "files/posix_file.hpp"
#include "files/user_file.hpp"
#include "import/input_files.hpp"
#include "import/sample_source.hpp"

namespace strata::io {
namespace {

constexpr std::int64_t kImageBytes = 3 * 32 * 32;

/// Differences between CIFAR-10 and CIFAR-100.
struct CifarKind {
  std::int64_t label_bytes;  ///< the last of them is the label
  std::int64_t classes;
};

CifarKind kind_of(ImportFormat format) {
  return format == ImportFormat::kCifar10 ? CifarKind{1, 10} : CifarKind{2, 100};
}

std::vector<std::string> cifar10_names() {
  return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
}

/// The names of CIFAR-100's classes from the file distributed with it; empty without that file.
std::vector<std::string> fine_names(const std::filesystem::path& beside) {
  const std::filesystem::path path = beside.parent_path() / "fine_label_names.txt";
  if (std::error_code error; !std::filesystem::exists(path, error)) {
    return {};
  }
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
  std::vector<std::string> names = split_words(read_input(path, kMostBytes, ExitCode::kData), "\n");
  if (!names.empty() && names.size() != 100) {
    fail(ExitCode::kData, "{} has {} names, expected 100; correct it or take it away",
         path.string(), names.size());
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool twice =
        std::ranges::find(names, names[i]) != names.begin() + static_cast<std::ptrdiff_t>(i);
    if (const std::string problem = twice ? "is there twice" : name_problem(names[i]);
        !problem.empty()) {
      fail(ExitCode::kData, "{}: the name '{}' {}; correct it or take the file away", path.string(),
           names[i], problem);
    }
  }
  return names;
}

/// The binary version of CIFAR: records of one or two label bytes and a 32 x 32 image as planes of
/// red, green and blue.
/// Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
class CifarSource final : public SampleSource {
 public:
  explicit CifarSource(const ImportOptions& options);

  void next(std::int64_t count, SampleBatch& batch) override;
  void finish() override {}  // file sizes are checked at opening
  [[nodiscard]] std::vector<std::int32_t> labels() override;

 private:
  [[nodiscard]] std::int64_t record_bytes() const { return kind_.label_bytes + kImageBytes; }
  void open_next();
  void read_record(std::byte* input, std::byte* target);

  CifarKind kind_;
  std::vector<std::filesystem::path> paths_;
  std::vector<std::int64_t> sizes_;  ///< file sizes in bytes at the start of the import
  std::size_t next_file_ = 0;
  std::optional<UserFile> file_;
  std::int64_t record_ = 0;  ///< next record of the open file
  std::vector<std::byte> bytes_;
};

CifarSource::CifarSource(const ImportOptions& options)
    : kind_(kind_of(options.format)), paths_(options.inputs) {
  if (paths_.empty() || !options.targets.empty()) {
    fail(ExitCode::kUsage, "an import of {} takes one or more files and no separate targets",
         name_of(options.format));
  }
  for (const std::filesystem::path& path : paths_) {
    const std::int64_t size = UserFile(path, ExitCode::kData).size_bytes;
    if (size == 0 || size % record_bytes() != 0) {
      fail(ExitCode::kData,
           "{} has {} bytes, which is no multiple of {}, the bytes of a record of {}; the file was "
           "cut short or is not the binary version",
           path.string(), size, record_bytes(), name_of(options.format));
    }
    sizes_.push_back(size);
    info_.samples += size / record_bytes();
    ends_.push_back(info_.samples);
  }
  info_.source = joined_file_names(paths_);
  info_.input_shape = Shape{3, 32, 32};
  info_.classes = kind_.classes;
  info_.class_names =
      options.format == ImportFormat::kCifar10 ? cifar10_names() : fine_names(paths_.front());
  bytes_.resize(static_cast<std::size_t>(record_bytes()));
}

// A file of another size would shift all samples after it.
void CifarSource::open_next() {
  file_.emplace(paths_[next_file_], ExitCode::kData);
  if (file_->size_bytes != sizes_[next_file_]) {
    fail(ExitCode::kData,
         "{} has {} bytes, but had {} when the import began; import again when nothing writes it",
         file_->path.string(), file_->size_bytes, sizes_[next_file_]);
  }
  ++next_file_;
  record_ = 0;
}

void CifarSource::read_record(std::byte* input, std::byte* target) {
  if (!file_ || record_ * record_bytes() == file_->size_bytes) {
    open_next();
  }
  file_->read_exactly(bytes_);
  const auto label =
      std::to_integer<std::int64_t>(bytes_[static_cast<std::size_t>(kind_.label_bytes - 1)]);
  if (label >= kind_.classes) {
    fail(ExitCode::kData, "the label of record {} of {} is {}, expected 0 to {}", record_,
         file_->path.string(), label, kind_.classes - 1);
  }
  std::memcpy(input, bytes_.data() + kind_.label_bytes, static_cast<std::size_t>(kImageBytes));
  std::memcpy(target, &label, sizeof label);
  ++record_;
}

std::vector<std::int32_t> CifarSource::labels() {
  std::vector<std::int32_t> labels;
  labels.reserve(static_cast<std::size_t>(info_.samples));
  std::array<std::byte, 2> label{};
  const auto bytes = std::span(label).first(static_cast<std::size_t>(kind_.label_bytes));
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    const InputFile file(paths_[i], ExitCode::kData);
    for (std::int64_t at = 0; at < sizes_[i]; at += record_bytes()) {
      file.read_at(at, bytes);
      // Records with a class that is out of range are refused when they are imported.
      labels.push_back(std::to_integer<std::int32_t>(bytes.back()));
    }
  }
  return labels;
}

void CifarSource::next(std::int64_t count, SampleBatch& batch) {
  batch.resize(info_, count);
  for (std::int64_t i = 0; i < count; ++i) {
    read_record(batch.inputs.data() + i * info_.input_bytes(),
                batch.targets.data() + i * info_.target_bytes());
  }
}

}  // namespace

std::unique_ptr<SampleSource> open_cifar_source(const ImportOptions& options) {
  return std::make_unique<CifarSource>(options);
}

}  // namespace strata::io
