#!/bin/bash
# Makes the Debian package and installs it in a fresh Debian 12: tests/install/debian.sh [BUILD_DIR]
# As root, with debootstrap and a Debian mirror (STRATA_MIRROR; default http://deb.debian.org/debian). Takes minutes and
# 1 GB in TMPDIR; tests/run.sh --long runs it. Exit code 77: skipped.
set -euo pipefail
build=$(realpath "${1:-build/release}")
# shellcheck source=tests/distributions/chroot.sh
. "$(dirname "${BASH_SOURCE[0]}")/../distributions/chroot.sh"
make_root bookworm ""
rm -f "$build"/strata_*.deb
(cd "$build" && cpack -G DEB)
cp "$build"/strata_*.deb "$root/tmp"

# What a user does, without the build's machine.
cat >"$root/tmp/check.sh" <<'CHECK'
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o Dpkg::Use-Pty=0 install --no-install-recommends /tmp/strata_*.deb man-db bash-completion >/tmp/log 2>&1 ||
  { tail /tmp/log; exit 1; }
cd /root
strata --version
man strata-train | grep -F parallel.tensor
mandb -q
man -k '^strata'

# On one rank, then on two.
awk 'BEGIN { srand(1); print "a,b,y"; for (i = 0; i < 2000; i++) { a = 2 * rand() - 1; b = 2 * rand() - 1;
  print a "," b "," 3 * a - 2 * b + 0.5 + 0.1 * (rand() - 0.5) } }' >line.csv
strata data import --format=csv --files line.csv --label=y --split=0.8,0.2 --output=data/line
strata train /usr/share/strata/jobs/linear-regression.ini | tee one.txt
strata train /usr/share/strata/jobs/linear-regression.ini --ranks=2 --run.dir=runs/two | tee two.txt
losses() { grep -o '"loss": *[^,}]*' "$1"; }
[ "$(losses runs/line/metrics.jsonl | wc -l)" -gt 100 ]
diff <(losses runs/line/metrics.jsonl) <(losses runs/two/metrics.jsonl)
echo "the losses of one and of two ranks are the same"
strata evaluate runs/line

# As bash-completion loads it.
cat >completion.sh <<'COMPLETION'
source /usr/share/bash-completion/bash_completion
_completion_loader strata || [ $? -eq 124 ]
for line in "strata tr" "strata train --parallel.t"; do
  COMP_LINE=$line COMP_POINT=${#line}
  "$(complete -p strata | sed -E 's/.*-F ([^ ]*).*/\1/')"
  echo "$line -> ${COMPREPLY[*]}"
done
COMPLETION
bash completion.sh | tee completed.txt
[ "$(cat completed.txt)" = "strata tr -> train 
strata train --parallel.t -> --parallel.tensor=" ]
apt-get -qq -o Dpkg::Use-Pty=0 remove strata >/dev/null
[ -z "$(find /usr -name '*strata*' -not -name '*dpkg*')" ] || { echo "left behind:"; find /usr -name '*strata*'; exit 1; }
CHECK
in_root bash /tmp/check.sh
echo "debian.sh: passed: $(basename "$build"/strata_*.deb) in a fresh $(cat "$root/etc/debian_version")"
