#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "strata/io/dataset.hpp"

namespace strata::io {

/// Writes a PNG file with `samples` images spread evenly over a data set, or all where it has
/// fewer. Each image has its class or its first target value below it. Small images are enlarged,
/// large ones are reduced. Pre: samples > 0. Throws: Error(kData) where the samples are damaged or
/// not images of one or three channels; Error(kUsage) where the file cannot be written.
void write_contact_sheet(const Dataset& dataset, const std::filesystem::path& file,
                         std::int64_t samples);

/// An image as the bytes of a PNG file.
struct Picture {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::string png;
};

/// Whether samples are images of one or three channels.
[[nodiscard]] bool holds_pictures(const DatasetInfo& info);

/// The first samples of a data set of classes, each with its class below it and, below that, the
/// class that a model gave it: red where they differ. Pre: holds_pictures(); answers has an entry
/// for each shown sample. Throws: Error(kData) where the samples are damaged.
[[nodiscard]] Picture answers_sheet(const Dataset& dataset, std::span<const std::int64_t> answers);

}  // namespace strata::io
