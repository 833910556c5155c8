#pragma once

#include <map>
#include <string>
#include <vector>

namespace strata::config {

/// A site's defaults for strata job: the [job] section of $STRATA_SITE, ~/.config/strata/site.ini
/// or /etc/strata/site.ini, whichever is first; empty where there is none, and for /dev/null.
/// Throws: Error(kUsage) for a file that $STRATA_SITE names and that cannot be read, and for a name
/// not in `known`.
[[nodiscard]] std::map<std::string, std::string> read_site_file(
    const std::vector<std::string>& known);

}  // namespace strata::config
