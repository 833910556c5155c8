#include "environment/loaded_libraries.hpp"

#include <array>
#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace strata::app {
namespace {

namespace fs = std::filesystem;

/// What a file of a library is, by how its name begins; empty where it carries no messages.
std::string_view library_of(std::string_view file) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kNames{
      {{"libmpi_cxx", ""},           {"libmpi_mpifh", ""},
       {"libmpi_usempi", ""},        {"libmpi", "MPI"},
       {"libpmix.", "PMIx"},         {"libfabric.", "libfabric"},
       {"libcxi.", kProvider},       {"libefa.", kProvider},
       {"libpsm2.", kProvider},      {"libibverbs.", kProvider},
       {"libucp.", "UCX"},           {"libnccl.", "NCCL"},
       {"libnccl-", "NCCL plug-in"}, {"libnccl_", "NCCL plug-in"},
       {"libcuda.", "CUDA driver"},  {"mca_pml_", kTransport},
       {"mca_mtl_", kTransport},     {"mca_btl_", kTransport},
       {"libopa.", kProvider},       {"libopx", kProvider}}};
  if (file.find("-fi.so") != std::string_view::npos) {
    return kProvider;  // of libfabric
  }
  for (const auto& [begin, name] : kNames) {
    if (file.starts_with(begin) && file.find(".so") != std::string_view::npos) {
      return name;
    }
  }
  return "";
}

}  // namespace

std::vector<VersionFact> loaded_libraries(const std::filesystem::path& maps) {
  std::map<std::string, std::set<std::string>> found;
  std::ifstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find('/');
    if (begin == std::string::npos) {
      continue;
    }
    const fs::path file = line.substr(begin);
    const std::string name = file.filename();
    if (const std::string_view library = library_of(name); library == kTransport) {
      found[kTransport].insert(name.substr(4, name.find('.') - 4));  // "btl_tcp"
    } else if (!library.empty()) {
      found[std::string(library)].insert(file);
    }
  }
  std::vector<VersionFact> libraries;
  libraries.reserve(found.size());
  for (const auto& [name, paths] : found) {
    libraries.push_back({name, fmt::format("{}", fmt::join(paths, ", "))});
  }
  return libraries;
}

std::string libraries_text(std::span<const VersionFact> libraries) {
  std::string text;
  for (const VersionFact& library : libraries) {
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", library.name, library.version);
  }
  return text.empty() ? "none" : text;
}

}  // namespace strata::app
