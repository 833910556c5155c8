#include "strata/io/loader.hpp"

#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include "strata/core/blocked_signals.hpp"
#include "strata/core/error.hpp"

#include "loader/sample_reader.hpp"

namespace strata::io {
namespace {

constexpr std::size_t kBuffers = 2;

struct AlignedDelete {
  void operator()(std::byte* bytes) const {
    ::operator delete[](bytes, std::align_val_t{kMicrobatchAlignment});
  }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

AlignedBytes allocate(std::int64_t bytes) {
  return AlignedBytes(new (std::align_val_t{kMicrobatchAlignment})
                          std::byte[static_cast<std::size_t>(bytes)]);
}

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
  require(options.mean.size() == options.deviation.size() &&
              options.target_mean.size() == options.target_deviation.size(),
          "a loader of as many means as deviations");
  require(options.reader_threads > 0, "a loader of {} threads", options.reader_threads);
}

const ConstTensorView& of_microbatch(const std::vector<ConstTensorView>& tensors,
                                     std::string_view name, std::int64_t microbatch) {
  require(microbatch >= 0 && microbatch < std::ssize(tensors),
          "{} of microbatch {}, the loader has them for {}", name, microbatch, tensors.size());
  return tensors[static_cast<std::size_t>(microbatch)];
}

}  // namespace

ConstTensorView LoadedStep::inputs(std::int64_t microbatch) const {
  return of_microbatch(inputs_, "inputs", microbatch);
}

ConstTensorView LoadedStep::targets(std::int64_t microbatch) const {
  return of_microbatch(targets_, "targets", microbatch);
}

ConstTensorView LoadedStep::document_starts(std::int64_t microbatch) const {
  return of_microbatch(document_starts_, "starts of documents", microbatch);
}

ConstTensorView LoadedStep::positions(std::int64_t microbatch) const {
  return of_microbatch(positions_, "positions", microbatch);
}

ConstTensorView LoadedStep::references(std::int64_t microbatch) const {
  return of_microbatch(references_, "references", microbatch);
}

class Loader::Reader {
 public:
  Reader(const Dataset& dataset, LoaderOptions options)
      : dataset_(dataset), options_(std::move(options)), layout_(dataset.info(), options_) {
    for (Buffer& buffer : buffers_) {
      buffer.bytes = allocate(buffer_bytes());
      lay_out(buffer);
    }
    for (std::int64_t share = 0; share < options_.reader_threads; ++share) {
      readers_.emplace_back(dataset_, options_, layout_);
    }
    const BlockedSignals blocked;
    for (std::int64_t share = 0; share < options_.reader_threads; ++share) {
      threads_.emplace_back([this, share](const std::stop_token& stop) { run(share, stop); });
    }
  }
  ~Reader() {
    for (std::jthread& thread : threads_) {
      thread.request_stop();
    }
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const LoadedStep& next();
  [[nodiscard]] bool ready();

 private:
  struct Buffer {
    AlignedBytes bytes;
    LoadedStep step;
    std::int64_t arrived =
        0;  ///< threads that have finished their share of the step; guarded by mutex_
  };

  [[nodiscard]] std::int64_t buffer_bytes() const {
    return std::ssize(options_.offsets) * layout_.bytes();
  }
  void lay_out(Buffer& buffer) const;
  /// Body of one reader thread, which reads a share of the rows of every step.
  void run(std::int64_t share, const std::stop_token& stop);
  /// Reads a share of a step, counted from the first that is given. False where a stop was asked
  /// for.
  [[nodiscard]] bool fill(SampleReader& reader, std::int64_t index, std::int64_t share,
                          const std::stop_token& stop);
  /// Records that a share is done or has failed. Pre: the caller holds mutex_.
  void arrive(std::int64_t index, std::int64_t share, const std::exception_ptr& error);

  const Dataset& dataset_;
  LoaderOptions options_;
  MicrobatchLayout layout_;
  std::vector<SampleReader> readers_;  // one per thread
  std::array<Buffer, kBuffers> buffers_;
  std::int64_t given_ = 0;  // steps that next() has returned

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::int64_t filled_ = 0;    // steps read; guarded by mutex_
  std::int64_t released_ = 0;  // steps whose buffer is free again; guarded by mutex_
  std::exception_ptr error_;   // the first; guarded by mutex_, as error_at_: its step and share
  std::pair<std::int64_t, std::int64_t> error_at_;
  std::vector<std::jthread> threads_;  // last member: joined before the others are destroyed
};

void Loader::Reader::lay_out(Buffer& buffer) const {
  std::byte* at = buffer.bytes.get();
  buffer.step.memory_ = ConstTensorView(at, Shape{buffer_bytes()}, DType::kUint8);
  for (std::size_t i = 0; i < options_.offsets.size(); ++i) {
    const auto add = [&](const MicrobatchLayout::Tensor& tensor, std::vector<ConstTensorView>& to) {
      if (tensor.bytes > 0) {
        to.emplace_back(at + tensor.offset, tensor.shape, tensor.dtype);
      }
    };
    add(layout_.inputs, buffer.step.inputs_);
    add(layout_.targets, buffer.step.targets_);
    add(layout_.document_starts, buffer.step.document_starts_);
    add(layout_.positions, buffer.step.positions_);
    add(layout_.references, buffer.step.references_);
    at += layout_.bytes();
  }
}

void Loader::Reader::run(std::int64_t share, const std::stop_token& stop) {
  SampleReader& reader = readers_[static_cast<std::size_t>(share)];
  for (std::int64_t i = 0; i < options_.steps; ++i) {
    {
      std::unique_lock lock(mutex_);
      const bool free = changed_.wait(
          lock, stop, [&] { return i - released_ < static_cast<std::int64_t>(kBuffers); });
      if (!free) {
        return;
      }
    }
    std::exception_ptr error;
    try {
      if (!fill(reader, i, share, stop)) {
        return;
      }
    } catch (...) {
      error = std::current_exception();
    }
    const std::scoped_lock lock(mutex_);
    arrive(i, share, error);
    if (error) {
      return;
    }
  }
}

bool Loader::Reader::fill(SampleReader& reader, std::int64_t index, std::int64_t share,
                          const std::stop_token& stop) {
  const Buffer& buffer = buffers_[static_cast<std::size_t>(index) % kBuffers];
  const std::int64_t rows = std::ssize(options_.offsets) * options_.microbatch;
  const std::int64_t first = (options_.first_step + index) * options_.global_batch;
  const std::int64_t end = rows * (share + 1) / options_.reader_threads;
  for (std::int64_t at = rows * share / options_.reader_threads; at < end; ++at) {
    if (stop.stop_requested()) {
      return false;
    }
    const std::int64_t microbatch = at / options_.microbatch;
    const std::int64_t row = at % options_.microbatch;
    reader.read(first + options_.offsets[static_cast<std::size_t>(microbatch)] + row, row,
                buffer.bytes.get() + microbatch * layout_.bytes());
  }
  return true;
}

// Keeps the error that a single thread would have hit first. A thread with an error stops, so no
// later step completes.
void Loader::Reader::arrive(std::int64_t index, std::int64_t share,
                            const std::exception_ptr& error) {
  if (error && (!error_ || std::pair(index, share) < error_at_)) {
    error_ = error;
    error_at_ = {index, share};
  }
  Buffer& buffer = buffers_[static_cast<std::size_t>(index) % kBuffers];
  if (++buffer.arrived == options_.reader_threads) {
    buffer.arrived = 0;
    buffer.step.step_ = options_.first_step + index;
    filled_ = index + 1;
    changed_.notify_all();
  }
}

const LoadedStep& Loader::Reader::next() {
  require(given_ < options_.steps, "a loader of {} steps was asked for one more", options_.steps);
  std::unique_lock lock(mutex_);
  released_ = given_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return filled_ > given_; });
  if (error_ && error_at_.first == given_) {
    std::rethrow_exception(error_);
  }
  return buffers_[static_cast<std::size_t>(given_++) % kBuffers].step;
}

