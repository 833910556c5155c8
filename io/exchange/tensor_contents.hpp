#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/io/tensor_files.hpp"

#include "files/posix_file.hpp"

namespace strata::io {

struct TensorFiles::Contents {
  std::vector<MappedFile> files;
  std::map<std::string, StoredTensor> tensors;
  nlohmann::json facts = nlohmann::json::object();
};

/// The bytes of a tensor of this shape, or -1 where 64 bits do not hold them.
[[nodiscard]] inline std::int64_t bytes_of(const StoredTensor& tensor) {
  return checked_bytes(tensor.shape, size_bytes(tensor.type));
}

/// A file that is mapped, and its path for messages. Throws: Error(kData), also for an empty file.
[[nodiscard]] MappedFile map_model_file(const std::filesystem::path& path);

}  // namespace strata::io
