#pragma once

#include <cstddef>
#include <cstring>
#include <string>

// With STRATA_STANDIN_RECORD=FILE the stand-in is an instrument: FILE has a line for each piece of
// work, with the bytes of device memory that it touched, counted in pages. The libraries then touch
// their tensors and compute nothing: results are zeros.
//
//   put  STREAM INDEX KIND FLOPS AFTER-STREAM AFTER-INDEX RANGES   where it is put on a stream
//   done STREAM INDEX BYTES-READ BYTES-WRITTEN
//
// KIND is "kernel ADDRESS", a library's call, "copy", "fill", "wait" or "time". RANGES are the NVTX
// ranges of the calling thread. A file has the lines of one process.
extern "C" {
/// Whether there is such a file.
int standin_records();
/// What this thread puts on a stream next.
void standin_describe(const char* kind, double flops);
}

namespace standin {

struct Stream;
struct Work;

void record_put(const Stream& stream, const Work& work);
void record_done(const Stream& stream, std::size_t read, std::size_t written);
void push_range(const char* name);
void pop_range();

/// Reads each page of a tensor.
inline void touch(const void* at, std::size_t bytes) {
  constexpr std::size_t kPageBytes = 4096;
  const auto* const first = static_cast<const volatile char*>(at);
  for (std::size_t i = 0; i < bytes; i += kPageBytes) {
    static_cast<void>(first[i]);
  }
  if (bytes > 0) {
    static_cast<void>(first[bytes - 1]);
  }
}

/// Overwrites a tensor.
inline void touch_written(void* at, std::size_t bytes) {
  std::memset(at, 0, bytes);
}

}  // namespace standin
