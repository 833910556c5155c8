#include "strata/io/loader.hpp"

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <stop_token>
#include <thread>

#include "strata/core/error.hpp"

#include "convert.hpp"
#include "raw_elements.hpp"

namespace strata::io {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::size_t kBuffers = 2;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct AlignedDelete {
  void operator()(std::byte* bytes) const {
    ::operator delete[](bytes, std::align_val_t{kAlignment});
  }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

AlignedBytes allocate(std::int64_t bytes) {
  return AlignedBytes(new (std::align_val_t{kAlignment})
                          std::byte[static_cast<std::size_t>(bytes)]);
}

// What one microbatch takes in a buffer.
struct MicrobatchLayout {
  Shape input_shape;
  DType input_dtype;
  Shape target_shape;
  DType target_dtype;
  std::int64_t input_bytes = 0;  // padded; 0 where inputs are not read
  std::int64_t target_bytes = 0;

  MicrobatchLayout(const DatasetInfo& info, const LoaderOptions& options)
      : input_shape(channels_last(info.input_shape).prepended(options.microbatch)),
        input_dtype(info.task == Task::kNextToken ? DType::kInt64 : options.compute_dtype),
        target_shape(info.target_shape.prepended(options.microbatch)),
        target_dtype(info.task == Task::kRegression ? options.compute_dtype : DType::kInt64) {
    if (contains(options.parts, Parts::kInputs)) {
      input_bytes = aligned(input_shape.count() * size_bytes(input_dtype));
    }
    if (contains(options.parts, Parts::kTargets)) {
      target_bytes = aligned(target_shape.count() * size_bytes(target_dtype));
    }
  }

