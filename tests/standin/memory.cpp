#include "memory.hpp"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "blocks.hpp"

namespace standin {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20U;
/// What addresses of device memory are multiples of.
constexpr std::size_t kAlignmentBytes = 256;
/// What new memory is full of.
constexpr std::byte kFresh{0xFF};
/// Addresses, not memory.
constexpr std::size_t kRangeBytes = std::size_t{8} << 40U;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool protects() {
  const char* const set = std::getenv("STRATA_STANDIN_PROTECT");
  return set == nullptr || std::string_view(set) != "0";
}

std::byte* range();

struct sigaction earlier_action;

/// What is counted; null where nothing is.
Memory::Touched* counted = nullptr;
/// Whose pages are.
const Memory* counting = nullptr;

/// Opens a page that is counted, for writing where it is written to; false where it is no tensor's.
bool count_page(const siginfo_t* info, void* context) {
  if (counted == nullptr || !counting->holds_page(info->si_addr)) {
    return false;
  }
  constexpr greg_t kWrites = 2;
  const bool writes =
      (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWrites) != 0;
  (writes ? counted->written_bytes : counted->read_bytes) += kPageBytes;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr) / kPageBytes * kPageBytes;
  return mprotect(reinterpret_cast<void*>(address), kPageBytes,
                  writes ? PROT_READ | PROT_WRITE : PROT_READ) == 0;
}

/// Says what a touch of device memory was, and hands the signal to whom it was for before.
void on_bad_access(int signal, siginfo_t* info, void* context) {
  if (count_page(info, context)) {
    return;
  }
  if (Memory::is_device(info->si_addr)) {
    char text[512];
    const char* const kernel = running_kernel();
    const int length =
        kernel == nullptr
            ? std::snprintf(text, sizeof(text),
                            "stand-in for a GPU: the host touched device memory at %p\n",
                            info->si_addr)
            : std::snprintf(text, sizeof(text),
                            "stand-in for a GPU: block %u, thread %u touched %p, which is no "
                            "tensor's memory, or the host touched it meanwhile: %.300s\n",
                            blockIdx.x, threadIdx.x, info->si_addr, kernel);
    const auto bytes = static_cast<std::size_t>(length);
    static_cast<void>(!write(STDERR_FILENO, text, bytes < sizeof(text) ? bytes : sizeof(text) - 1));
  }
  sigaction(signal, &earlier_action, nullptr);
}

std::byte* reserved_range() {
  void* const memory =
      mmap(nullptr, kRangeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("stand-in for a GPU: there are no addresses for its memory");
    std::abort();
  }
  struct sigaction action {};
  action.sa_sigaction = on_bad_access;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &earlier_action);
  return static_cast<std::byte*>(memory);
}

std::byte* range() {
  static std::byte* const begin = reserved_range();
  return begin;
}

}  // namespace

bool Memory::is_device(const void* address) {
  const auto offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(range());
  return offset < kRangeBytes;
}

void* Memory::allocate(int device, std::size_t bytes, std::size_t device_bytes) {
  const std::size_t used = used_bytes(device);
  const std::size_t padded = rounded_up(bytes, kAlignmentBytes);
  if (bytes > device_bytes || padded > device_bytes - used) {
    return nullptr;
  }
  const bool is_large = padded >= kHugePageBytes;
  Allocation made{device, bytes, nullptr, rounded_up(padded, kPageBytes), nullptr};
  const std::size_t offset = rounded_up(next_, is_large ? kHugePageBytes : kPageBytes);
  if (made.page_bytes + kPageBytes > kRangeBytes - offset) {
    return nullptr;
  }
  made.pages = range() + offset;
  if (mprotect(made.pages, made.page_bytes, PROT_READ | PROT_WRITE) != 0) {
    return nullptr;
  }
  if (is_large) {
    // Opening and closing is then a matter of few pages.
    madvise(made.pages, made.page_bytes, MADV_HUGEPAGE);
  }
  std::memset(made.pages, static_cast<int>(kFresh), made.page_bytes);
  if (protects()) {
    mprotect(made.pages, made.page_bytes, PROT_NONE);
  }
  next_ = offset + made.page_bytes + kPageBytes;
  made.address = made.pages + made.page_bytes - padded;
  allocations_.emplace(made.address, made);
  return made.address;
}

