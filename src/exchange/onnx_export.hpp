#pragma once

#include "strata/exchange/model_files.hpp"

namespace strata::exchange {

/// Writes a checkpoint's model of vectors or images as a graph of ONNX, model.onnx, which takes
/// samples as a data set stores them and gives the probabilities of classes, or values in the
/// data's units. Throws: Error(kUsage) naming the first layer that it cannot hold; else as
/// export_model().
ExportedModel export_onnx(const io::Checkpoint& checkpoint, const std::filesystem::path& output,
                          const ExportOptions& options);

}  // namespace strata::exchange
