#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/exchange/published_model.hpp"

namespace strata::exchange::test {

/// Expects tensors to hold every row of every parameter that they name once. Returns their
/// elements.
inline std::int64_t expect_rows_once(const std::vector<PublishedTensor>& tensors) {
  std::int64_t weights = 0;
  std::map<std::string, std::vector<int>> rows;
  for (const PublishedTensor& tensor : tensors) {
    weights += tensor.shape.count();
    std::int64_t elements = 0;
    for (const ParameterRows& part : tensor.rows) {
      elements += part.rows.count() * part.shape.tail().count();
      auto& seen = rows[part.parameter];
      seen.resize(static_cast<std::size_t>(part.shape[0]));
      for (std::int64_t row = part.rows.begin; row < part.rows.end; ++row) {
        ++seen.at(static_cast<std::size_t>(row));
      }
    }
    EXPECT_EQ(elements, tensor.shape.count()) << tensor.name;
  }
  for (const auto& [parameter, seen] : rows) {
    EXPECT_EQ(std::ranges::count(seen, 1), std::ssize(seen)) << parameter;
  }
  return weights;
}

}  // namespace strata::exchange::test
