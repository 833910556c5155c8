#pragma once

#include "strata/config/command.hpp"
#include "strata/io/import.hpp"

namespace strata::app {

/// How pictures become samples, by the options resize, crop, channels, skip-bad and threads.
/// Throws: Error(kUsage).
[[nodiscard]] io::ImageOptions image_options(const config::CommandLine& line);

}  // namespace strata::app
