#pragma once

#include <vector>

#include "strata/config/run_config.hpp"
#include "strata/io/dataset.hpp"

namespace strata::app {

/// A step of a built-in model: small, of operations as training has them.
struct CalibrationModel {
  config::RunConfig config;
  io::DatasetInfo data;
  /// Whether it is measured on several ranks at once too.
  bool with_others = false;
};

/// Models of all kinds and widths from which a machine's operations are measured. `small`: the
/// small ones only, for a test.
[[nodiscard]] std::vector<CalibrationModel> calibration_models(bool small);

}  // namespace strata::app
