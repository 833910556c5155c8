#pragma once

#include <cstdint>
#include <filesystem>

#include "strata/io/dataset.hpp"

namespace strata::io {

/// Writes a PNG file with `samples` images spread evenly over a data set, or all where it has
/// fewer. Each image has its class or its first target value below it. Small images are enlarged,
/// large ones are reduced. Pre: samples > 0. Throws: Error(kData) where the samples are damaged or
/// not images of one or three channels; Error(kUsage) where the file cannot be written.
void write_contact_sheet(const Dataset& dataset, const std::filesystem::path& file,
                         std::int64_t samples);

}  // namespace strata::io
