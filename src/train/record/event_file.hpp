#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "strata/io/contact_sheet.hpp"
#include "strata/nn/model.hpp"

#include "record/histograms.hpp"

namespace strata::train {

/// Events for TensorBoard, as bytes of an event file: TFRecords of the protocol buffer `Event`.
/// Source of the field numbers: TensorFlow, core/util/event.proto, core/framework/summary.proto and
/// tensor.proto; of the framing: core/lib/io/record_writer.h.

/// The first events of a file: its version, the start of a session, the config as a text, and the
/// graph of the model's layers unless `model` is null.
/// Units: seconds since 1970.
[[nodiscard]] std::string first_events(double time, const std::string& config_text,
                                       const nn::Model* model);

/// Encoded values; an event holds one or more.
[[nodiscard]] std::string value_of(const Histogram& histogram);
[[nodiscard]] std::string value_of(const std::string& tag, const io::Picture& picture);
[[nodiscard]] std::string value_of(const std::string& tag, const std::string& text);

/// Units: seconds since 1970.
[[nodiscard]] std::string event_of_values(double time, std::int64_t step,
                                          const std::string& values);

/// The events of a file that no line of metrics.jsonl holds, by the kind and the step of the line
/// that they belong to.
using AddedEvents = std::map<std::pair<std::string, std::int64_t>, std::string>;
/// Those in the newest event file of a directory, up to the first damage.
/// Throws: Error(kData) where a file cannot be read.
[[nodiscard]] AddedEvents added_events(const std::filesystem::path& directory);

/// For each line of metrics.jsonl the added events, then one that has every number of it as a
/// scalar, `KIND/KEY`, rounded to float32. Lines of earlier versions have no time and get
/// `unknown_time`.
[[nodiscard]] std::string events_of(const std::string& lines, double unknown_time,
                                    const AddedEvents& added = {});

/// The path of a new event file in a directory, which is made where there is none.
/// Throws: Error(kUsage).
[[nodiscard]] std::filesystem::path new_event_file(const std::filesystem::path& directory,
                                                   double time);

/// Deletes the event files of earlier starts beside this one.
void delete_other_event_files(const std::filesystem::path& path);

}  // namespace strata::train
