#include "loader/sample_reader.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/uncounted.hpp"

#include "files/raw_elements.hpp"

namespace strata::io {
namespace {

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kMicrobatchAlignment - 1) / kMicrobatchAlignment * kMicrobatchAlignment;
}

}  // namespace

MicrobatchLayout::MicrobatchLayout(const DatasetInfo& info, const LoaderOptions& options) {
  std::int64_t end = 0;
  const auto place = [&](Parts part, const Shape& sample, DType dtype) {
    Tensor tensor{.shape = sample.prepended(options.microbatch), .dtype = dtype, .offset = end};
    if (contains(options.parts, part)) {
      tensor.bytes = aligned(tensor.shape.count() * size_bytes(dtype));
      end += tensor.bytes;
    }
    return tensor;
  };
  const bool tokens = info.task == Task::kNextToken;
  inputs = place(Parts::kInputs, channels_last(info.input_shape),
                 tokens ? DType::kInt64 : options.compute_dtype);
  targets = place(Parts::kTargets, info.target_shape,
                  info.task == Task::kRegression ? options.compute_dtype : DType::kInt64);
  document_starts = place(Parts::kDocumentStarts, info.input_shape, DType::kUint32);
  positions = place(Parts::kPositions, info.input_shape, DType::kInt64);
  references = place(Parts::kReferences, Shape{}, DType::kFloat64);
}

SampleReader::SampleReader(const Dataset& dataset, const LoaderOptions& options,
                           const MicrobatchLayout& layout)
    : dataset_(dataset), options_(options), layout_(layout), converter_(dataset.info(), options) {
  if (options.augmentation != Augmentation()) {
    augmenter_.emplace(options.augmentation, options.seed, layout.inputs.shape.tail(),
                       layout.inputs.dtype);
    plain_.resize(static_cast<std::size_t>(layout.inputs.row_bytes()));
  }
  const DatasetInfo& info = dataset.info();
  if (options.separate_documents == Switch::kOn || info.packed_inputs > 0 ||
      info.counted_tokens < info.tokens) {
    documents_ = &dataset.documents();
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
  if (std::byte* const to = layout_.inputs.row(microbatch, row)) {
    read_input(sample, position, to);
  }
  if (std::byte* const to = layout_.targets.row(microbatch, row)) {
    read_target(sample, to);
  }
}

void SampleReader::read_context(std::int64_t position, std::int64_t row, std::byte* microbatch) {
  const std::int64_t context = dataset_.info().input_shape[0];
  const bool windows =
      options_.order == Order::kShuffled && options_.sampling == Sampling::kWindows;
  if (windows) {
    const std::int64_t choices = dataset_.info().tokens - context;
    read_piece({window_at(options_.seed, choices, position), context}, 0, row, microbatch);
    return;
  }
  const std::int64_t sample = sample_of(position);
  if (std::byte* const to = layout_.references.row(microbatch, row)) {
    const double reference = dataset_.reference(sample);
    std::memcpy(to, &reference, sizeof reference);
  }
  std::int64_t at = 0;
  for (const Piece& piece : dataset_.pieces(sample)) {
    read_piece(piece, at, row, microbatch);
    at += piece.inputs;
  }
  const auto pad = [&]<typename T>(const MicrobatchLayout::Tensor& tensor, T, const auto& value) {
    if (auto* const to = reinterpret_cast<T*>(tensor.row(microbatch, row))) {
      for (std::int64_t token = at; token < context; ++token) {
        to[token] = static_cast<T>(value(token));
      }
    }
  };
  pad(layout_.inputs, std::int64_t{}, [](std::int64_t) { return 0; });
  pad(layout_.targets, std::int64_t{}, [](std::int64_t) { return kUncounted; });
  pad(layout_.document_starts, std::uint32_t{}, [](std::int64_t token) { return token; });
  pad(layout_.positions, std::int64_t{}, [](std::int64_t) { return 0; });
}

// Targets are the inputs shifted by one token.
void SampleReader::read_piece(const Piece& piece, std::int64_t at, std::int64_t row,
                              std::byte* microbatch) {
  tokens_.resize(static_cast<std::size_t>(piece.inputs) + 1);
  dataset_.read_tokens(piece.first, tokens_);
  const auto tensor = [&]<typename T>(const MicrobatchLayout::Tensor& of, T) {
    T* const first = reinterpret_cast<T*>(of.row(microbatch, row));
    return first == nullptr ? nullptr : first + at;
  };
  std::int64_t* const targets = tensor(layout_.targets, std::int64_t{});
  std::uint32_t* const starts = tensor(layout_.document_starts, std::uint32_t{});
  std::int64_t* const positions = tensor(layout_.positions, std::int64_t{});
  if (std::int64_t* const inputs = tensor(layout_.inputs, std::int64_t{})) {
    std::copy_n(tokens_.begin(), piece.inputs, inputs);
  }
  if (targets != nullptr) {
    std::copy_n(tokens_.begin() + 1, piece.inputs, targets);
  }
  if (documents_ == nullptr) {
    return;
  }
  std::int64_t document = documents_->index_of(piece.first);
  std::int64_t start = 0;  // of the document, in the piece
  const std::vector<std::int64_t>& runs = documents_->counted;
  auto bound = std::ranges::upper_bound(runs, piece.first);  // the next begin or end of a run
  for (std::int64_t token = 0; token < piece.inputs; ++token) {
    if (piece.first + token == documents_->end(document)) {
      document = documents_->index_of(piece.first + token);
      start = token;
    }
    if (starts != nullptr) {
      starts[token] = static_cast<std::uint32_t>(at + start);
    }
    if (positions != nullptr) {
      positions[token] = token - start;
    }
    const std::int64_t target = piece.first + token + 1;
    const bool begins =
        options_.separate_documents == Switch::kOn && target == documents_->end(document);
    while (bound != runs.end() && *bound <= target) {
      ++bound;
    }
    const bool counts = runs.empty() || (bound - runs.begin()) % 2 == 1;
    if (targets != nullptr && (begins || !counts)) {
      targets[token] = kUncounted;
    }
  }
}

std::int64_t SampleReader::sample_of(std::int64_t position) const {
  const std::int64_t count = dataset_.info().samples;
  if (options_.order != Order::kShuffled) {
    return sequential_sample_at(count, position);
  }
  if (dataset_.mixture() != nullptr) {
    return mixed_sample_at(options_.seed, dataset_, position).sample;
  }
  return sample_at(options_.seed, count, position);
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
  if (layout_.targets.dtype == DType::kInt64) {
    const std::int64_t label = dataset_.label(sample);
    std::memcpy(out, &label, sizeof label);
    return;
  }
  const std::span<std::byte> converted(
      out, static_cast<std::size_t>(dataset_.info().target_shape.count() *
                                    size_bytes(layout_.targets.dtype)));
  const std::span<const std::byte> stored = dataset_.sample_target(sample);
  values_.resize(stored.size() / sizeof(double));
  std::memcpy(values_.data(), stored.data(), stored.size());
  for (std::size_t i = 0; i < options_.target_mean.size(); ++i) {
    values_[i] = (values_[i] - options_.target_mean[i]) / options_.target_deviation[i];
  }
  decode(std::as_bytes(std::span(values_)), stored_type(DType::kFloat64), layout_.targets.dtype,
         converted);
  if (first_not_finite(converted, layout_.targets.dtype) >= 0) {
    fail(ExitCode::kData, "the target of {} holds NaN or infinity, or becomes it in {}",
         dataset_.sample_text(sample), name_of(layout_.targets.dtype));
  }
}

}  // namespace strata::io
