#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace standin {

/// The memory of the GPUs, and pinned memory of the host. Between open() and close() kernels and
/// copies may touch the first; at any other time a touch ends the program with a line that says so,
/// unless the environment has STRATA_STANDIN_PROTECT=0. An allocation ends before a page that is
/// never there, what is left of its own pages must not be written, and its addresses are not used
/// again.
class Memory {
 public:
  /// Whether an address is of the kind that allocate() gives.
  [[nodiscard]] static bool is_device(const void* address);

  /// Memory full of 0xFF bytes; null where the device has not that much left.
  [[nodiscard]] void* allocate(int device, std::size_t bytes, std::size_t device_bytes);
  /// False where nothing begins there. Ends the program with a line where a kernel wrote before or
  /// behind the allocation.
  [[nodiscard]] bool release(const void* address);
  /// The device of the allocation at an address; nothing where there is none.
  [[nodiscard]] std::optional<int> device_of(const void* address) const;
  /// Whether all of it lies in one allocation.
  [[nodiscard]] bool holds(const void* address, std::size_t bytes) const;
  /// Whether a page of an allocation has this address.
  [[nodiscard]] bool holds_page(const void* address) const;
  [[nodiscard]] std::size_t used_bytes(int device) const;

  [[nodiscard]] void* allocate_pinned(std::size_t bytes);
  [[nodiscard]] bool release_pinned(void* address);
  [[nodiscard]] bool is_pinned(const void* address) const;

  /// Bytes of pages.
  struct Touched {
    std::size_t read_bytes = 0;
    std::size_t written_bytes = 0;
  };
  /// What the work reads and writes; a page that it writes first counts as written only.
  Touched touched_by(const std::function<void()>& work) const;

  void open() const { protect(true); }
  void close() const { protect(false); }

 private:
  struct Allocation {
    int device = 0;
    std::size_t bytes = 0;
    std::byte* pages = nullptr;
    std::size_t page_bytes = 0;
    std::byte* address = nullptr;
  };

  static void require_intact_edges(const Allocation& allocation);
  void protect(bool is_open) const;

  std::map<const std::byte*, Allocation> allocations_;
  std::map<const std::byte*, std::size_t> pinned_;
  std::size_t next_ = 0;  ///< in the range of addresses
};

}  // namespace standin
