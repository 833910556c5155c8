#include "loader/sample_reader.hpp"

#include <cstring>

#include "strata/core/error.hpp"

#include "files/raw_elements.hpp"

namespace strata::io {
namespace {

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kMicrobatchAlignment - 1) / kMicrobatchAlignment * kMicrobatchAlignment;
}

}  // namespace

MicrobatchLayout::MicrobatchLayout(const DatasetInfo& info, const LoaderOptions& options)
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

SampleReader::SampleReader(const Dataset& dataset, const LoaderOptions& options,
                           const MicrobatchLayout& layout)
    : dataset_(dataset), options_(options), layout_(layout), converter_(dataset.info(), options) {
  if (options.augmentation != Augmentation()) {
    augmenter_.emplace(options.augmentation, options.seed, layout.input_shape.tail(),
                       layout.input_dtype);
    plain_.resize(static_cast<std::size_t>(layout.input_row_bytes()));
  }
}

void SampleReader::read(std::int64_t position, std::int64_t row, std::byte* microbatch) {
  if (dataset_.info().task == Task::kNextToken) {
    read_context(position, row, microbatch);
  } else {
    read_sample(position, row, microbatch);
  }
}

void SampleReader::read_sample(std::int64_t position, std::int64_t row, std::byte* microbatch) {
  const std::int64_t sample =
      upcoming_.position == position ? upcoming_.sample : sample_of(position);
  upcoming_ = {position + 1, sample_of(position + 1)};
  dataset_.prefetch(upcoming_.sample);
  if (layout_.input_bytes > 0) {
    read_input(sample, position, microbatch + row * layout_.input_row_bytes());
  }
  if (layout_.target_bytes > 0) {
    read_target(sample, microbatch + layout_.input_bytes + row * layout_.target_row_bytes());
  }
}

// Targets are the inputs shifted by one token.
void SampleReader::read_context(std::int64_t position, std::int64_t row, std::byte* microbatch) {
  const std::int64_t context = dataset_.info().input_shape[0];
  const bool windows =
      options_.order == Order::kShuffled && options_.sampling == Sampling::kWindows;
  const std::int64_t first =
      windows ? window_at(options_.seed, dataset_.info().tokens - context, position)
              : sample_of(position) * context;
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

std::int64_t SampleReader::sample_of(std::int64_t position) const {
  const std::int64_t count = dataset_.info().samples;
  return options_.order == Order::kShuffled ? sample_at(options_.seed, count, position)
                                            : sequential_sample_at(count, position);
}

void SampleReader::read_input(std::int64_t sample, std::int64_t position, std::byte* out) {
  std::byte* converted = augmenter_ ? plain_.data() : out;
  if (!converter_.convert(dataset_.ordered_input(sample, ordered_), converted)) {
    fail(ExitCode::kData, "the input of {} holds NaN or infinity, or becomes it in {}",
         dataset_.sample_text(sample), name_of(options_.compute_dtype));
  }
  if (augmenter_) {
    augmenter_->apply(position, converted, out);
  }
}

void SampleReader::read_target(std::int64_t sample, std::byte* out) {
  if (layout_.target_dtype == DType::kInt64) {
    const std::int64_t label = dataset_.label(sample);
    std::memcpy(out, &label, sizeof label);
    return;
  }
  const std::span<std::byte> converted(
      out, static_cast<std::size_t>(dataset_.info().target_shape.count() *
                                    size_bytes(layout_.target_dtype)));
  const std::span<const std::byte> stored = dataset_.sample_target(sample);
  values_.resize(stored.size() / sizeof(double));
  std::memcpy(values_.data(), stored.data(), stored.size());
  for (std::size_t i = 0; i < options_.target_mean.size(); ++i) {
    values_[i] = (values_[i] - options_.target_mean[i]) / options_.target_deviation[i];
  }
  decode(std::as_bytes(std::span(values_)), stored_type(DType::kFloat64), layout_.target_dtype,
         converted);
  if (first_not_finite(converted, layout_.target_dtype) >= 0) {
    fail(ExitCode::kData, "the target of {} holds NaN or infinity, or becomes it in {}",
         dataset_.sample_text(sample), name_of(layout_.target_dtype));
  }
}

}  // namespace strata::io
