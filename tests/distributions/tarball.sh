#!/bin/bash
# Makes the release tarball (packaging/tarball.sh) and tries it in a bare Debian 12 and 13 with Open MPI, with MPICH and with both:
# tests/distributions/tarball.sh [DIRECTORY]. DIRECTORY keeps the systems for the next call; without one they are removed. As root
# on a Debian 12, with debootstrap and a Debian mirror (STRATA_MIRROR). Takes 2 GB. Exit code 77: skipped. STRATA_TARBALL names one
# that is there already; one for aarch64 is tried under emulation, as tests/distributions/arm64.sh does it.
set -euo pipefail
# shellcheck source=tests/distributions/chroot.sh
. "$(dirname "${BASH_SOURCE[0]}")/chroot.sh"
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
tarball=${STRATA_TARBALL:-}
if [ -z "$tarball" ]; then
  "$source/packaging/tarball.sh" -DSTRATA_CUDA=OFF
  tarball=$(echo "$source"/build/strata-*-x86_64.tar.gz)
fi
options=()
[[ $tarball != *-aarch64.tar.gz ]] || options=(--arch=arm64)

# What a user does there, without the build's machine.
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cat >"$work/check.sh" <<'CHECK'
set -euo pipefail
export PATH=/usr/local/bin:$PATH DEBIAN_FRONTEND=noninteractive OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export QEMU_CPU=neoverse-n1  # of an emulator
quietly() {
  "$@" >/root/log 2>&1 || { tail /root/log; exit 1; }
}
apt() {
  quietly apt-get -qq -o Dpkg::Use-Pty=0 "$@"
}
only() {  # only PACKAGE...: no other MPI library
  apt purge --autoremove openmpi-bin mpich libopenmpi\* libmpich\*
  [ $# -eq 0 ] || apt install --no-install-recommends "$@"
}
refused() {  # refused WORDS COMMAND...: ends with code 2 and says these words
  local words=$1 code=0
  shift
  "$@" >refused.txt 2>&1 || code=$?
  [ $code -eq 2 ] && grep -F "$words" refused.txt || { echo "exit code $code of $*:"; cat refused.txt; exit 1; }
}
rm -rf "/opt/a release" /root/run
mkdir -p "/opt/a release" /root/run
cd /root/run
tar -xf /root/strata.tar.gz -C "/opt/a release"
home=$(echo "/opt/a release"/strata-*)
ln -sf "$home/bin/strata" /usr/local/bin/strata
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s ", substr("thequickbrownfoxjumpsoverthelazydog", 1 + int(30 * rand()), 2 + i % 4) }' >text.txt
isa=avx2
[ "$(uname -m)" != aarch64 ] || isa=neon
cat >gpt.ini <<INI
[model]
preset = gpt
blocks = 2
width = 32
heads = 4
context = 16
[data]
train = data/train.h5
[batch]
global = 8
[numerics]
isa = $isa
lanes = 2
shards = 2
[train]
steps = 6
INI
losses() { grep -o '"\(loss\|grad_norm\)": *[^,}]*' "runs/$1/metrics.jsonl"; }

apt update
only
refused 'libmpi.so.40 => not found' strata --version
for package in openmpi-bin mpich; do
  echo "== $package"
  only $package
  family=${package%-bin}
  program=$home/libexec/strata-$family
  # From outside come the C library and what MPI needs too; then the system's, if it has them.
  ldd "$program" >libraries.txt
  if grep 'not found' libraries.txt; then exit 1; fi
  { ldd "$(readlink -f "$(sed -n 's/.*libmpi\.so[^>]*=> \(.*\) (.*/\1/p' libraries.txt)")"; find "$home/fallback" -type f; } >known.txt
  outside=$(grep -v "=> $home/" libraries.txt | awk '{ print $1 }' |
    grep -vE '^(linux-vdso|libmpi|libc|libm|libmvec|libresolv|/lib.*/ld-linux.*)(\.|-|$)' |
    while read -r library; do grep -qF "$library" known.txt || echo "$library"; done)
  [ -z "$outside" ] || { echo "from outside: $outside"; exit 1; }

  strata --version
  strata doctor --ranks=2
  quietly strata data import --format=text --tokenizer=chars --files=text.txt --output=data --overwrite
  quietly strata train gpt.ini --run.dir=runs/$family
  for grid in data tensor; do
    quietly strata train gpt.ini --ranks=2 --parallel.$grid=2 --run.dir=runs/$family-$grid
    diff <(losses $family) <(losses $family-$grid)
  done
  quietly strata train gpt.ini --ranks=2 --parallel.tensor=2 --run.dir=runs/$family-resumed --train.steps=3
  quietly mpirun -n 2 strata train gpt.ini --parallel.data=2 --run.dir=runs/$family-resumed --run.resume=auto
  diff <(losses $family) <(losses $family-resumed)
  strata job gpt.ini --nodes=2 --time=1:00:00 --output=/dev/stdout 2>/dev/null | grep -F "$home/bin/strata"
  [ ! -e losses.txt ] || diff losses.txt <(losses $family)
  losses $family >losses.txt
done

# Where MPICH is not Debian's, and under the variables of another library's launcher.
mkdir -p /opt/mpich/lib
for library in /usr/lib/*/libmpich.so.12*; do
  mv "$library" "/opt/mpich/lib/$(basename "$library" | sed s/mpich/mpi/)"
done
ln -sf "$(basename /opt/mpich/lib/libmpi.so.12.*)" /opt/mpich/lib/libmpi.so.12
LD_LIBRARY_PATH=/opt/mpich/lib strata --version | grep '^MPI: MPICH'
refused 'libmpi.so.12 => not found' strata --version
refused 'Open MPI'"'"'s mpirun started this process' env OMPI_COMM_WORLD_SIZE=2 LD_LIBRARY_PATH=/opt/mpich/lib strata --version
only openmpi-bin
refused 'each is alone' env PMI_RANK=0 PMI_SIZE=2 strata train gpt.ini --run.dir=runs/alone

# Where the system lacks what fallback/ has.
system=$(dirname /usr/lib/*/libz.so.1)
mv "$system"/{libz.so.1,libstdc++.so.6} /root
strata --version >/dev/null && code=0 || code=$?
mv /root/{libz.so.1,libstdc++.so.6} "$system"
[ $code -eq 0 ]

# Both: the launcher chooses, then mpirun in PATH.
only openmpi-bin mpich
for name in 'openmpi Open MPI' 'mpich MPICH'; do
  launcher=mpirun.${name%% *}
  quietly $launcher -n 2 strata train gpt.ini --parallel.data=2 "--run.dir=runs/$launcher"
  diff losses.txt <(losses $launcher)
  update-alternatives --set mpirun /usr/bin/$launcher
  strata --version | grep "^MPI: ${name#* }"
done
CHECK

try() {  # try SUITE DIRECTORY
  (
    make_root "$1" "$2" "${options[@]}"
    cp "$tarball" "$root/root/strata.tar.gz"
    cp "$work/check.sh" "$root/root"
    in_root bash /root/check.sh
    cp "$root/root/run/losses.txt" "$work/$1"
    echo "tarball.sh: passed in Debian $(cat "$root/etc/debian_version")"
  )
}
try bookworm "${1:+$1/bookworm}"
try trixie "${1:+$1/trixie}"
cmp "$work/bookworm" "$work/trixie"  # the libraries are the same
