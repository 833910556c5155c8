#pragma once

#include <optional>
#include <string>

namespace strata::app {

/// Seconds until the end of the job's Slurm allocation: from SLURM_JOB_END_TIME, else from squeue,
/// if it is there. Nothing without a job, or where its end is not known or past.
[[nodiscard]] std::optional<double> allocation_seconds_left();

/// Seconds until a time that squeue prints, as in "2026-03-01T14:30:00", which is local time.
/// Nothing for another text, such as "NONE", and for a time in the past.
[[nodiscard]] std::optional<double> seconds_until(const std::string& time);

}  // namespace strata::app
