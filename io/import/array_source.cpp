#include <algorithm>

#include "strata/core/error.hpp"

#include "files/array_file.hpp"
#include "import/label_counts.hpp"
#include "import/sample_source.hpp"

namespace strata::io {
namespace {

// An input file and its target file.
struct Pair {
  ArrayFile inputs;
  ArrayFile targets;
  std::int64_t done = 0;
};

class ArraySource final : public SampleSource {
 public:
  explicit ArraySource(const ImportOptions& options);

  void next(std::int64_t count, SampleBatch& batch) override;
  void finish() override;
  [[nodiscard]] std::vector<std::int32_t> labels() override;

 private:
  [[nodiscard]] Task task_of(const ArrayFile& targets, TaskChoice choice);
  [[nodiscard]] ArrayFile open(const std::filesystem::path& path) const;
  template <typename Use>
  void with_labels(Use&& use);
  void set_layout(const Pair& pair, const ImportOptions& options);
  void check_same_layout(const Pair& pair) const;
  void read_rows(Pair& pair, std::int64_t count, std::byte* inputs, std::byte* targets);
  void check_inputs(const Pair& pair, std::int64_t count, const std::byte* inputs) const;
  void check_targets(const Pair& pair, std::int64_t count, const std::byte* targets) const;

  ImportFormat format_;
  std::int64_t classes_;
  std::vector<std::filesystem::path> targets_;
  std::vector<Pair> pairs_;
  std::size_t current_ = 0;
  std::vector<std::byte> raw_;
};

Shape at_least_vector(const Shape& shape) {
  return shape.rank() == 0 ? Shape{1} : shape;
}

// Byte matrices in an IDX file are images with one channel.
Shape input_shape_of(const ArrayFile& inputs, ImportFormat format) {
  const Shape shape = at_least_vector(inputs.shape().tail());
  const bool image = format == ImportFormat::kIdx && shape.rank() == 2 &&
                     stored_input_dtype(inputs.type()) == DType::kUint8;
  return image ? shape.prepended(1) : shape;
}

ArraySource::ArraySource(const ImportOptions& options)
    : format_(options.format), classes_(options.classes), targets_(options.targets) {
  const bool idx = format_ == ImportFormat::kIdx;
  if (options.inputs.empty() || options.inputs.size() != options.targets.size()) {
    fail(ExitCode::kUsage, "{} files of {} and {} of {} were given, expected one for one",
         options.inputs.size(), idx ? "images" : "inputs", options.targets.size(),
         idx ? "labels" : "targets");
  }
  for (std::size_t i = 0; i < options.inputs.size(); ++i) {
    const Pair& pair = pairs_.emplace_back(Pair{open(options.inputs[i]), open(options.targets[i])});
    if (pair.inputs.rows() != pair.targets.rows()) {
      fail(ExitCode::kData, "{} has {} samples but {} has {} targets", pair.inputs.path().string(),
           pair.inputs.rows(), pair.targets.path().string(), pair.targets.rows());
    }
    if (i > 0) {
      check_same_layout(pair);
    }
    info_.samples += pair.inputs.rows();
    ends_.push_back(info_.samples);
    info_.source +=
        fmt::format("{}{} + {}", i == 0 ? "" : ", ", pair.inputs.path().filename().string(),
                    pair.targets.path().filename().string());
  }
  set_layout(pairs_.front(), options);
}

ArrayFile ArraySource::open(const std::filesystem::path& path) const {
  return format_ == ImportFormat::kIdx ? ArrayFile::open_idx(path) : ArrayFile::open_npy(path);
}

/// Calls `use` with the integers of all target files.
template <typename Use>
void ArraySource::with_labels(Use&& use) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;
  std::vector<std::int64_t> labels;
  for (const std::filesystem::path& path : targets_) {
    ArrayFile file = open(path);
    for (std::int64_t done = 0; done < file.rows(); done += std::ssize(labels)) {
      labels.resize(static_cast<std::size_t>(std::min(kPiece, file.rows() - done)));
      raw_.resize(labels.size() * static_cast<std::size_t>(file.row_bytes()));
      file.read(raw_);
      decode(raw_, file.type(), DType::kInt64, std::as_writable_bytes(std::span(labels)));
      std::ranges::for_each(labels, use);
    }
  }
}

std::vector<std::int32_t> ArraySource::labels() {
  std::vector<std::int32_t> labels;
  labels.reserve(static_cast<std::size_t>(info_.samples));
  // Labels that are out of range are refused when they are imported.
  with_labels([&](std::int64_t label) {
    labels.push_back(static_cast<std::int32_t>(label >= 0 && label < kMostClasses ? label : 0));
  });
  return labels;
}

Task ArraySource::task_of(const ArrayFile& targets, TaskChoice choice) {
  if (choice == TaskChoice::kValues) {
    return Task::kRegression;
  }
  const bool decides = choice == TaskChoice::kAuto && classes_ == 0;
  const bool integers = targets.type().is_integer();
  if (decides && !integers) {
    return Task::kRegression;
  }
  if (!integers) {
    fail(ExitCode::kData, "{} holds floating-point targets, classes must be integers",
         targets.path().string());
  }
  if (targets.shape().rank() != 1) {
    fail(ExitCode::kData,
         "{} has targets of shape {}, classes must be one integer a sample; for values use "
         "--task=values",
         targets.path().string(), targets.shape().text());
  }
  // One byte holds few numbers.
  if (decides && targets.type().bytes > 1) {
    LabelCounts counts;
    with_labels([&](std::int64_t label) { counts.add(label); });
    if (!counts.are_classes()) {
      notes_.push_back(counts.values_note(targets.path().filename().string()));
      return Task::kRegression;
    }
  }
  return Task::kClassification;
}

void ArraySource::set_layout(const Pair& pair, const ImportOptions& options) {
  info_.input_shape = input_shape_of(pair.inputs, options.format);
  info_.input_dtype = stored_input_dtype(pair.inputs.type());
  info_.task = task_of(pair.targets, options.task);
  if (info_.task == Task::kRegression) {
    info_.target_shape = at_least_vector(pair.targets.shape().tail());
    info_.target_dtype = DType::kFloat64;
  }
}

void ArraySource::check_same_layout(const Pair& pair) const {
  const Pair& first = pairs_.front();
  const auto check = [](const ArrayFile& a, const ArrayFile& b) {
    if (!(a.shape().tail() == b.shape().tail()) || a.type().kind != b.type().kind ||
        a.type().bytes != b.type().bytes) {
      fail(ExitCode::kData,
           "{} and {} hold samples of different shape or type ({} and {} a sample)",
           a.path().string(), b.path().string(), a.shape().tail().text(), b.shape().tail().text());
    }
  };
  check(first.inputs, pair.inputs);
  check(first.targets, pair.targets);
}

void ArraySource::next(std::int64_t count, SampleBatch& batch) {
  batch.resize(info_, count);
  for (std::int64_t done = 0; done < count;) {
    require(current_ < pairs_.size(), "more samples were asked for than the source has");
    Pair& pair = pairs_[current_];
    const std::int64_t rows = std::min(count - done, pair.inputs.rows() - pair.done);
    if (rows == 0) {
      ++current_;
      continue;
    }
    read_rows(pair, rows, batch.inputs.data() + done * info_.input_bytes(),
              batch.targets.data() + done * info_.target_bytes());
    done += rows;
  }
}

void ArraySource::read_rows(Pair& pair, std::int64_t count, std::byte* inputs, std::byte* targets) {
  const auto read = [&](ArrayFile& file, DType dtype, std::byte* out, std::int64_t out_bytes) {
    raw_.resize(static_cast<std::size_t>(count * file.row_bytes()));
    file.read(raw_);
    decode(raw_, file.type(), dtype, {out, static_cast<std::size_t>(out_bytes)});
  };
  read(pair.inputs, info_.input_dtype, inputs, count * info_.input_bytes());
  check_inputs(pair, count, inputs);
  read(pair.targets, info_.target_dtype, targets, count * info_.target_bytes());
  check_targets(pair, count, targets);
  pair.done += count;
}

void check_finite(const ArrayFile& file, std::span<const std::byte> elements, DType dtype,
                  std::int64_t first_row) {
  const std::int64_t bad = first_not_finite(elements, dtype);
  if (bad >= 0) {
    const std::int64_t row_elements = file.shape().tail().count();
    fail(ExitCode::kData, "element {} of sample {} of {} is NaN or infinite", bad % row_elements,
         first_row + bad / row_elements, file.path().string());
  }
}

void ArraySource::check_inputs(const Pair& pair, std::int64_t count,
                               const std::byte* inputs) const {
  if (info_.input_dtype != DType::kUint8) {
    check_finite(pair.inputs, {inputs, static_cast<std::size_t>(count * info_.input_bytes())},
                 info_.input_dtype, pair.done);
  }
}

void ArraySource::check_targets(const Pair& pair, std::int64_t count,
                                const std::byte* targets) const {
  if (info_.task == Task::kRegression) {
    check_finite(pair.targets, {targets, static_cast<std::size_t>(count * info_.target_bytes())},
                 info_.target_dtype, pair.done);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const auto label = load<std::int64_t>(targets + i * size_bytes(DType::kInt64));
    const std::int64_t end = classes_ > 0 ? classes_ : kMostClasses;
    if (label < 0 || label >= end) {
      fail(ExitCode::kData, "the label of sample {} of {} is {}, expected {}", pair.done + i,
           pair.targets.path().string(), label,
           classes_ > 0 ? fmt::format("0 to {} for {} classes", classes_ - 1, classes_)
                        : fmt::format("a class number from 0 to {}; for values use "
                                      "--task=values",
                                      end - 1));
    }
  }
}

void ArraySource::finish() {
  for (Pair& pair : pairs_) {
    pair.inputs.finish();
    pair.targets.finish();
  }
}

}  // namespace

std::unique_ptr<SampleSource> open_array_source(const ImportOptions& options) {
  return std::make_unique<ArraySource>(options);
}

}  // namespace strata::io
