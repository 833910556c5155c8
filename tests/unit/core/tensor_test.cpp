#include "strata/core/tensor.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/narrow.hpp"
#include "strata/core/shape.hpp"
#include "strata/core/text.hpp"

namespace strata::tensor_test {
namespace {

/// Extents that the compiler does not know beforehand; else it warns of the copy that never comes.
std::vector<std::int64_t> split_extents(const std::string& text) {
  std::vector<std::int64_t> extents;
  for (const std::string& word : split_words(text)) {
    extents.push_back(std::stoll(word));
  }
  return extents;
}

TEST(Shape, CountsAndChangesDimensions) {
  const Shape shape{28, 27};
  EXPECT_EQ(shape.count(), 756);
  EXPECT_EQ(shape.back(), 27);
  EXPECT_EQ(shape.prepended(32), (Shape{32, 28, 27}));
  EXPECT_EQ(shape.prepended(32).tail(), shape);
  EXPECT_EQ(shape.text(), "28 x 27");
  EXPECT_EQ(Shape().count(), 1);
  EXPECT_EQ(Shape().text(), "scalar");
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
  EXPECT_EQ((Shape{4, 0}).count(), 0);
}

TEST(Shape, RefusesMoreDimensionsThanItHolds) {
  const Shape full{1, 1, 1, 1, 1, 1};
  const std::vector<std::int64_t> too_many = split_extents("1 1 1 1 1 1 1");
  EXPECT_THROW(Shape(std::span(too_many)), std::logic_error);
  EXPECT_THROW(static_cast<void>(full.prepended(1)), std::logic_error);
  const std::vector<std::int64_t> none = split_extents("");
  const Shape scalar = Shape(std::span<const std::int64_t>(none));
  EXPECT_THROW(static_cast<void>(scalar.tail()), std::logic_error);
}

TEST(TensorView, GivesItsElementsAsTheirTypeOnly) {
  std::vector<float> values{1, 2, 3, 4, 5, 6};
  const TensorView tensor{std::span(values), Shape{2, 3}};
  EXPECT_EQ(tensor.bytes(), 24);
  EXPECT_EQ(tensor.host<float>()[4], 5.0F);
  EXPECT_THROW(static_cast<void>(tensor.host<double>()), std::logic_error);
  const TensorView elsewhere(tensor.raw(), tensor.shape(), tensor.dtype(), MemorySpace::kCuda);
  EXPECT_THROW(static_cast<void>(elsewhere.host<float>()), std::logic_error);
  EXPECT_EQ(static_cast<void*>(elsewhere.device<float>()), static_cast<void*>(values.data()));
  EXPECT_THROW(static_cast<void>(elsewhere.device<double>()), std::logic_error);
  EXPECT_THROW(static_cast<void>(tensor.device<float>()), std::logic_error);
}

TEST(TensorView, ReshapesAndSlicesWithinItsElements) {
  std::vector<double> values{1, 2, 3, 4, 5, 6};
  const TensorView tensor{std::span(values), Shape{2, 3}};
  EXPECT_EQ(tensor.reshaped(Shape{6}).shape(), Shape{6});
  EXPECT_THROW(static_cast<void>(tensor.reshaped(Shape{5})), std::logic_error);
  EXPECT_EQ(tensor.flat_slice(2, 3).host<double>()[0], 3.0);
  EXPECT_EQ(tensor.flat_slice(6, 0).count(), 0);
  EXPECT_THROW(static_cast<void>(tensor.flat_slice(4, 3)), std::logic_error);
  EXPECT_THROW(static_cast<void>(tensor.flat_slice(-1, 2)), std::logic_error);
  EXPECT_THROW((TensorView{std::span(values), Shape{7}}), std::logic_error);
  EXPECT_TRUE(TensorView().empty());
}

TEST(DType, SizesAreThoseOfTheTypes) {
  EXPECT_EQ(size_bytes(kDTypeOf<float>), 4);
  EXPECT_EQ(size_bytes(kDTypeOf<const double>), 8);
  EXPECT_EQ(size_bytes(kDTypeOf<std::uint8_t>), 1);
  EXPECT_EQ(size_bytes(kDTypeOf<std::int64_t>), 8);
  EXPECT_THROW(with_floating(DType::kInt64, [](auto) {}), std::logic_error);
}

TEST(CheckedInt, RefusesWhatAnIntDoesNotHold) {
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max();
  EXPECT_EQ(checked_int(kLargest, "n"), std::numeric_limits<int>::max());
  EXPECT_THROW(static_cast<void>(checked_int(kLargest + 1, "n")), std::logic_error);
}

}  // namespace
}  // namespace strata::tensor_test
