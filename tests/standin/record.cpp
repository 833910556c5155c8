#include "record.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "machine.hpp"
#include "streams.hpp"

namespace standin {
namespace {

std::FILE* file() {
  static std::FILE* const one = [] {
    const char* const path = std::getenv("STRATA_STANDIN_RECORD");
    std::FILE* const opened = path == nullptr ? nullptr : std::fopen(path, "w");
    if (path != nullptr && opened == nullptr) {
      std::perror("stand-in for a GPU: opening STRATA_STANDIN_RECORD");
      std::abort();
    }
    return opened;
  }();
  return one;
}

struct Next {
  std::string kind;
  double flops = 0.0;
};

thread_local Next next;
thread_local std::vector<std::string> ranges;

const void* name_of(const Stream* stream) {
  return stream;
}

}  // namespace

void push_range(const char* name) {
  ranges.emplace_back(name);
}

void pop_range() {
  ranges.pop_back();
}

void record_put(const Stream& stream, const Work& work) {
  const Next described = std::exchange(next, {});
  std::string path;
  for (const std::string& range : ranges) {
    path += path.empty() ? range : " / " + range;
  }
  const std::string kind = !described.kind.empty() ? described.kind
                           : work.action           ? "other"
                           : work.reached_at       ? "time"
                                                   : "wait";
  std::fprintf(file(), "put\t%p\t%llu\t%s\t%.0f\t%p\t%llu\t%s\n", name_of(&stream),
               static_cast<unsigned long long>(stream.queued), kind.c_str(), described.flops,
               name_of(work.after.stream.get()), static_cast<unsigned long long>(work.after.count),
               path.c_str());
}

void record_done(const Stream& stream, std::size_t read, std::size_t written) {
  std::fprintf(file(), "done\t%p\t%llu\t%zu\t%zu\n", name_of(&stream),
               static_cast<unsigned long long>(stream.done), read, written);
}

}  // namespace standin

int standin_records() {
  return standin::file() != nullptr ? 1 : 0;
}

void standin_describe(const char* kind, double flops) {
  if (standin_records() != 0) {
    standin::next = {kind, flops};
  }
}
