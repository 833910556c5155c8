#pragma once

#include <cstdint>
#include <filesystem>

#include "strata/io/dataset.hpp"

namespace strata::io {

/// Writes a PNG file with images of a data set, spread over all of it in file order, each with its
/// class or its first target value below. Small images are enlarged, large ones made smaller.
/// Pre: samples > 0; of a smaller data set all are shown.
/// Throws: Error(kData) where the samples are not images of one or three channels, or are damaged;
/// Error(kUsage) where the file cannot be written.
void write_contact_sheet(const Dataset& dataset, const std::filesystem::path& file,
                         std::int64_t samples);

}  // namespace strata::io
