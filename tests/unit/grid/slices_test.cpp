#include "strata/grid/slices.hpp"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace strata::grid::slices_test {
namespace {

/// Row-major indices of the elements of a box, in order.
std::vector<std::int64_t> elements_of(const Shape& shape, const Box& box) {
  std::vector<std::int64_t> elements;
  std::vector<std::int64_t> at(shape.rank(), 0);
  for (std::int64_t i = 0; i < box.elements(); ++i) {
    std::int64_t index = 0;
    for (std::size_t d = 0; d < shape.rank(); ++d) {
      index = index * shape[d] + box.start[d] + at[d];
    }
    elements.push_back(index);
    for (std::size_t d = shape.rank(); d-- > 0 && ++at[d] == box.count[d];) {
      at[d] = 0;
    }
  }
  return elements;
}

TEST(BoxesOf, AreTheRangeElementByElement) {
  const std::vector<Shape> shapes{Shape{7},          Shape{1, 5},         Shape{4, 3},
                                  Shape{3, 2, 4},    Shape{2, 1, 3, 2},   Shape{5, 1, 1},
                                  Shape{2, 2, 2, 2}, Shape{2, 3, 1, 2, 2}};
  for (const Shape& shape : shapes) {
    for (std::int64_t begin = 0; begin <= shape.count(); ++begin) {
      for (std::int64_t end = begin; end <= shape.count(); ++end) {
        std::vector<std::int64_t> expected;
        for (std::int64_t i = begin; i < end; ++i) {
          expected.push_back(i);
        }
        const std::vector<Box> boxes = boxes_of(shape, {begin, end});
        std::vector<std::int64_t> found;
        for (const Box& box : boxes) {
          for (std::size_t d = 0; d < shape.rank(); ++d) {
            ASSERT_LE(box.start[d] + box.count[d], shape[d]) << shape.text();
            ASSERT_GE(box.count[d], 1);
          }
          const std::vector<std::int64_t> elements = elements_of(shape, box);
          found.insert(found.end(), elements.begin(), elements.end());
        }
        ASSERT_EQ(found, expected) << shape.text() << " [" << begin << ", " << end << ")";
        ASSERT_LE(boxes.size(), 2 * shape.rank() + 1);
      }
    }
  }
}

TEST(BoxesOf, AScalarIsOneBoxWithoutDimensions) {
  EXPECT_EQ(boxes_of(Shape{}, {0, 1}), (std::vector<Box>{{}}));
  EXPECT_TRUE(boxes_of(Shape{}, {0, 0}).empty());
}

TEST(BoxesOf, RefusesARangeOutside) {
  EXPECT_THROW(static_cast<void>(boxes_of(Shape{2, 3}, {0, 7})), std::logic_error);
  EXPECT_THROW(static_cast<void>(boxes_of(Shape{2, 3}, {-1, 3})), std::logic_error);
  EXPECT_THROW(static_cast<void>(boxes_of(Shape{2, 3}, {4, 3})), std::logic_error);
}

}  // namespace
}  // namespace strata::grid::slices_test
