#include <algorithm>
#include <array>
#include <cstring>

#include <nlohmann/json.hpp>

#include "strata/core/text.hpp"
#include "strata/io/json.hpp"

#include "hdf5/hdf5_internal.hpp"

namespace strata::io::hdf5 {

bool Object::has_attribute(const std::string& name) const {
  silence();
  return is_found(H5Aexists(id(), name.c_str()), origin_, "cannot read an attribute of");
}

void Object::require_within_file(std::int64_t bytes, const std::string& name) const {
  if (bytes < 0 || (origin_.bytes && bytes > *origin_.bytes)) {
    fail(origin_.code, "'{}' of {} claims more bytes than the file has", name,
         origin_.path.string());
  }
}

void Object::set(const std::string& name, const Shape& shape, const ElementType& type,
                 const void* data) {
  silence();
  const Handle space = make_space(shape, origin_);
  if (has_attribute(name)) {
    check(H5Adelete(id(), name.c_str()), origin_, "cannot replace an attribute of");
  }
  const Handle attribute =
      own(H5Acreate2(id(), name.c_str(), type.file, space.get(), H5P_DEFAULT, H5P_DEFAULT),
          &H5Aclose, origin_, fmt::format("cannot make the attribute '{}' of", name));
  check(H5Awrite(attribute.get(), type.memory, data), origin_,
        fmt::format("cannot write the attribute '{}' of", name));
}

void Object::get(const std::string& name, const ElementType& type, std::size_t count,
                 void* data) const {
  silence();
  const std::string what = fmt::format("cannot read the attribute '{}' of", name);
  const Handle attribute = own(H5Aopen(id(), name.c_str(), H5P_DEFAULT), &H5Aclose, origin_, what);
  const Handle space = own(H5Aget_space(attribute.get()), &H5Sclose, origin_, what);
  if (H5Sget_simple_extent_npoints(space.get()) != static_cast<hssize_t>(count)) {
    fail(origin_.code, "the attribute '{}' of {} does not have {} elements as expected", name,
         origin_.path.string(), count);
  }
  check(H5Aread(attribute.get(), type.memory, data), origin_, what);
}

void Object::set_text(const std::string& name, std::string_view text) {
  silence();
  // HDF5 has no text type of size 0; an empty text is one padding byte.
  const std::string padded = text.empty() ? std::string(1, '\0') : std::string(text);
  const Handle type = text_type(padded.size(), origin_);
  set(name, {}, {type.get(), type.get(), 1}, padded.data());
}

void Object::set_int64(const std::string& name, std::int64_t value) {
  set(name, {}, element_type(DType::kInt64), &value);
}

void Object::set_uint64(const std::string& name, std::uint64_t value) {
  set(name, {}, uint64_type(), &value);
}

void Object::set_int64s(const std::string& name, std::span<const std::int64_t> values) {
  set(name, Shape{static_cast<std::int64_t>(values.size())}, element_type(DType::kInt64),
      values.data());
}

std::string Object::text(const std::string& name) const {
  silence();
  const std::string what = fmt::format("cannot read the attribute '{}' of", name);
  const Handle attribute = own(H5Aopen(id(), name.c_str(), H5P_DEFAULT), &H5Aclose, origin_, what);
  const Handle stored = own(H5Aget_type(attribute.get()), &H5Tclose, origin_, what);
  if (H5Tget_class(stored.get()) != H5T_STRING || H5Tis_variable_str(stored.get()) > 0) {
    fail(origin_.code, "the attribute '{}' of {} is not a fixed-length text", name,
         origin_.path.string());
  }
  require_within_file(static_cast<std::int64_t>(H5Tget_size(stored.get())), name);
  std::string value(H5Tget_size(stored.get()), '\0');
  const Handle memory = text_type(value.size(), origin_);
  get(name, {memory.get(), memory.get(), 1}, 1, value.data());
  value.resize(std::min(value.size(), std::strlen(value.c_str())));
  return value;
}

std::int64_t Object::int64(const std::string& name) const {
  std::int64_t value = 0;
  get(name, element_type(DType::kInt64), 1, &value);
  return value;
}

std::uint64_t Object::uint64(const std::string& name) const {
  std::uint64_t value = 0;
  get(name, uint64_type(), 1, &value);
  return value;
}

nlohmann::json Object::json(const std::string& name) const {
  std::optional<nlohmann::json> parsed = parse_json(text(name));
  if (!parsed) {
    fail(origin_.code, "the attribute '{}' of {} is not JSON, or is nested too deep", name,
         origin_.path.string());
  }
  return std::move(*parsed);
}

Shape Dataset::shape() const {
  silence();
  const Handle space =
      own(H5Dget_space(id()), &H5Sclose, origin_, "cannot read the shape of a data set of");
  const int rank = H5Sget_simple_extent_ndims(space.get());
  check(rank, origin_, "cannot read the shape of a data set of");
  if (static_cast<std::size_t>(rank) > Shape::kMaxRank) {
    fail(origin_.code, "the data set '{}' of {} has {} dimensions, at most {} are supported", name_,
         origin_.path.string(), rank, Shape::kMaxRank);
  }
  std::array<hsize_t, Shape::kMaxRank> extents{};
  H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  const std::vector<std::int64_t> values(extents.begin(), extents.begin() + rank);
  return Shape(values);
}

Handle Dataset::stored_type() const {
  silence();
  return own(H5Dget_type(id()), &H5Tclose, origin_, "cannot read the type of a data set of");
}

DType Dataset::dtype() const {
  const Handle type = stored_type();
  for (const auto& [dtype, name] : enum_table<DType>()) {
    if (H5Tequal(type.get(), element_type(dtype).file) > 0) {
      return dtype;
    }
  }
  fail(origin_.code, "the data set '{}' of {} has elements of another type than {}", name_,
       origin_.path.string(), joined_names<DType>());
}

bool Dataset::holds(const ElementType& element) const {
  return H5Tequal(stored_type().get(), element.file) > 0;
}

hid_t Dataset::memory_type() const {
  return holds(uint64_type()) ? uint64_type().memory : element_type(dtype()).memory;
}

hid_t Dataset::type_of_whole(std::size_t bytes) const {
  const Shape whole = shape();
  const hid_t type = memory_type();
  require(bytes == static_cast<std::size_t>(whole.count()) * H5Tget_size(type),
          "{} bytes were given for the data set '{}' of {}", bytes, name_, whole.text());
  return type;
}

void Dataset::write(std::span<const std::byte> elements) {
  const hid_t type = type_of_whole(elements.size());
  check(H5Dwrite(id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, elements.data()), origin_,
        fmt::format("cannot write the data set '{}' of", name_));
}

void Dataset::write(grid::Range range, std::span<const std::byte> elements) {
  const hid_t type = memory_type();
  const std::string what = fmt::format("cannot write the data set '{}' of", name_);
  require(elements.size() == static_cast<std::size_t>(range.count()) * H5Tget_size(type),
          "{} bytes were given for {} elements of '{}'", elements.size(), range.count(), name_);
  const Handle space = own(H5Dget_space(id()), &H5Sclose, origin_, what);
  select(space.get(), {.start = {range.begin}, .count = {range.count()}}, origin_);
  const Handle memory = make_space(Shape{range.count()}, origin_);
  check(H5Dwrite(id(), type, memory.get(), space.get(), H5P_DEFAULT, elements.data()), origin_,
        what);
}

void Dataset::read(std::span<std::byte> elements) const {
  const hid_t type = type_of_whole(elements.size());
  check(H5Dread(id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, elements.data()), origin_,
        fmt::format("cannot read the data set '{}' of", name_));
}

void Dataset::read(std::span<const grid::Box> boxes, std::span<std::byte> elements) const {
  const hid_t type = memory_type();
  const std::string what = fmt::format("cannot read the data set '{}' of", name_);
  const Handle space = own(H5Dget_space(id()), &H5Sclose, origin_, what);
  std::size_t offset = 0;
  for (const grid::Box& box : boxes) {
    const std::size_t bytes = static_cast<std::size_t>(box.elements()) * H5Tget_size(type);
    require(offset + bytes <= elements.size(), "too few bytes for the boxes of '{}'", name_);
    select(space.get(), box, origin_);
    const Handle memory = make_space(Shape{box.elements()}, origin_);
    check(H5Dread(id(), type, memory.get(), space.get(), H5P_DEFAULT, elements.data() + offset),
          origin_, what);
    offset += bytes;
  }
}

std::int64_t Dataset::file_offset() const {
  silence();
  const haddr_t offset = H5Dget_offset(id());
  if (offset == HADDR_UNDEF) {
    fail(origin_.code, "the data set '{}' of {} is not stored in one piece", name_,
         origin_.path.string());
  }
  return static_cast<std::int64_t>(offset);
}

std::int64_t Dataset::bytes() const {
  return checked_bytes(shape(), static_cast<std::int64_t>(H5Tget_size(stored_type().get())));
}

grid::Range Dataset::byte_range() const {
  grid::Range range{file_offset(), 0};
  const std::int64_t size = bytes();
  if (size < 0 || range.begin < 0 || __builtin_add_overflow(range.begin, size, &range.end)) {
    fail(origin_.code, "the data set '{}' of {} lies outside of any file", name_,
         origin_.path.string());
  }
  return range;
}

void Dataset::require_plain() const {
  const std::string what = fmt::format("cannot read the layout of the data set '{}' of", name_);
  const Handle creation = own(H5Dget_create_plist(id()), &H5Pclose, origin_, what);
  const H5D_layout_t layout = H5Pget_layout(creation.get());
  if ((layout != H5D_CONTIGUOUS && layout != H5D_COMPACT) ||
      H5Pget_external_count(creation.get()) != 0) {
    fail(origin_.code, "the data set '{}' of {} is not stored in one piece in the file itself",
         name_, origin_.path.string());
  }
  require_within_file(bytes(), name_);
}

}  // namespace strata::io::hdf5
