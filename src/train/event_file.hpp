#pragma once

#include <filesystem>
#include <string>

namespace strata::train {

/// Events for TensorBoard, as bytes of an event file: TFRecords of the protocol buffer `Event`.
/// Source of the field numbers: TensorFlow, core/util/event.proto, core/framework/summary.proto and
/// tensor.proto; of the framing: core/lib/io/record_writer.h.

/// The first events of a file: its version, the start of a session, and the config as a text.
/// Units: seconds since 1970.
[[nodiscard]] std::string first_events(double time, const std::string& config_text);

/// One event for each line of metrics.jsonl. Every number of it is a scalar, `KIND/KEY`, rounded to
/// float32. Lines of earlier versions have no time and get `unknown_time`.
[[nodiscard]] std::string events_of(const std::string& lines, double unknown_time);

/// The path of a new event file in a directory, which is made where there is none.
/// Throws: Error(kUsage).
[[nodiscard]] std::filesystem::path new_event_file(const std::filesystem::path& directory,
                                                   double time);

/// Deletes the event files of earlier starts beside this one.
void delete_other_event_files(const std::filesystem::path& path);

}  // namespace strata::train
