#include "hdf5/hdf5_file.hpp"

#include <algorithm>
#include <cstdlib>

#include "strata/core/memory.hpp"

#include "files/posix_file.hpp"
#include "hdf5/hdf5_internal.hpp"

namespace strata::io::hdf5 {
namespace {

constexpr const char* kFormat = "format";
constexpr const char* kVersion = "version";

std::vector<hsize_t> as_hsize(std::span<const std::int64_t> values) {
  return {values.begin(), values.end()};
}

struct Reason {
  enum class Kind { kContent, kSystemCall, kMemory } kind = Kind::kContent;
  int number = 0;  // errno of a system call
  std::string text;
};

herr_t add_entry(unsigned position, const H5E_error2_t* error, void* data) {
  auto& reason = *static_cast<Reason*>(data);
  if (position == 0 && error->desc != nullptr) {
    reason.text = error->desc;
  }
  // No file has property lists: they fail where an allocation did, maybe an earlier one.
  if (error->maj_num == H5E_PLIST || error->maj_num == H5E_SLIST) {
    reason.kind = Reason::Kind::kMemory;
  }
  return 0;
}

// The innermost description on HDF5's error stack.
Reason last_reason() {
  Reason reason;
  std::string& text = reason.text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, &add_entry, &reason);
  H5Eclear2(H5E_DEFAULT);
  // For a failed system call, extract its message from among addresses and offsets.
  constexpr std::string_view kSystemMessage = "error message = '";
  if (const std::size_t begin = text.find(kSystemMessage); begin != std::string::npos) {
    reason.kind = Reason::Kind::kSystemCall;
    constexpr std::string_view kNumber = "errno = ";
    if (const std::size_t number = text.find(kNumber); number < begin) {
      reason.number = std::atoi(text.c_str() + number + kNumber.size());
    }
    text.erase(0, begin + kSystemMessage.size());
    text.erase(std::min(text.find('\''), text.size()));
  }
  if (text.empty()) {
    text = "HDF5 gives no reason";
  }
  return reason;
}

// A file that cannot be flushed, for example on a full disk, is left open: H5Fclose would fail half
// way and leave HDF5 in an inconsistent state.
herr_t close_file(hid_t file) {
  return H5Fflush(file, H5F_SCOPE_GLOBAL) < 0 ? -1 : H5Fclose(file);
}

Handle file_access(const Origin& origin) {
  constexpr const char* kWhat = "cannot set up the access to";
  Handle access = own(H5Pcreate(H5P_FILE_ACCESS), &H5Pclose, origin, kWhat);
  check(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), origin, kWhat);
  // Attributes above 64 KiB need the format of HDF5 1.8 or later.
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_LATEST), origin, kWhat);
  // No file has two writers, and some cluster file systems have no locks.
  check(H5Pset_file_locking(access.get(), false, true), origin, kWhat);
  return access;
}

// Files with the same data must have the same bytes at any time.
void leave_out_times(const Handle& creation, const Origin& origin) {
  check(H5Pset_obj_track_times(creation.get(), 0), origin, "cannot leave the time out of");
}

// Makes the groups on the path of a data set.
void make_groups(hid_t file, const std::string& name, const Origin& origin) {
  constexpr const char* kWhat = "cannot make a group of";
  for (std::size_t end = name.find('/', 1); end != std::string::npos;
       end = name.find('/', end + 1)) {
    const std::string group = name.substr(0, end);
    const htri_t exists = H5Lexists(file, group.c_str(), H5P_DEFAULT);
    check(exists, origin, kWhat);
    if (exists == 0) {
      const Handle creation = own(H5Pcreate(H5P_GROUP_CREATE), &H5Pclose, origin, kWhat);
      leave_out_times(creation, origin);
      const Handle made =
          own(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), &H5Gclose,
              origin, kWhat);
    }
  }
}

// Makes a data set whose layout `set_layout` chooses.
template <typename SetLayout>
Handle make_dataset(hid_t file, const std::string& name, const ElementType& type,
                    const Shape& shape, const Origin& origin, std::string_view what,
                    SetLayout&& set_layout) {
  const Handle space = make_space(shape, origin);
  make_groups(file, name, origin);
  const Handle layout = own(H5Pcreate(H5P_DATASET_CREATE), &H5Pclose, origin, what);
  leave_out_times(layout, origin);
  set_layout(layout.get());
  return own(H5Dcreate2(file, name.c_str(), type.file, space.get(), H5P_DEFAULT, layout.get(),
                        H5P_DEFAULT),
             &H5Dclose, origin, what);
}

}  // namespace

void silence() {
  // HDF5's clean-up at exit crashes where a file could not be flushed.
  static const herr_t kStatus = H5dont_atexit();
  static_cast<void>(kStatus);
  // In the thread-safe build, error printing is a per-thread setting.
  thread_local bool silent = false;
  if (!silent) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    silent = true;
  }
}

