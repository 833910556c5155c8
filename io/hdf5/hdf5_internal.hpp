#pragma once

#include <string_view>

#include "hdf5/hdf5_file.hpp"

/// Helpers shared by the sources of hdf5_file.hpp.
namespace strata::io::hdf5 {

/// Disables HDF5's error printing and its clean-up at exit. Call before every use of HDF5.
void silence();

/// Takes ownership of an identifier that HDF5 returned.
/// Throws: `<what> <path>: <HDF5's reason>` where it is invalid.
[[nodiscard]] Handle own(hid_t id, Handle::Close close, const Origin& origin,
                         std::string_view what);

[[nodiscard]] Handle make_space(const Shape& shape, const Origin& origin);

/// Selects a box of a data space; a box of rank 0 selects all.
void select(hid_t space, const grid::Box& box, const Origin& origin);

/// A fixed-length UTF-8 text type, padded with zero bytes.
[[nodiscard]] Handle text_type(std::size_t size, const Origin& origin);

}  // namespace strata::io::hdf5
