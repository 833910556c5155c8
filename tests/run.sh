#!/bin/bash
# Installs what is needed, builds, and runs the tests; the last line is "N passed, N failed, N skipped".
#   tests/run.sh            the default tier: the program and its tests, without nvcc; the unit tests of core, device, io,
#                           ops and comm and the corpora of io's readers again under AddressSanitizer with
#                           UndefinedBehaviorSanitizer; clang-format
#   tests/run.sh --full     everything: kernels compiled by nvcc where it is found, the benchmarks, the tests labelled full,
#                           all rooms under AddressSanitizer, code with threads under ThreadSanitizer, operations built
#                           for AVX-512 where the CPU has it, and for what changed clang-tidy and each header alone
#   tests/run.sh --long     everything, the Debian package in a fresh Debian too, which needs root and debootstrap, 10,000 changed
#                           files for each reader, and each header alone
#   tests/run.sh --no-install
#                           installs no packages and says which are missing
# Options combine. The summary has the time of each part and the ten slowest tests. Where ccache is installed, compilers
# are called through it.
# STRATA_DATA_DIR names a directory with data sets (mnist-10k/t10k-images-idx3-ubyte.gz, ...); tests that need one are
# skipped, with a line, where it is not set. STRATA_TEST_JOBS: processes that build, and as many that test; default: the cores.
set -uo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.." || exit 1

# What the tests of the default tier may take together, in processor seconds. --full fails above it.
readonly default_budget=1500

full=no
long=no
list=()
for option in "$@"; do
  case "$option" in
    --full) full=yes ;;
    --long) full=yes long=yes ;;
    --no-install) list=(--list) ;;
    *) echo "run.sh: there is no option \"$option\"; give any of --full, --long and --no-install" >&2; exit 2 ;;
  esac
done
jobs=${STRATA_TEST_JOBS:-$(nproc)}
passed=0
failed=0
skipped=0
summary=()
failures=()
reports=()
wrap=()  # what builds and tests run under
background=""  # the process group that compiles for sanitizers

# say PART...: begins a part.
say() {
  printf '\n== %s\n' "$*"
  began=$SECONDS
}
count() {  # count NAME PASSED FAILED SKIPPED
  passed=$((passed + $2))
  failed=$((failed + $3))
  skipped=$((skipped + $4))
  summary+=("$(printf '%-28s %5d passed %4d failed %4d skipped  %5d s' "$1" "$2" "$3" "$4" $((SECONDS - began)))")
  [ "$3" -eq 0 ] || failures+=("$1")
}

# compile PRESET [CMAKE ARGUMENT...] -- [TARGET...]
compile() {
  local preset=$1
  shift
  local settings=()
  while [ "$1" != -- ]; do
    settings+=("$1")
    shift
  done
  shift
  cmake --preset "$preset" -DSTRATA_TESTS=ON "${settings[@]}" >"build/$preset.log" 2>&1 || { tail -n 20 "build/$preset.log"; return 1; }
  "${wrap[@]}" cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"}
}
build() {  # the same, and says so
  say "build $1"
  compile "$@"
  built "$1" $?
}
built() {  # built PRESET STATUS
  if [ "$2" -eq 0 ]; then
    summary+=("$(printf '%-28s %44d s' "build $1" $((SECONDS - began)))")
  else
    count "build $1" 0 1 0
  fi
  return "$2"
}

# begin_sanitizers PRESET...: compiles what sanitizers check, one preset after the other, while tests run. Tests wait much of
# their time, and have priority.
begin_sanitizers() {
  rm -f build/{asan,tsan}.status
  set -m  # a process group of its own
  (
    wrap=("${fixed[@]}")
    renice -n 19 $BASHPID
    for preset in "$@"; do
      SECONDS=0
      # shellcheck disable=SC2086 # targets
      compile "$preset" -DSTRATA_BENCH=OFF -DSTRATA_CUDA=OFF -- ${sanitized[$preset]} >"build/$preset.output" 2>&1
      echo "$? $SECONDS" >"build/$preset.status"
    done
  ) >/dev/null &
  background=$!
  set +m
}
# end_build PRESET: waits for it. Its time in the summary is what was waited.
end_build() {
  local status=1 seconds=0
  say "build $1"
  while [ ! -s "build/$1.status" ] && kill -0 "$background" 2>/dev/null; do
    sleep 1
  done
  [ ! -s "build/$1.status" ] || read -r status seconds <"build/$1.status"
  echo "compiled in $seconds s"
  [ "$status" -eq 0 ] || tail -n 100 "build/$1.output"
  built "$1" "$status"
}
trap '[ -z "$background" ] || kill -- "-$background" 2>/dev/null' EXIT

