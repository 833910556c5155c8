#include "import/input_statistics.hpp"

#include <cmath>

#include "files/raw_elements.hpp"

namespace strata::io {

InputStatistics::InputStatistics(const DatasetInfo& info)
    : dtype_(info.input_dtype), elements_(info.input_shape.count()) {
  const auto size = static_cast<std::size_t>(statistics_of(info.input_shape));
  mean_.resize(size);
  squares_.resize(size);
  values_.resize(static_cast<std::size_t>(elements_));
}

void InputStatistics::add(const SampleBatch& batch, std::int64_t samples) {
  const auto bytes = static_cast<std::size_t>(elements_ * size_bytes(dtype_));
  for (std::size_t i = 0; i < static_cast<std::size_t>(samples); ++i) {
    decode(std::span(batch.inputs).subspan(i * bytes, bytes), stored_type(dtype_), DType::kFloat64,
           std::as_writable_bytes(std::span(values_)));
    if (mean_.size() == values_.size()) {
      add_vector(values_);
      continue;
    }
    const std::size_t block = values_.size() / mean_.size();
    for (std::size_t statistic = 0; statistic < mean_.size(); ++statistic) {
      add_block(std::span(values_).subspan(statistic * block, block),
                count_ * static_cast<double>(block), statistic);
    }
    count_ += 1;
  }
}

void InputStatistics::add_vector(std::span<const double> values) {
  count_ += 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double before = values[i] - mean_[i];
    mean_[i] += before / count_;
    squares_[i] += before * (values[i] - mean_[i]);
  }
}

void InputStatistics::add_block(std::span<const double> values, double before,
                                std::size_t statistic) {
  const auto size = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  const double block_mean = sum / size;
  double block_squares = 0;
  for (const double value : values) {
    block_squares += (value - block_mean) * (value - block_mean);
  }
  const double difference = block_mean - mean_[statistic];
  const double total = before + size;
  mean_[statistic] += difference * (size / total);
  squares_[statistic] += block_squares + difference * difference * (before * size / total);
}

std::vector<double> InputStatistics::deviation() const {
  const std::size_t each = values_.size() / mean_.size();
  const double elements = count_ * static_cast<double>(each);
  std::vector<double> deviations;
  for (const double squares : squares_) {
    deviations.push_back(std::sqrt(squares / elements));
  }
  return deviations;
}

}  // namespace strata::io