bool Loader::Reader::ready() {
  const std::scoped_lock lock(mutex_);
  return filled_ > given_ && !(error_ && error_at_.first == given_);
}

Loader::Loader(const Dataset& dataset, LoaderOptions options) {
  check_options(options);
  require(is_image(dataset.info().input_shape) || options.augmentation == Augmentation(),
          "samples of {} are no images to be augmented", dataset.info().input_shape.text());
  require(dataset.info().samples > 0, "a loader of {} without samples: its context is not set",
          dataset.info().path.string());
  require((!contains(options.parts, Parts::kDocumentStarts) &&
           !contains(options.parts, Parts::kPositions)) ||
              options.separate_documents == Switch::kOn,
          "a loader of places of documents that it does not separate");
  reader_ = std::make_unique<Reader>(dataset, std::move(options));
}

Loader::~Loader() = default;

const LoadedStep& Loader::next() {
  return reader_->next();
}

bool Loader::ready() const {
  return reader_->ready();
}

std::int64_t Loader::step_bytes(const DatasetInfo& info, const LoaderOptions& options) {
  return std::ssize(options.offsets) * MicrobatchLayout(info, options).bytes();
}

std::int64_t Loader::memory_bytes(const DatasetInfo& info, const LoaderOptions& options) {
  return static_cast<std::int64_t>(kBuffers) * step_bytes(info, options);
}

}  // namespace strata::io