# run_ctest NAME PRESET [CTEST ARGUMENT...]: runs ctest and counts what its report says. Its processor seconds are in
# build/NAME.seconds. Tests of several processes wait much of their time, so one more runs than builds do.
run_ctest() {
  local name=$1 preset=$2 report=$PWD/build/$2/$1.xml status
  shift 2
  say "test $name"
  rm -f "$report" "build/$name.seconds"
  (
    "${wrap[@]}" ctest --test-dir "build/$preset" --parallel $((jobs + 1)) --output-on-failure --progress --no-tests=error --output-junit "$report" \
      --test-output-size-passed 1048576 --test-output-size-failed 1048576 "$@"
    status=$?
    processor_seconds >"build/$name.seconds"
    exit $status
  )
  status=$?
  local counts
  if counts=$(python3 tests/report.py count "$report") && { [ $status -eq 0 ] || [ "$(cut -d' ' -f2 <<<"$counts")" -gt 0 ]; }; then
    # shellcheck disable=SC2086 # three numbers
    count "$name" $counts
    reports+=("$report")
  else
    count "$name" 0 1 0  # ctest itself failed
  fi
}
# Of this shell's processes that have ended.
processor_seconds() {
  local stat
  read -ra stat <"/proc/$BASHPID/stat"
  echo $(((stat[15] + stat[16]) / $(getconf CLK_TCK)))
}

# check NAME COMMAND...: one test; exit code 77 skips it.
check() {
  local name=$1 status
  shift
  say "$name"
  "$@"
  status=$?
  case $status in
    0) count "$name" 1 0 0 ;;
    77) count "$name" 0 0 1 ;;
    *) count "$name" 0 1 0 ;;
  esac
}

# Own code chooses its vectors by the instruction set that it is built for.
avx512() {
  local flag
  for flag in avx512f avx512bw avx512cd avx512dq avx512vl; do
    if ! grep -qw "$flag" /proc/cpuinfo; then
      say "test avx512"
      echo "this CPU has no $flag: the operations built for AVX-512 are skipped"
      count avx512 0 0 1
      return
    fi
  done
  build avx512 -DSTRATA_BENCH=OFF -DSTRATA_CUDA=OFF -- unit_ops && run_ctest avx512 avx512 --label-regex '^unit\.ops$'
}

formatted() {
  if ! clang-format --version | grep -q 'version 14\.'; then  # others format otherwise
    echo "the sources are formatted by clang-format 14, this is $(clang-format --version | grep -o '[0-9.]*' | head -n 1)"
    return 77
  fi
  git ls-files -z '*.cpp' '*.hpp' '*.cu' | xargs -0 clang-format --dry-run --Werror
}

# 10,000 files of each kind, changed at random.
changed_files() {
  local group
  for group in readers settings; do
    cmake --build build/asan --parallel "$jobs" --target fuzz_${group}_test &&
      STRATA_FUZZ_FILES=10000 "${wrap[@]}" build/asan/bin/fuzz_${group}_test --gtest_filter='*Random*' || return 1
  done
}

# changed PATH...: files of these paths that changed since the last tag, or in the last 50 commits.
changed() {
  local since
  since=$(git describe --tags --abbrev=0 2>/dev/null || git rev-list --skip=50 -n 1 HEAD)
  [ -n "$since" ] || since=$(git hash-object -t tree /dev/null)
  git diff --name-only --diff-filter=d "$since" -- "$@"
}

