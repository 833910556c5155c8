#!/bin/bash
# Builds strata in a Debian 13, runs the quickstart and the default tier of tests there: tests/distributions/debian13.sh [DIRECTORY]
# DIRECTORY keeps the system, its packages and what was built, for the next call; without one all is removed. As root, with
# debootstrap and a Debian mirror (STRATA_MIRROR). Takes 8 GB and, on two cores, up to an hour the first time. Exit code 77: skipped.
set -euo pipefail
# shellcheck source=tests/distributions/chroot.sh
. "$(dirname "${BASH_SOURCE[0]}")/chroot.sh"
make_root trixie "${1:-}"
copy_source
in_root /root/strata/jobs/setup/install-packages.sh tests
in_root apt-get install -qq --no-install-recommends ccache >/dev/null
data=${STRATA_DATA_DIR:-}
if [ -n "$data" ]; then
  mkdir -p "$root/root/data"
  cp -a --update "$data/." "$root/root/data"
fi
in_root env ${STRATA_TEST_JOBS:+STRATA_TEST_JOBS=$STRATA_TEST_JOBS} ${data:+STRATA_DATA_DIR=/root/data} bash -euo pipefail -c '
  cd /root/strata
  jobs/quickstart.sh
  build/release/bin/strata --version
  tests/run.sh'
echo "debian13.sh: passed in Debian $(cat "$root/etc/debian_version")"
