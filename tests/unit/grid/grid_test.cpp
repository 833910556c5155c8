#include "strata/grid/grid.hpp"

#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace strata::grid::grid_test {
namespace {

TEST(Grid, RanksAndCoordinatesAreInverse) {
  for (std::int64_t shape = 0; shape < 4 * 4 * 4 * 4; ++shape) {
    const Grid grid{.data = shape % 4 + 1,
                    .pipeline = shape / 4 % 4 + 1,
                    .tensor = shape / 16 % 4 + 1,
                    .islands = shape / 64 + 1};
    // Tensor varies fastest, then data, then islands, then pipeline.
    std::int64_t rank = 0;
    for (std::int64_t p = 0; p < grid.pipeline; ++p) {
      for (std::int64_t i = 0; i < grid.islands; ++i) {
        for (std::int64_t d = 0; d < grid.data; ++d) {
          for (std::int64_t t = 0; t < grid.tensor; ++t, ++rank) {
            const Coordinates coordinates{.data = d, .pipeline = p, .tensor = t, .islands = i};
            ASSERT_EQ(grid.coordinates_of(rank), coordinates) << grid.text();
            ASSERT_EQ(grid.rank_of(coordinates), rank) << grid.text();
            const std::int64_t places[] = {d, p, t, i};  // in the order of the axes
            for (std::size_t axis = 0; axis < std::size(places); ++axis) {
              const auto group = grid.group_of(rank, static_cast<Axis>(axis));
              ASSERT_EQ(group[static_cast<std::size_t>(places[axis])], rank) << grid.text();
            }
          }
        }
      }
    }
    ASSERT_EQ(grid.ranks(), rank);
  }
}

TEST(Grid, GroupsRunAlongOneAxis) {
  const Grid grid{.data = 3, .pipeline = 2, .tensor = 2};
  const Coordinates coordinates{.data = 1, .pipeline = 1, .tensor = 1};
  const std::int64_t rank = grid.rank_of(coordinates);
  EXPECT_EQ(rank, 9);
  EXPECT_EQ(grid.group_of(rank, Axis::kTensor), (std::vector<std::int64_t>{8, 9}));
  EXPECT_EQ(grid.group_of(rank, Axis::kData), (std::vector<std::int64_t>{7, 9, 11}));
  EXPECT_EQ(grid.group_of(rank, Axis::kPipeline), (std::vector<std::int64_t>{3, 9}));
}

TEST(Grid, EveryMemberOfAGroupSeesTheSameGroup) {
  for (const Grid& grid : {Grid{2, 3, 1}, Grid{3, 2, 1}, Grid{4, 2, 3}, Grid{2, 3, 2, 3}}) {
    for (const Axis axis : {Axis::kData, Axis::kPipeline, Axis::kTensor, Axis::kIslands}) {
      for (std::int64_t rank = 0; rank < grid.ranks(); ++rank) {
        const std::vector<std::int64_t> group = grid.group_of(rank, axis);
        for (const std::int64_t member : group) {
          ASSERT_EQ(grid.group_of(member, axis), group) << grid.text();
        }
      }
    }
  }
}

TEST(Grid, RefusesWhatIsNotOnIt) {
  const Grid grid{2, 3, 1};
  EXPECT_THROW(static_cast<void>(grid.coordinates_of(6)), std::logic_error);
  EXPECT_THROW(static_cast<void>(grid.coordinates_of(-1)), std::logic_error);
  EXPECT_THROW(static_cast<void>(grid.rank_of({.data = 2})), std::logic_error);
  EXPECT_THROW(static_cast<void>(grid.rank_of({.tensor = 1})), std::logic_error);
  EXPECT_THROW(static_cast<void>(grid.rank_of({.islands = 1})), std::logic_error);
}

TEST(EvenPart, AssignsEverythingInOrderAndEvenly) {
  for (std::int64_t count = 0; count <= 40; ++count) {
    for (std::int64_t parts = 1; parts <= 12; ++parts) {
      std::int64_t next = 0;
      std::int64_t previous = count;
      for (std::int64_t index = 0; index < parts; ++index) {
        const Range part = even_part(count, parts, index);
        ASSERT_EQ(part.begin, next);
        ASSERT_LE(part.count(), previous);
        ASSERT_GE(part.count(), count / parts);
        ASSERT_LE(part.count(), (count + parts - 1) / parts);
        next = part.end;
        previous = part.count();
      }
      ASSERT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace strata::grid::grid_test
