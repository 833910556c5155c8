#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// Directories of HDF5 files from text, so that what a fuzzer changes passes checksums and HDF5 and
/// reaches the reader of data sets or checkpoints.
namespace strata::fuzz {

/// One line: what it makes, a name, and words. `- text` appends a text to the item above.
struct Item {
  std::string name;
  std::vector<std::string> words;
  std::vector<std::string> texts;
};

/// The files of a directory by name. In the input, a line "=== NAME" begins a file; the line break
/// before the next such line does not belong to it.
using Bundle = std::map<std::string, std::string>;
[[nodiscard]] Bundle bundle_of(std::string_view input);

/// Lines by "kind name". Kinds: text, int and hash (attributes), data and texts (data sets).
using Description = std::map<std::string, Item>;
[[nodiscard]] Description description_of(std::string_view text);

/// The item with this key; an empty one where there is none.
[[nodiscard]] Item item_of(const Description& description, const std::string& key);
/// Its first text or word.
[[nodiscard]] std::string text_of(const Item& item);
[[nodiscard]] std::int64_t int_of(const Item& item);
/// The elements of a data set, which takes the words dtype, extents and values; the values repeat.
/// None for a large one.
[[nodiscard]] std::vector<std::int64_t> elements_of(const Item& item);
/// The integers of a list such as "2,3", at most `most`; 0 for what is no number.
[[nodiscard]] std::vector<std::int64_t> integers(std::string_view list, std::int64_t most);

/// Writes an HDF5 file with the items.
void write_described(const std::filesystem::path& path, const Description& description);

}  // namespace strata::fuzz