Handle own(hid_t id, Handle::Close close, const Origin& origin, std::string_view what) {
  check(id, origin, what);
  return {id, close};
}

Handle make_space(const Shape& shape, const Origin& origin) {
  if (shape.rank() == 0) {
    return own(H5Screate(H5S_SCALAR), &H5Sclose, origin, "cannot describe a scalar of");
  }
  const std::vector<hsize_t> extents = as_hsize(shape.extents());
  return own(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), &H5Sclose,
             origin, "cannot describe a data space of");
}

void select(hid_t space, const grid::Box& box, const Origin& origin) {
  if (box.start.empty()) {
    check(H5Sselect_all(space), origin, "cannot select elements of");
    return;
  }
  check(H5Sselect_hyperslab(space, H5S_SELECT_SET, as_hsize(box.start).data(), nullptr,
                            as_hsize(box.count).data(), nullptr),
        origin, "cannot select elements of");
}

Handle text_type(std::size_t size, const Origin& origin) {
  constexpr const char* kWhat = "cannot make a text type for";
  Handle type = own(H5Tcopy(H5T_C_S1), &H5Tclose, origin, kWhat);
  check(H5Tset_size(type.get(), size), origin, kWhat);
  check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), origin, kWhat);
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), origin, kWhat);
  return type;
}

void check(std::int64_t status, const Origin& origin, std::string_view what) {
  if (status >= 0) {
    return;
  }
  const bool short_of_memory = memory_is_short();
  const Reason reason = last_reason();
  const std::string failed = fmt::format("{} {}", what, origin.path.string());
  if (short_of_memory || reason.kind == Reason::Kind::kMemory) {
    throw OutOfMemory(failed);  // HDF5 may give any other reason
  }
  const std::string message = fmt::format("{}: {}", failed, reason.text);
  if (reason.kind == Reason::Kind::kSystemCall) {
    throw FileSystemError(origin.code, reason.number, message);
  }
  throw Error(origin.code, message);
}

bool is_found(std::int64_t status, const Origin& origin, std::string_view what) {
  try {
    check(status, origin, what);
  } catch (const FileSystemError&) {
    throw;
  } catch (const Error&) {
    return false;
  }
  return status > 0;
}

Handle::~Handle() {
  if (id_ >= 0) {
    silence();
    close_(id_);
  }
}

ElementType element_type(DType dtype) {
  silence();
  switch (dtype) {
    case DType::kFloat32:
      return {H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 4};
    case DType::kFloat64:
      return {H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, 8};
    case DType::kUint8:
      return {H5T_STD_U8LE, H5T_NATIVE_UINT8, 1};
    case DType::kUint16:
      return {H5T_STD_U16LE, H5T_NATIVE_UINT16, 2};
    case DType::kUint32:
      return {H5T_STD_U32LE, H5T_NATIVE_UINT32, 4};
    case DType::kInt64:
      return {H5T_STD_I64LE, H5T_NATIVE_INT64, 8};
    case DType::kBfloat16:
      break;
  }
  return {};
}

ElementType uint64_type() {
  silence();
  return {H5T_STD_U64LE, H5T_NATIVE_UINT64, 8};
}

File File::create(const std::filesystem::path& path, ExitCode code) {
  silence();
  Origin origin{path, code};
  const Handle access = file_access(origin);
  // HDF5 would write what its sieve buffer holds when a data set is closed, which reports no error.
  check(H5Pset_sieve_buf_size(access.get(), 0), origin, "cannot set up the access to");
  const Handle root = own(H5Pcreate(H5P_FILE_CREATE), &H5Pclose, origin, "cannot create");
  leave_out_times(root, origin);
  Handle file = own(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, root.get(), access.get()), &close_file,
                    origin, "cannot create");
  return {std::move(file), std::move(origin)};
}

File File::open(const std::filesystem::path& path, ExitCode code) {
  silence();
  Origin origin{path, code};
  const auto bytes = regular_file_bytes(path, code);
  if (!bytes) {
    fail(code, "{} does not exist", path.string());
  }
  if (!is_found(H5Fis_hdf5(path.c_str()), origin, "cannot open")) {
    H5Eclear2(H5E_DEFAULT);
    fail(code, "{} is not an HDF5 file", path.string());
  }
  const Handle access = file_access(origin);
  Handle file =
      own(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), &close_file, origin, "cannot open");
  origin.bytes = bytes;
  return {std::move(file), std::move(origin)};
}

