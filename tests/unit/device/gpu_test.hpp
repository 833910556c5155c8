#pragma once

#include <gtest/gtest.h>

#include "strata/device/device.hpp"

namespace strata::device {

/// Tests that need a GPU; skipped where there is none.
class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

}  // namespace strata::device
