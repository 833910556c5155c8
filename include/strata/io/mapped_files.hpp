#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace strata::io {

/// Enters a mapped file into a table that mapped_file_at() reads. Where the table is full, the file
/// stays out of it.
void add_mapped_file(std::span<const std::byte> bytes, std::string_view path);
/// Removes the file from the table. Pre: it is still mapped.
void remove_mapped_file(std::span<const std::byte> bytes);

/// The path of the mapped file at an address, fit to print; null where there is none. A signal
/// handler may call it.
[[nodiscard]] const char* mapped_file_at(const void* address);

}  // namespace strata::io
