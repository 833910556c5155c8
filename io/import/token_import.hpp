#pragma once

#include "strata/io/import.hpp"

namespace strata::io {

/// import_dataset for text and token files. Pre: the output holds no data set or may be replaced.
ImportReport import_tokens(const ImportOptions& options, const SampleProgress& progress);

}  // namespace strata::io
