#pragma once

#include "strata/io/import.hpp"

#include "import/import_output.hpp"

namespace strata::io {

/// import_dataset for text and token files.
ImportReport import_tokens(const ImportOptions& options, const OutputDirectory& output,
                           const SampleProgress& progress);

}  // namespace strata::io