Dataset File::create_dataset(const std::string& name, const ElementType& type, const Shape& shape) {
  silence();
  const std::string what = fmt::format("cannot make the data set '{}' of", name);
  Handle dataset = make_dataset(id(), name, type, shape, origin_, what, [&](hid_t layout) {
    check(H5Pset_layout(layout, H5D_CONTIGUOUS), origin_, what);
    check(H5Pset_alloc_time(layout, H5D_ALLOC_TIME_EARLY), origin_, what);
    check(H5Pset_fill_time(layout, H5D_FILL_TIME_NEVER), origin_, what);
  });
  return {std::move(dataset), origin_, name};
}

Dataset File::create_virtual(const std::string& name, const ElementType& type, const Shape& shape,
                             std::span<const VirtualPart> parts) {
  silence();
  const std::string what = fmt::format("cannot make the virtual data set '{}' of", name);
  Handle dataset = make_dataset(id(), name, type, shape, origin_, what, [&](hid_t layout) {
    check(H5Pset_layout(layout, H5D_VIRTUAL), origin_, what);
    for (const VirtualPart& part : parts) {
      const Handle target = make_space(shape, origin_);
      const Handle source = make_space(part.source_shape, origin_);
      select(target.get(), part.target, origin_);
      select(source.get(), part.source, origin_);
      check(H5Pset_virtual(layout, target.get(), part.file.c_str(), part.dataset.c_str(),
                           source.get()),
            origin_, what);
    }
  });
  return {std::move(dataset), origin_, name};
}

void File::set_format(std::string_view format, std::int64_t version) {
  set_text(kFormat, format);
  set_int64(kVersion, version);
}

bool File::has_format(std::string_view format) const {
  return has_attribute(kFormat) && text(kFormat) == format;
}

std::int64_t File::version() const {
  return int64(kVersion);
}

Dataset File::open_dataset(const std::string& name) const {
  silence();
  if (!has(name)) {
    fail(origin_.code, "{} has no data set '{}'", origin_.path.string(), name);
  }
  Handle dataset = own(H5Dopen2(id(), name.c_str(), H5P_DEFAULT), &H5Dclose, origin_,
                       fmt::format("cannot open the data set '{}' of", name));
  Dataset opened{std::move(dataset), origin_, name};
  if (origin_.bytes) {
    opened.require_plain();
  }
  return opened;
}

bool File::has(const std::string& name) const {
  silence();
  // H5Lexists requires every group of the path to exist.
  for (std::size_t end = name.find('/', 1);; end = name.find('/', end + 1)) {
    const std::string link = name.substr(0, end);
    if (!is_found(H5Lexists(id(), link.c_str(), H5P_DEFAULT), origin_, "cannot read a link of")) {
      return false;
    }
    H5L_info_t info{};
    check(H5Lget_info(id(), link.c_str(), &info, H5P_DEFAULT), origin_, "cannot read a link of");
    if (info.type != H5L_TYPE_HARD) {
      fail(origin_.code, "'{}' of {} is a link to somewhere else, which strata does not follow",
           link, origin_.path.string());
    }
    if (end == std::string::npos) {
      return true;
    }
  }
}

void File::write_texts(const std::string& name, std::span<const std::string> texts) {
  silence();
  std::size_t longest = 1;
  for (const std::string& text : texts) {
    longest = std::max(longest, text.size());
  }
  std::string cells(longest * texts.size(), '\0');
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i].copy(cells.data() + i * longest, texts[i].size());
  }
  const Handle type = text_type(longest, origin_);
  const Dataset dataset =
      create_dataset(name, {type.get(), type.get(), static_cast<std::int64_t>(longest)},
                     Shape{static_cast<std::int64_t>(texts.size())});
  check(H5Dwrite(dataset.id(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, cells.data()), origin_,
        fmt::format("cannot write the data set '{}' of", name));
}

std::vector<std::string> File::read_texts(const std::string& name) const {
  const Dataset dataset = open_dataset(name);
  const std::string what = fmt::format("cannot read the data set '{}' of", name);
  const Handle stored = own(H5Dget_type(dataset.id()), &H5Tclose, origin_, what);
  if (H5Tget_class(stored.get()) != H5T_STRING || H5Tis_variable_str(stored.get()) > 0) {
    fail(origin_.code, "the data set '{}' of {} does not hold fixed-length texts", name,
         origin_.path.string());
  }
  // require_plain bounds the product.
  const std::size_t longest = H5Tget_size(stored.get());
  const auto count = static_cast<std::size_t>(dataset.shape().count());
  std::string cells(longest * count, '\0');
  const Handle type = text_type(longest, origin_);
  check(H5Dread(dataset.id(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, cells.data()), origin_,
        what);
  std::vector<std::string> texts(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view cell = std::string_view(cells).substr(i * longest, longest);
    texts[i] = cell.substr(0, cell.find('\0'));
  }
  return texts;
}

void File::finish() {
  silence();
  check(close_file(handle_.release()), origin_, "cannot write");
  sync_file(origin_.path, origin_.code);
}

}  // namespace strata::io::hdf5
