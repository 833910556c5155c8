#pragma once

#include "strata/io/import.hpp"

#include "import/import_output.hpp"

namespace strata::io {

/// import_dataset for text and token files. `output`: null but on rank 0. Pre: files of tokens are
/// imported by one rank.
ImportReport import_tokens(const ImportOptions& options, const OutputDirectory* output,
                           const SampleProgress& progress, const ImportRanks& ranks);

}  // namespace strata::io
