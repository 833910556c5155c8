#include "import/statistics.hpp"

#include <cmath>

#include "files/raw_elements.hpp"

namespace strata::io {

Statistics::Statistics(DType dtype, std::int64_t elements, std::int64_t statistics)
    : dtype_(dtype), elements_(elements) {
  const auto size = static_cast<std::size_t>(statistics);
  mean_.resize(size);
  squares_.resize(size);
  values_.resize(static_cast<std::size_t>(elements_));
}

void Statistics::add(std::span<const std::byte> samples) {
  const auto bytes = static_cast<std::size_t>(elements_ * size_bytes(dtype_));
  for (std::size_t at = 0; at < samples.size(); at += bytes) {
    decode(samples.subspan(at, bytes), stored_type(dtype_), DType::kFloat64,
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

void Statistics::add_vector(std::span<const double> values) {
  count_ += 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double before = values[i] - mean_[i];
    mean_[i] += before / count_;
    squares_[i] += before * (values[i] - mean_[i]);
  }
}

void Statistics::add_block(std::span<const double> values, double before, std::size_t statistic) {
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

std::vector<double> Statistics::deviation() const {
  const std::size_t each = values_.size() / mean_.size();
  const double elements = count_ * static_cast<double>(each);
  std::vector<double> deviations;
  for (const double squares : squares_) {
    deviations.push_back(std::sqrt(squares / elements));
  }
  return deviations;
}

}  // namespace strata::io
