#pragma once

#include <optional>
#include <string_view>

#include "strata/io/import.hpp"

#include "import/pending_file.hpp"
#include "import/split_text.hpp"

namespace strata::io {

/// The options with the files that they stand for: `inputs` and `targets` hold those of train and
/// then those of test. A directory with the folders train and test stands for both, a directory of
/// texts or tables for the files in it, "-" for a copy of standard input in the output directory.
struct ResolvedInputs {
  /// Throws: Error(kData) for an empty directory; Error(kUsage) where both the files and `split`
  /// say what is in the test split, where the output lies in a directory that is read, and where
  /// standard input cannot be read.
  explicit ResolvedInputs(const ImportOptions& given);

  ImportOptions options;
  std::optional<PendingFile> standard_input;
};

/// Throws: Error(kData) where the files of a split hold nothing.
void require_samples(const ImportOptions& resolved, const SplitCounts& counts,
                     std::string_view unit);

}  // namespace strata::io
