// A library that CUDA loads into a process where CUDA_INJECTION64_PATH names it. It records when
// each kernel, copy and fill of memory began and ended on the GPU, by CUPTI's activity records, and
// writes a report when the process exits:
//   GPU_IDLE_REPORT    the report's file, to which a dot and the process's number are added
//   GPU_IDLE_STEP_END  part of the name of the kernels that end a step; else the second half of all
//                      activities is reported
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>

#include <cupti.h>
#include <cxxabi.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "activity.hpp"

namespace strata::bench {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;
// What CUPTI asks of its buffers.
constexpr std::align_val_t kBufferAlignment{8};

std::string readable(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : symbol;
}

/// Says why nothing is recorded.
void complain(const char* what, const char* reason) {
  std::fprintf(stderr, "gpu_idle: %s: %s\n", what, reason);
}

bool succeeded(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) {
    return true;
  }
  const char* reason = nullptr;
  complain(call, cuptiGetResultString(result, &reason) == CUPTI_SUCCESS ? reason : "unknown");
  return false;
}

/// What has been recorded so far. CUPTI's own thread adds to it.
class GraphCache {
 public:
  void add(const CUpti_Activity& record) {
    // Only the members that these records have had since their first version.
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      case CUPTI_ACTIVITY_KIND_KERNEL: {
        const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
        add(kernel.start, kernel.end, kernel.name == nullptr ? "a kernel" : kernel.name);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
        add(copy.start, copy.end, name_of(copy.copyKind));
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
        add(fill.start, fill.end, "[fill of memory]");
        break;
      }
      default:
        break;
    }
  }

  void lose(std::int64_t records) {
    const std::lock_guard lock(mutex_);
    recording_.lost += records;
  }

  void write() {
    const char* step_end = std::getenv("GPU_IDLE_STEP_END");
    const std::string path =
        std::string(std::getenv("GPU_IDLE_REPORT")) + "." + std::to_string(::getpid());
    const std::lock_guard lock(mutex_);
    for (std::string& name : recording_.names) {
      name = readable(name.c_str());
    }
    std::ofstream out(path, std::ios::trunc);
    out << idle_report(recording_, step_end == nullptr ? "" : step_end).dump(1) << "\n";
    if (!out.flush()) {
      complain(path.c_str(), "cannot be written");
    }
  }

 private:
  static const char* name_of(std::uint8_t copy_kind) {
    switch (copy_kind) {
      case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
        return "[copy to the GPU]";
      case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
        return "[copy to the host]";
      case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
        return "[copy on the GPU]";
      default:
        return "[copy]";
    }
  }

  void add(std::uint64_t begin_ns, std::uint64_t end_ns, const char* name) {
    const std::lock_guard lock(mutex_);
    if (begin_ns == 0 && end_ns == 0) {
      ++recording_.lost;
      return;
    }
    const auto [place, is_new] = numbers_.try_emplace(name, recording_.names.size());
    if (is_new) {
      recording_.names.emplace_back(name);
    }
    recording_.activities.push_back({.time = {.begin_ns = static_cast<std::int64_t>(begin_ns),
                                              .end_ns = static_cast<std::int64_t>(end_ns)},
                                     .name = place->second});
  }

  std::mutex mutex_;
  Recording recording_;
  std::unordered_map<std::string, std::size_t> numbers_;
};

/// CUPTI's callbacks are told nothing of their owner. Never destroyed: they come until the end.
GraphCache& recorder() {
  static GraphCache& only = *new GraphCache;
  return only;
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(::operator new(kBufferBytes, kBufferAlignment));
  *bytes = kBufferBytes;
  *most_records = 0;  // as many as it holds
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                          std::size_t /*bytes*/, std::size_t valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    recorder().add(*record);
  }
  std::size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) {
    recorder().lose(static_cast<std::int64_t>(dropped));
  }
  ::operator delete(buffer, kBufferAlignment);
}

void write_at_exit() {
  succeeded(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  recorder().write();
}

bool begin() {
  if (std::getenv("GPU_IDLE_REPORT") == nullptr) {
    complain("nothing is recorded", "GPU_IDLE_REPORT does not name the report's file");
    return false;
  }
  if (!succeeded(cuptiActivityRegisterCallbacks(give_buffer, take_buffer),
                 "cuptiActivityRegisterCallbacks")) {
    return false;
  }
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    if (!succeeded(cuptiActivityEnable(kind), "cuptiActivityEnable")) {
      return false;
    }
  }
  return std::atexit(write_at_exit) == 0;
}

}  // namespace
}  // namespace strata::bench

/// What CUDA calls when it is initialised; gives 1 where recording began.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  return strata::bench::begin() ? 1 : 0;
}
