#pragma once

#include <map>
#include <string>
#include <vector>

#include "strata/io/tensor_files.hpp"

#include "files/posix_file.hpp"

namespace strata::io {

struct TensorFiles::Contents {
  std::vector<MappedFile> files;
  std::map<std::string, StoredTensor> tensors;
  LlmcHeader llmc;
};

/// A file that is mapped, and its path for messages. Throws: Error(kData), also for an empty file.
[[nodiscard]] MappedFile map_model_file(const std::filesystem::path& path);

}  // namespace strata::io
