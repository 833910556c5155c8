#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "strata/nn/model.hpp"
#include "strata/nn/preset.hpp"

namespace strata::test {

/// Holds the number of parameters of each preset's model to the published one.
inline void expect_parameter_counts(const std::map<nn::Preset, std::int64_t>& published,
                                    const std::function<nn::Model(nn::Preset)>& model_of) {
  for (const auto& [preset, parameters] : published) {
    EXPECT_EQ(model_of(preset).parameter_count(), parameters) << name_of(preset);
  }
}

}  // namespace strata::test