# Public headers compile alone: those that changed; with --long all.
headers() {
  local targets=(layout_headers) names
  if [ $long = no ]; then
    git rev-parse --verify HEAD >/dev/null || return 77
    mapfile -t names < <(changed 'include/strata/*.hpp' | sed 's|^include/||; s|[^a-zA-Z0-9]|_|g')
    [ ${#names[@]} -gt 0 ] || return 0
    targets=("${names[@]/%/.cpp.o}")
    targets=("${targets[@]/#/tests\/layout\/CMakeFiles\/layout_headers.dir\/headers\/}")
  fi
  cmake --build build/release --parallel "$jobs" --target "${targets[@]}"
}

# clang-tidy on sources that changed.
tidied() {
  local files
  git rev-parse --verify HEAD >/dev/null || return 77
  mapfile -t files < <(changed 'src/*.cpp' 'io/*.cpp')
  python3 tests/tidy.py build/release "${files[@]}"
}

say "packages"
jobs/setup/install-packages.sh "${list[@]}" tests || exit 1
mkdir -p build

# MPI tests start more ranks than this machine may have cores.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none  # with Open MPI 5
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_NUM_THREADS=1
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [ -z "${STRATA_DATA_DIR:-}" ]; then
  echo "STRATA_DATA_DIR is not set: tests that need real data are skipped"
fi

# Each more architecture takes minutes of nvcc. Where no GPU runs them, kernels are optimized little, which takes half the time.
kernels="-O1 -Xcicc -O1 -Xptxas -O1 -DNDEBUG"
! compgen -G '/dev/nvidia[0-9]*' >/dev/null || kernels="-O3 -DNDEBUG"
cuda=(-DCMAKE_CUDA_ARCHITECTURES=90 "-DCMAKE_CUDA_FLAGS_RELEASE=$kernels")

# What sanitizers check.
declare -A sanitized=(
  [asan]="unit_core unit_device unit_io unit_ops unit_comm fuzz_readers_test"
  [tsan]="unit_comm unit_threads grids"
)
if [ $full = yes ]; then
  sanitized[asan]+=" unit_grid unit_nn unit_pipeline unit_optim unit_plan unit_forecast unit_train unit_exchange unit_app"
  sanitized[asan]+=" fuzz_settings_test grids"
fi
# Where a kernel maps memory at more random places than GCC 12's sanitizers expect, they run with fixed ones.
fixed=()
if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ] && setarch -R true 2>/dev/null; then
  fixed=(setarch -R)
fi
export TSAN_OPTIONS="halt_on_error=1 suppressions=$PWD/tests/tsan.supp"
run_sanitized() {  # run_sanitized PRESET
  local chosen=${sanitized[$1]}
  wrap=("${fixed[@]}")
  end_build "$1" && run_ctest "$1" "$1" --label-regex "^(${chosen// /|})\$"
  wrap=()
}

if [ $full = no ]; then
  if build test --; then
    begin_sanitizers asan
    run_ctest default test --label-exclude '^full$'
    run_sanitized asan
  fi
elif build release -DSTRATA_BENCH=ON "${cuda[@]}" --; then
  begin_sanitizers asan tsan
  run_ctest default release --label-exclude '^full$'
  within_budget() {
    local spent
    spent=$(<build/default.seconds)
    echo "the tests of the default tier took $spent processor seconds; the budget is $default_budget"
    [ "$spent" -le $default_budget ]
  }
  check "default tier's budget" within_budget
  run_ctest full release --label-regex '^full$'
  run_sanitized asan
  if [ $long = yes ]; then
    wrap=("${fixed[@]}")
    check "files changed at random" changed_files
    wrap=()
  fi
  STRATA_STRESS_SECONDS=30 run_sanitized tsan
  avx512
  check headers headers
  check clang-tidy tidied
fi
wait
background=""
check clang-format formatted
[ $long = no ] || check "Debian package" tests/install/debian.sh build/release

say "summary"
printf '%s\n' "${summary[@]}"
echo "the slowest tests:"
python3 tests/report.py slowest "${reports[@]}"
# Again what failed and the end of what it said, for much lies between.
python3 tests/report.py failures "${reports[@]}"
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
