#include "record/histograms.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace strata::train::histograms_test {
namespace {

TEST(HistogramBuckets, EndBelowTheirLimits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (std::size_t bucket = 0; bucket + 1 < kHistogramBuckets; ++bucket) {
    const double limit = limit_of(bucket);
    EXPECT_LT(limit, limit_of(bucket + 1));
    EXPECT_EQ(bucket_of(limit), bucket + 1) << limit;
    EXPECT_EQ(bucket_of(std::nextafter(limit, -kInfinity)), bucket) << limit;
  }
  EXPECT_EQ(limit_of(kHistogramBuckets / 2 - 1), 0.0);
  EXPECT_EQ(bucket_of(-0.0), bucket_of(0.0));
  EXPECT_EQ(bucket_of(-kInfinity), 0U);
  EXPECT_EQ(bucket_of(kInfinity), kHistogramBuckets - 1);
  EXPECT_EQ(limit_of(kHistogramBuckets - 1), std::numeric_limits<double>::max());
}

}  // namespace
}  // namespace strata::train::histograms_test
