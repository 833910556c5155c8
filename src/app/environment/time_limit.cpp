#include "environment/time_limit.hpp"

#include <algorithm>
#include <cstdint>
#include <ctime>

#include <fmt/format.h>

#include "strata/core/environment.hpp"
#include "strata/core/text.hpp"
#include "strata/io/command_output.hpp"

namespace strata::app {
namespace {

std::optional<double> left_until(std::int64_t unix_seconds) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const double left = static_cast<double>(unix_seconds) - static_cast<double>(now.tv_sec) -
                      1e-9 * static_cast<double>(now.tv_nsec);
  return left > 0.0 ? std::optional(left) : std::nullopt;
}

/// The first line that squeue prints about the end of a job; empty where it does not answer.
std::string squeue_end_of(const std::string& job) {
  // A controller that is down must not hold the run up.
  const std::string command = fmt::format(
      "command -v squeue >/dev/null && timeout 10 squeue -h -j {} -o %e 2>/dev/null", job);
  const std::string text = io::output_of(command).text;
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::optional<double> seconds_until(const std::string& time) {
  std::tm parts{};
  const char* end = strptime(time.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr || *end != '\0') {
    return std::nullopt;
  }
  parts.tm_isdst = -1;
  return left_until(std::mktime(&parts));
}

std::optional<double> allocation_seconds_left() {
  std::int64_t end = 0;
  if (parse_int64(environment("SLURM_JOB_END_TIME"), end)) {
    return left_until(end);
  }
  const std::string job = environment("SLURM_JOB_ID");
  if (job.empty() ||
      !std::all_of(job.begin(), job.end(), [](unsigned char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  return seconds_until(squeue_end_of(job));
}

}  // namespace strata::app
