#pragma once

#include <string>

#include "strata/device/device.hpp"
#include "strata/pipeline/schedule.hpp"

namespace strata::plan {

/// The training schedule of a file, proven for `size`.
/// Throws: Error(kUsage) that names the file and, where a cell is to blame, its line and cell:
/// another number of ranks or microbatches, chunks other than one a rank in rank order, an unsound
/// schedule, actions of a kind that do not ascend by microbatch, a deadlock on `device`, and
/// actions that training does not run.
[[nodiscard]] pipeline::Schedule schedule_from_file(const std::string& path,
                                                    const pipeline::ScheduleSize& size,
                                                    device::DeviceKind device);

}  // namespace strata::plan
