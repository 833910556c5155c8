#include "described_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "strata/core/enum_names.hpp"
#include "strata/core/text.hpp"

#include "hdf5/hdf5_file.hpp"

namespace strata::fuzz {
namespace {

namespace hdf5 = io::hdf5;

constexpr std::int64_t kMostIntegers = 1 << 14;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void append(std::vector<std::byte>& bytes, auto value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

Shape shape_of(const Item& item) {
  return Shape(integers(item.words.size() < 2 ? "" : item.words[1], Shape::kMaxRank));
}

void write_data(hdf5::File& file, const Item& item) {
  const auto dtype = enum_from_name<DType>(item.words.empty() ? "" : item.words[0]);
  const std::vector<std::int64_t> elements = elements_of(item);
  if (elements.empty() || dtype == DType::kBfloat16) {
    return;
  }
  std::vector<std::byte> bytes;
  for (const std::int64_t element : elements) {
    if (dtype == DType::kFloat32) {
      append(bytes, static_cast<float>(element));
    } else if (dtype == DType::kFloat64) {
      append(bytes, static_cast<double>(element));
    } else {
      append(bytes, element);
      bytes.resize(bytes.size() - sizeof element +
                   (dtype ? static_cast<std::size_t>(size_bytes(*dtype)) : sizeof element));
    }
  }
  file.create_dataset(item.name, dtype ? hdf5::element_type(*dtype) : hdf5::uint64_type(),
                      shape_of(item))
      .write(bytes);
}

}  // namespace

std::vector<std::int64_t> elements_of(const Item& item) {
  const std::int64_t bytes = item.words.size() < 2 ? -1 : checked_bytes(shape_of(item), 1);
  if (bytes < 0 || bytes > kMostIntegers) {
    return {};
  }
  const auto values = integers(item.words.size() > 2 ? item.words[2] : "", kMostIntegers);
  std::vector<std::int64_t> elements(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < elements.size() && !values.empty(); ++i) {
    elements[i] = values[i % values.size()];
  }
  return elements;
}

std::vector<std::int64_t> integers(std::string_view list, std::int64_t most) {
  std::vector<std::int64_t> values;
  if (list == "scalar") {
    return {};
  }
  for (const std::string& word : split_words(list, ",")) {
    if (std::ssize(values) < most && !parse_int64(word, values.emplace_back())) {
      values.back() = 0;
    }
  }
  return values;
}

Bundle bundle_of(std::string_view input) {
  constexpr std::string_view kMark = "=== ";
  Bundle bundle;
  std::string* file = nullptr;
  for (const std::string_view line : lines_of(input)) {
    if (line.starts_with(kMark)) {
      file = &bundle[std::string(line.substr(kMark.size()))];
      file->clear();
    } else if (file != nullptr) {
      file->append(file->empty() ? "" : "\n").append(line);
    }
  }
  return bundle;
}

Description description_of(std::string_view text) {
  Description description;
  Item* item = nullptr;
  for (const std::string_view line : lines_of(text)) {
    const std::vector<std::string> words = split_words(line, " ");
    if (line.starts_with("- ") && item != nullptr) {
      item->texts.emplace_back(line.substr(2));
    } else if (words.size() >= 2) {
      item = &description[words[0] + " " + words[1]];
      *item = {words[1], {words.begin() + 2, words.end()}, {}};
    }
  }
  return description;
}

Item item_of(const Description& description, const std::string& key) {
  const auto found = description.find(key);
  return found == description.end() ? Item() : found->second;
}

std::string text_of(const Item& item) {
  return !item.texts.empty() ? item.texts.front() : !item.words.empty() ? item.words.front() : "";
}

std::int64_t int_of(const Item& item) {
  const auto values = integers(text_of(item), 1);
  return values.empty() ? 0 : values.front();
}

void write_described(const std::filesystem::path& path, const Description& description) {
  hdf5::File file = hdf5::File::create(path, ExitCode::kData);
  for (const auto& [key, item] : description) {
    if (key.starts_with("text ")) {
      file.set_text(item.name, text_of(item));
    } else if (key.starts_with("int ")) {
      file.set_int64(item.name, int_of(item));
    } else if (key.starts_with("hash ")) {
      file.set_uint64(item.name, std::strtoull(text_of(item).c_str(), nullptr, 16));
    } else if (key.starts_with("texts ")) {
      file.write_texts(item.name, item.texts);
    } else if (key.starts_with("data ")) {
      write_data(file, item);
    }
  }
}

}  // namespace strata::fuzz
