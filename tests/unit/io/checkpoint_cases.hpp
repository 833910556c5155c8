#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/shape.hpp"
#include "strata/grid/grid.hpp"
#include "strata/io/checkpoint.hpp"

#include "data_files.hpp"

namespace strata::io::test {

/// Tensors of every rank up to four, of both dtypes; element i of tensor t is 1000 t + i + 1/8.
struct Model {
  std::vector<TensorInfo> infos{
      {"optimizer/adam_m/dense1.weight", Shape{7, 5}, DType::kFloat32},
      {"optimizer/step_size", Shape{}, DType::kFloat64},
      {"weights/conv.weight", Shape{3, 2, 5, 3}, DType::kFloat64},
      {"weights/dense1.bias", Shape{7}, DType::kFloat32},
      {"weights/dense1.weight", Shape{7, 5}, DType::kFloat32},
      {"weights/table", Shape{4, 3, 5}, DType::kFloat32},
  };
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<double>> doubles;

  explicit Model(double offset = 0.125) {
    for (std::size_t t = 0; t < infos.size(); ++t) {
      floats.emplace_back();
      doubles.emplace_back();
      for (std::int64_t i = 0; i < infos[t].shape.count(); ++i) {
        const double value = 1000.0 * static_cast<double>(t) + static_cast<double>(i) + offset;
        floats.back().push_back(static_cast<float>(value));
        doubles.back().push_back(value);
      }
    }
  }

  [[nodiscard]] ConstTensorView view(std::size_t t) const {
    const Shape flat{infos[t].shape.count()};
    return infos[t].dtype == DType::kFloat32
               ? ConstTensorView(std::span<const float>(floats[t]), flat)
               : ConstTensorView(std::span<const double>(doubles[t]), flat);
  }

  [[nodiscard]] TensorSlice slice(std::size_t t, const grid::Range& range) const {
    return {.name = infos[t].name,
            .global_shape = infos[t].shape,
            .range = range,
            .data = view(t).flat_slice(range.begin, range.count())};
  }

  /// What writer `writer` of `writers` holds: flat ranges that end anywhere, also in mid-row, and
  /// that are of very different lengths.
  [[nodiscard]] std::vector<TensorSlice> slices_of(std::int64_t writer,
                                                   std::int64_t writers) const {
    std::vector<TensorSlice> slices;
    for (std::size_t t = 0; t < infos.size(); ++t) {
      const std::int64_t count = infos[t].shape.count();
      const auto border = [&](std::int64_t index) {
        return count * index * index / (writers * writers);
      };
      slices.push_back(slice(t, {.begin = border(writer), .end = border(writer + 1)}));
    }
    return slices;
  }
};

inline std::filesystem::path write_checkpoint(const std::filesystem::path& root, std::int64_t step,
                                              std::int64_t writers, const Model& model = Model(),
                                              const nlohmann::json& metadata = {{"seed", 7}}) {
  const std::filesystem::path directory = begin_checkpoint(root, step);
  std::vector<PartRecord> records;
  for (std::int64_t writer = 0; writer < writers; ++writer) {
    const PartRecord record = write_part(directory, writer, model.slices_of(writer, writers));
    records.push_back(part_record_of(text_of(record)));
  }
  return commit_checkpoint(root, step, records, metadata);
}

/// The message of the Error(kCheckpoint) that `function` throws.
inline std::string checkpoint_error(const std::function<void()>& function) {
  return strata::test::error_of(function, ExitCode::kCheckpoint);
}

}  // namespace strata::io::test
