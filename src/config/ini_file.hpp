#pragma once

#include <string>

#include <boost/program_options.hpp>

namespace strata::config {

/// The text of a user's ini file. Throws: Error(kUsage), also for one of more than 16 MiB.
[[nodiscard]] std::string ini_text(const std::string& path);

/// The settings in an ini file's text; a key that is not in `known` is marked as unregistered.
/// Throws: Error(kUsage) that begins with `path`.
[[nodiscard]] boost::program_options::basic_parsed_options<char> parse_ini(
    const std::string& path, const std::string& text,
    const boost::program_options::options_description& known);

}  // namespace strata::config