  [[nodiscard]] std::int64_t bytes() const { return input_bytes + target_bytes; }
  [[nodiscard]] std::int64_t input_row_bytes() const {
    return input_shape.tail().count() * size_bytes(input_dtype);
  }
  [[nodiscard]] std::int64_t target_row_bytes() const {
    return target_shape.tail().count() * size_bytes(target_dtype);
  }
};

void check_options(const LoaderOptions& options) {
  require(options.microbatch > 0 && options.global_batch > 0 && options.steps >= 0 &&
              options.first_step >= 0 && !options.offsets.empty(),
          "a loader of {} steps from {}, {} microbatches of {} out of {} samples", options.steps,
          options.first_step, options.offsets.size(), options.microbatch, options.global_batch);
  for (const std::int64_t offset : options.offsets) {
    require(offset >= 0 && offset + options.microbatch <= options.global_batch,
            "the microbatch of {} samples at {} of a global batch of {}", options.microbatch,
            offset, options.global_batch);
  }
  require(options.compute_dtype == DType::kFloat32 || options.compute_dtype == DType::kFloat64 ||
              options.compute_dtype == DType::kBfloat16,
          "a loader's compute dtype is {}", name_of(options.compute_dtype));
}

}  // namespace

ConstTensorView LoadedStep::inputs(std::int64_t microbatch) const {
  require(microbatch >= 0 && microbatch < std::ssize(inputs_),
          "inputs of microbatch {}, the loader has them for {}", microbatch, inputs_.size());
  return inputs_[static_cast<std::size_t>(microbatch)];
}

ConstTensorView LoadedStep::targets(std::int64_t microbatch) const {
  require(microbatch >= 0 && microbatch < std::ssize(targets_),
          "targets of microbatch {}, the loader has them for {}", microbatch, targets_.size());
  return targets_[static_cast<std::size_t>(microbatch)];
}

class Loader::Reader {
 public:
  Reader(const Dataset& dataset, LoaderOptions options)
      : dataset_(dataset),
        options_(std::move(options)),
        layout_(dataset.info(), options_),
        converter_(dataset.info(), options_.compute_dtype, options_.normalise) {
    for (Buffer& buffer : buffers_) {
      buffer.bytes = allocate(buffer_bytes());
      lay_out(buffer);
    }
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  const LoadedStep& next();
  [[nodiscard]] double wait_seconds() const { return wait_seconds_; }
  [[nodiscard]] std::int64_t memory_bytes() const {
    return static_cast<std::int64_t>(kBuffers) * buffer_bytes();
  }

 private:
  struct Buffer {
    AlignedBytes bytes;
    LoadedStep step;
  };

  [[nodiscard]] std::int64_t buffer_bytes() const {
    return std::ssize(options_.offsets) * layout_.bytes();
  }
  void lay_out(Buffer& buffer) const;
  void run(const std::stop_token& stop);
  /// False where a stop was asked for.
  [[nodiscard]] bool fill(Buffer& buffer, std::int64_t step, const std::stop_token& stop);
  [[nodiscard]] std::int64_t sample_of(std::int64_t place) const;
  /// Each reads what stands at a place of the stream into a row of a microbatch.
  void read_sample(std::int64_t place, std::int64_t row, std::byte* microbatch);
  void read_context(std::int64_t place, std::int64_t row, std::byte* microbatch);
  void read_input(std::int64_t sample, std::byte* out);
  void read_target(std::int64_t sample, std::byte* out) const;

  const Dataset& dataset_;
  LoaderOptions options_;
  MicrobatchLayout layout_;
  InputConverter converter_;
  struct {
    std::int64_t place = -1;
    std::int64_t sample = 0;
  } upcoming_;                        // what was prefetched
  std::vector<std::int64_t> tokens_;  // of one sample
  std::array<Buffer, kBuffers> buffers_;
  double wait_seconds_ = 0;
  std::int64_t given_ = 0;  // steps that next() has returned

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::int64_t filled_ = 0;    // steps read; guarded by mutex_
  std::int64_t released_ = 0;  // steps whose buffer is free again; guarded by mutex_
  std::exception_ptr error_;   // why no step after `filled_` will come; guarded by mutex_
  std::jthread thread_;        // last, so that it ends before what it uses
};

void Loader::Reader::lay_out(Buffer& buffer) const {
  std::byte* at = buffer.bytes.get();
  for (std::size_t i = 0; i < options_.offsets.size(); ++i) {
    if (layout_.input_bytes > 0) {
      buffer.step.inputs_.emplace_back(at, layout_.input_shape, layout_.input_dtype);
    }
    if (layout_.target_bytes > 0) {
      buffer.step.targets_.emplace_back(at + layout_.input_bytes, layout_.target_shape,
                                        layout_.target_dtype);
    }
    at += layout_.bytes();
  }
}

void Loader::Reader::run(const std::stop_token& stop) {
  try {
    for (std::int64_t i = 0; i < options_.steps; ++i) {
      {
        std::unique_lock lock(mutex_);
        const bool free = changed_.wait(
            lock, stop, [&] { return i - released_ < static_cast<std::int64_t>(kBuffers); });
        if (!free) {
          return;
        }
      }
      Buffer& buffer = buffers_[static_cast<std::size_t>(i) % kBuffers];
      if (!fill(buffer, options_.first_step + i, stop)) {
        return;
      }
      const std::scoped_lock lock(mutex_);
      filled_ = i + 1;
      changed_.notify_all();
    }
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

bool Loader::Reader::fill(Buffer& buffer, std::int64_t step, const std::stop_token& stop) {
  const bool tokens = dataset_.info().task == Task::kNextToken;
  std::byte* microbatch = buffer.bytes.get();
  for (const std::int64_t offset : options_.offsets) {
    const std::int64_t first_place = step * options_.global_batch + offset;
    for (std::int64_t row = 0; row < options_.microbatch; ++row) {
      if (stop.stop_requested()) {
        return false;
      }
      if (tokens) {
        read_context(first_place + row, row, microbatch);
      } else {
        read_sample(first_place + row, row, microbatch);
      }
    }
    microbatch += layout_.bytes();
  }
  buffer.step.step_ = step;
  return true;
}

void Loader::Reader::read_sample(std::int64_t place, std::int64_t row, std::byte* microbatch) {
  const std::int64_t sample = upcoming_.place == place ? upcoming_.sample : sample_of(place);
  upcoming_ = {place + 1, sample_of(place + 1)};
  dataset_.prefetch(upcoming_.sample);
  if (layout_.input_bytes > 0) {
    read_input(sample, microbatch + row * layout_.input_row_bytes());
  }
  if (layout_.target_bytes > 0) {
    read_target(sample, microbatch + layout_.input_bytes + row * layout_.target_row_bytes());
  }
}

// Targets are the inputs moved on by one token.
void Loader::Reader::read_context(std::int64_t place, std::int64_t row, std::byte* microbatch) {
  const std::int64_t context = dataset_.info().input_shape[0];
  const bool windows =
      options_.order == Order::kShuffled && options_.sampling == Sampling::kWindows;
  const std::int64_t first = windows
                                 ? window_at(options_.seed, dataset_.info().tokens - context, place)
                                 : sample_of(place) * context;
  tokens_.resize(static_cast<std::size_t>(context) + 1);
  dataset_.read_tokens(first, tokens_);
  const auto bytes = static_cast<std::size_t>(layout_.input_row_bytes());
  if (layout_.input_bytes > 0) {
    std::memcpy(microbatch + row * layout_.input_row_bytes(), tokens_.data(), bytes);
  }
  if (layout_.target_bytes > 0) {
    std::memcpy(microbatch + layout_.input_bytes + row * layout_.target_row_bytes(),
                tokens_.data() + 1, bytes);
  }
}

std::int64_t Loader::Reader::sample_of(std::int64_t place) const {
  const std::int64_t count = dataset_.info().samples;
  return options_.order == Order::kShuffled ? sample_at(options_.seed, count, place)
                                            : sequential_sample_at(count, place);
}

void Loader::Reader::read_input(std::int64_t sample, std::byte* out) {
  dataset_.check_input(sample);
  if (!converter_.convert(dataset_.sample_input(sample), out)) {
    fail(ExitCode::kData, "the input of {} holds NaN or infinity, or becomes it in {}",
         dataset_.sample_text(sample), name_of(options_.compute_dtype));
  }
}

void Loader::Reader::read_target(std::int64_t sample, std::byte* out) const {
  dataset_.check_target(sample);
  const std::span<const std::byte> stored = dataset_.sample_target(sample);
  if (layout_.target_dtype == DType::kInt64) {
    std::int64_t label = 0;
    std::memcpy(&label, stored.data(), sizeof label);
    if (label < 0 || label >= dataset_.info().classes) {
      fail(ExitCode::kData, "the label of {} is {}, expected 0 to {}", dataset_.sample_text(sample),
           label, dataset_.info().classes - 1);
    }
    std::memcpy(out, &label, sizeof label);
    return;
  }
  const std::span<std::byte> converted(
      out, static_cast<std::size_t>(dataset_.info().target_shape.count() *
                                    size_bytes(layout_.target_dtype)));
  decode(stored, {RawType::Kind::kFloat, size_bytes(DType::kFloat64), std::endian::little},
         layout_.target_dtype, converted);
  if (first_not_finite(converted, layout_.target_dtype) >= 0) {
    fail(ExitCode::kData, "the target of {} holds NaN or infinity, or becomes it in {}",
         dataset_.sample_text(sample), name_of(layout_.target_dtype));
  }
}

const LoadedStep& Loader::Reader::next() {
  require(given_ < options_.steps, "a loader of {} steps was asked for one more", options_.steps);
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  released_ = given_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return filled_ > given_ || error_ != nullptr; });
  wait_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (filled_ <= given_) {
    std::rethrow_exception(error_);
  }
  return buffers_[static_cast<std::size_t>(given_++) % kBuffers].step;
}

Loader::Loader(const Dataset& dataset, LoaderOptions options) {
  check_options(options);
  require(dataset.info().samples > 0, "a loader of {} without samples: its context is not set",
          dataset.info().path.string());
  reader_ = std::make_unique<Reader>(dataset, std::move(options));
}

Loader::~Loader() = default;

const LoadedStep& Loader::next() {
  return reader_->next();
}

double Loader::wait_seconds() const {
  return reader_->wait_seconds();
}

std::int64_t Loader::memory_bytes() const {
  return reader_->memory_bytes();
}

std::int64_t Loader::memory_bytes(const DatasetInfo& info, const LoaderOptions& options) {
  return static_cast<std::int64_t>(kBuffers) * std::ssize(options.offsets) *
         MicrobatchLayout(info, options).bytes();
}

}  // namespace strata::io
