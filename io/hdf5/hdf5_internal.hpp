#pragma once

#include <string_view>

#include "hdf5/hdf5_file.hpp"

/// What the implementation of hdf5_file.hpp shares between its sources.
namespace strata::io::hdf5 {

/// Keeps HDF5 from printing and from cleaning up at exit; comes before every use of it.
void silence();

/// Takes an identifier that HDF5 has just made.
/// Throws: `<what> <path>: <HDF5's reason>` where it was not made.
[[nodiscard]] Handle own(hid_t id, Handle::Close close, const Origin& origin,
                         std::string_view what);

[[nodiscard]] Handle make_space(const Shape& shape, const Origin& origin);

/// Selects a box of a data space; a box without dimensions selects all.
void select(hid_t space, const grid::Box& box, const Origin& origin);

/// A fixed-length UTF-8 text type, padded with zero bytes.
[[nodiscard]] Handle text_type(std::size_t size, const Origin& origin);

}  // namespace strata::io::hdf5
