#!/bin/bash
# Cross-builds strata for 64-bit Arm and runs it under emulation in a Debian 12 of arm64: tests/distributions/arm64.sh [DIRECTORY]
# DIRECTORY keeps the system, its packages and what was built, for the next call; without one all is removed. As root on a
# Debian 12 of x86-64 with debootstrap, qemu-user-static, binfmt-support and crossbuild-essential-arm64, and a Debian mirror
# (STRATA_MIRROR). Takes 2 GB. STRATA_TEST_JOBS: processes that build; default: the cores. Exit code 77: skipped.
set -euo pipefail
# shellcheck source=tests/distributions/chroot.sh
. "$(dirname "${BASH_SOURCE[0]}")/chroot.sh"
for need in qemu-aarch64-static:qemu-user-static update-binfmts:binfmt-support aarch64-linux-gnu-g++:crossbuild-essential-arm64; do
  if ! PATH=$PATH:/usr/sbin command -v "${need%:*}" >/dev/null; then
    echo "arm64.sh: needs ${need%:*} (apt-get install ${need#*:}); skipped"
    exit 77
  fi
done
if [ "$(id -u)" -eq 0 ]; then
  binfmt=/proc/sys/fs/binfmt_misc
  if ! { [ -e $binfmt/status ] || mount -t binfmt_misc binfmt_misc $binfmt; } ||
    ! { [ -e $binfmt/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64; }; then
    echo "arm64.sh: this kernel starts no programs of arm64 (binfmt_misc); skipped"
    exit 77
  fi
fi
make_root bookworm "${1:-}" --arch=arm64
copy_source
in_root /root/strata/jobs/setup/install-packages.sh
in_root apt-get install -qq --no-install-recommends libgtest-dev libgmock-dev dpkg-dev file python3-h5py >/dev/null

# The cross compiler reads headers and libraries there. Links from / would lead out, and the build's paths are the same inside.
find "$root/usr" "$root/etc/alternatives" -type l -lname '/*' | while read -r link; do
  ln -snfr "$root$(readlink "$link")" "$link"
done
mkdir -p "$root$(dirname "$root")"
ln -snf / "$root$root"

tests=(unit_core unit_grid unit_device unit_ops unit_io unit_nn unit_comm comm_mpi_test grids)
cd "$root/root/strata"
cmake --preset release -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake "-DCMAKE_SYSROOT=$root" -DSTRATA_BENCH=OFF -DSTRATA_CUDA=OFF
cmake --build build/release --parallel "${STRATA_TEST_JOBS:-$(nproc)}" --target strata "${tests[@]}"

# Under emulation, of a CPU without SVE: unit tests, then what a user does.
cat >"$root/root/check.sh" <<'CHECK'
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none OMP_NUM_THREADS=1 QEMU_CPU=neoverse-n1
bin=/root/strata/build/release/bin
without=Memory.IsShortUnderALimit:Hdf5File.AFailureForWantOfMemoryIsNoDamage  # QEMU does not limit address space
# QEMU's /proc gives each thread another start time of its process, by which strata tells ended writers.
without+=:TextFile.TheFirstOfSeveralWritersWins:DirectoryLockTest.OneOfManyContendersHoldsIt
for room in core grid device ops io nn comm; do
  echo "== unit_$room"
  timeout 3000 $bin/unit_$room --gtest_brief=1 "--gtest_filter=-$without"
done
echo "== comm_mpi_test on 2 ranks"
timeout 900 mpirun -n 2 $bin/comm_mpi_test
echo "== grids, a sample"
sample=$(printf '*/%s:' DenseResumed FeatureSplitBetween GptChunks ChannelsStaySplitJoinedLanes_float32 ViewOfTheInput \
  LocalStreaming LocalGptLora Tuned_float32 step local lora async)
STRATA_FUZZ_MODELS=2 timeout 3000 $bin/grids --gtest_brief=1 "--gtest_filter=$sample"

rm -rf /root/run
mkdir /root/run
cd /root/run
export PATH=$bin:$PATH
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s ", substr("thequickbrownfoxjumpsoverthelazydog", 1 + int(30 * rand()), 2 + i % 4) }' >text.txt
strata data import --format=text --tokenizer=chars --files=text.txt --output=data
cat >gpt.ini <<'INI'
[model]
preset = gpt
blocks = 2
width = 32
heads = 4
context = 16
dropout = 0.1
[data]
train = data/train.h5
[batch]
global = 8
micro = 2
[numerics]
lanes = 2
shards = 2
[train]
steps = 4
INI
losses() { grep -o '"\(loss\|grad_norm\)": *[^,}]*' "runs/$1/metrics.jsonl"; }
strata train gpt.ini --run.dir=runs/one
[ "$(losses one | wc -l)" -ge 8 ]
for grid in "data=2" "tensor=2" "pipeline=2"; do
  strata train gpt.ini --ranks=2 "--parallel.$grid" "--run.dir=runs/$grid"
  diff <(losses one) <(losses "$grid")
done
strata train gpt.ini --ranks=2 --parallel.tensor=2 --run.dir=runs/resumed --train.steps=2
mpirun -n 2 strata train gpt.ini --parallel.pipeline=2 --run.dir=runs/resumed --run.resume=auto
diff <(losses one) <(losses resumed)
echo "one rank, two ranks on three grids, and a run that goes on on another grid: the same losses and gradient norms"

cd /root/strata/build/release
rm -f strata_*.deb
cpack -G DEB >/dev/null
apt-get -qq -o Dpkg::Use-Pty=0 install ./strata_*_arm64.deb >/dev/null
cd /root/run  # the config names its data set from there
/usr/bin/strata --version
/usr/bin/strata evaluate runs/one
CHECK
in_root bash /root/check.sh
echo "arm64.sh: passed in Debian $(cat "$root/etc/debian_version") under $(qemu-aarch64-static --version | head -n 1)"