bool Memory::release(const void* address) {
  const auto found = allocations_.find(static_cast<const std::byte*>(address));
  if (found == allocations_.end()) {
    return false;
  }
  require_intact_edges(found->second);
  // Other pages, of which none is there, come in their place.
  mmap(found->second.pages, found->second.page_bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  allocations_.erase(found);
  return true;
}

void Memory::require_intact_edges(const Allocation& allocation) {
  mprotect(allocation.pages, allocation.page_bytes, PROT_READ);
  const auto is_intact = [](const std::byte* begin, const std::byte* end) {
    return std::all_of(begin, end, [](std::byte byte) { return byte == kFresh; });
  };
  if (!is_intact(allocation.pages, allocation.address) ||
      !is_intact(allocation.address + allocation.bytes, allocation.pages + allocation.page_bytes)) {
    std::fprintf(stderr,
                 "stand-in for a GPU: a kernel wrote just before or behind the %zu bytes at %p\n",
                 allocation.bytes, static_cast<const void*>(allocation.address));
    std::abort();
  }
}

std::optional<int> Memory::device_of(const void* address) const {
  const auto found = allocations_.upper_bound(static_cast<const std::byte*>(address));
  return found != allocations_.begin() && holds(address, 1)
             ? std::optional(std::prev(found)->second.device)
             : std::nullopt;
}

bool Memory::holds(const void* address, std::size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(address);
  auto found = allocations_.upper_bound(begin);
  if (found == allocations_.begin()) {
    return false;
  }
  --found;
  const auto offset = static_cast<std::size_t>(begin - found->first);
  return offset <= found->second.bytes && bytes <= found->second.bytes - offset;
}

bool Memory::holds_page(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  // An allocation begins within its first pages.
  auto found = allocations_.upper_bound(byte + kHugePageBytes);
  while (found != allocations_.begin()) {
    --found;
    if (byte >= found->second.pages) {
      return byte < found->second.pages + found->second.page_bytes;
    }
  }
  return false;
}

Memory::Touched Memory::touched_by(const std::function<void()>& work) const {
  Touched touched;
  close();
  counting = this;
  counted = &touched;
  work();
  counted = nullptr;
  open();
  return touched;
}

std::size_t Memory::used_bytes(int device) const {
  std::size_t used = 0;
  for (const auto& [address, allocation] : allocations_) {
    used += allocation.device == device ? rounded_up(allocation.bytes, kAlignmentBytes) : 0;
  }
  return used;
}

void* Memory::allocate_pinned(std::size_t bytes) {
  void* const memory = std::aligned_alloc(kPageBytes, rounded_up(bytes, kPageBytes));
  if (memory != nullptr) {
    std::memset(memory, static_cast<int>(kFresh), bytes);
    pinned_.emplace(static_cast<std::byte*>(memory), bytes);
  }
  return memory;
}

bool Memory::release_pinned(void* address) {
  if (pinned_.erase(static_cast<std::byte*>(address)) == 0) {
    return false;
  }
  std::free(address);
  return true;
}

bool Memory::is_pinned(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  auto found = pinned_.upper_bound(byte);
  if (found == pinned_.begin()) {
    return false;
  }
  --found;
  return byte < found->first + found->second;
}

void Memory::protect(bool is_open) const {
  if (!protects()) {
    return;
  }
  for (const auto& [address, allocation] : allocations_) {
    if (mprotect(allocation.pages, allocation.page_bytes,
                 is_open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
      std::perror("stand-in for a GPU: opening or closing its memory");
      std::abort();
    }
  }
}

}  // namespace standin
