#!/bin/bash
# Installs what is needed, builds, and runs every test; the last line is "N passed, N failed, N skipped".
#   tests/run.sh            the release build's tests; unit tests again under AddressSanitizer with
#                           UndefinedBehaviorSanitizer, and under ThreadSanitizer; operations built
#                           for AVX-512, where the CPU has it; clang-format
#   tests/run.sh --quick    the release build's tests alone
#   tests/run.sh --tidy     clang-tidy on the sources too
#   tests/run.sh --long     the Debian package in a fresh Debian too; needs root and debootstrap. Unless --quick, also 10,000
#                           files of each kind, changed at random, under AddressSanitizer
#   tests/run.sh --no-install
#                           installs no packages and says which are missing
# Options are combined as in "tests/run.sh --quick --no-install". The summary says how long each build and each set of
# tests took. Where ccache is installed, compilers are called through it.
# STRATA_DATA_DIR names a directory with data sets (mnist-10k/t10k-images-idx3-ubyte.gz, ...); tests that need one are
# skipped, with a line, where it is not set. STRATA_TEST_JOBS: processes that build and test; default: the cores.
set -uo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.." || exit 1

quick=no
tidy=no
long=no
list=()
for option in "$@"; do
  case "$option" in
    --quick) quick=yes ;;
    --tidy) tidy=yes ;;
    --long) long=yes ;;
    --no-install) list=(--list) ;;
    *) echo "run.sh: there is no option \"$option\"; give any of --quick, --tidy, --long and --no-install" >&2; exit 2 ;;
  esac
done
jobs=${STRATA_TEST_JOBS:-$(nproc)}
passed=0
failed=0
skipped=0
summary=()
failures=()
wrap=()  # what builds and tests run under

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
}

# build PRESET [CMAKE ARGUMENT...] -- [TARGET...]
build() {
  local preset=$1
  shift
  local settings=()
  while [ "$1" != -- ]; do
    settings+=("$1")
    shift
  done
  shift
  say "build $preset"
  cmake --preset "$preset" "${settings[@]}" >"build/$preset.log" 2>&1 || { tail -n 20 "build/$preset.log"; return 1; }
  local targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  "${wrap[@]}" cmake --build "build/$preset" --parallel "$jobs" "${targets[@]}" || return 1
  summary+=("$(printf '%-28s %44d s' "build $preset" $((SECONDS - began)))")
}

# run_ctest NAME PRESET [CTEST ARGUMENT...]: runs ctest and counts what its report says.
run_ctest() {
  local name=$1 preset=$2 report=$PWD/build/$2/ctest.xml
  shift 2
  say "test $name"
  rm -f "$report"
  "${wrap[@]}" ctest --test-dir "build/$preset" --parallel "$jobs" --output-on-failure --progress --output-junit "$report" "$@"
  local status=$?
  local all bad not_run
  all=$(grep -c '<testcase ' "$report" 2>/dev/null)
  bad=$(grep -c '<testcase .*status="fail"' "$report" 2>/dev/null)
  not_run=$(grep -c '<testcase .*status="\(notrun\|disabled\)"' "$report" 2>/dev/null)
  if [ "${all:-0}" -eq 0 ] || { [ $status -ne 0 ] && [ "$bad" -eq 0 ]; }; then
    count "$name" 0 1 0  # ctest itself failed
    failures+=("$name: ctest itself")
  else
    count "$name" $((all - bad - not_run)) "$bad" "$not_run"
    while read -r test; do
      failures+=("$name: $test")
    done < <(grep -o '<testcase name="[^"]*".*status="fail"' "$report" | cut -d'"' -f2)
  fi
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
    *)
      count "$name" 0 1 0
      failures+=("$name")
      ;;
  esac
}

say "packages"
jobs/setup/install-packages.sh "${list[@]}" tests || exit 1
mkdir -p build

# MPI tests start more ranks than this machine may have cores.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_NUM_THREADS=1
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [ -z "${STRATA_DATA_DIR:-}" ]; then
  echo "STRATA_DATA_DIR is not set: tests that need real data are skipped"
fi

# Further architectures double the time of nvcc and are not tested here.
if build release -DSTRATA_TESTS=ON -DSTRATA_BENCH=ON "-DCMAKE_CUDA_ARCHITECTURES=80;90" --; then
  run_ctest release release
else
  count "release build" 0 1 0
  failures+=("release build")
fi

# The unit tests of another build; targets that do not exist are left out.
unit_tests() {  # unit_tests PRESET ROOM...
  local preset=$1 room targets=()
  shift
  for room in "$@"; do
    if compgen -G "tests/unit/$room/*.cpp" >/dev/null; then
      targets+=("unit_$room")
    fi
  done
  if build "$preset" -DSTRATA_TESTS=ON -DSTRATA_BENCH=OFF -DSTRATA_CUDA=OFF -- "${targets[@]}"; then
    local rooms="${targets[*]#unit_}"
    run_ctest "$preset" "$preset" --tests-regex "^unit\\.(${rooms// /|})\\."
  else
    count "$preset build" 0 1 0
    failures+=("$preset build")
  fi
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
  unit_tests avx512 ops
}

formatted() {
  git ls-files -z '*.cpp' '*.hpp' '*.cu' | xargs -0 clang-format --dry-run --Werror
}

# 10,000 files of each kind, changed at random.
changed_files() {
  cmake --build build/asan --parallel "$jobs" --target unit_fuzz &&
    STRATA_FUZZ_FILES=10000 "${wrap[@]}" build/asan/bin/unit_fuzz --gtest_filter='*Random*'
}

# Training on ranks that are threads: some cases of each kind of model.
some_grids() {  # some_grids PRESET
  local cases='DenseResumed:FeatureSplitBetween:GptBfloat16Resumed:GptChunks:LlamaLines1_bfloat16'
  cases+=':ChannelsStaySplitJoinedLanes_float32:LocalStreaming:LocalGptLora:Tuned_float32'
  cmake --build "build/$1" --parallel "$jobs" --target grids &&
    "${wrap[@]}" "build/$1/bin/grids" --gtest_filter="*/${cases//:/:*\/}"
}

# clang-tidy on the program's sources, as the release build compiles them.
tidied() {
  run-clang-tidy -quiet -extra-arg=-Wno-unknown-warning-option -j "$jobs" -p build/release "^$PWD/(src|io)/.*\\.cpp\$" >build/tidy.log 2>/dev/null && return 0
  grep -E '(warning|error):' build/tidy.log | sort -u | head -n 40
  return 1
}

if [ $quick = no ]; then
  # Where a kernel maps memory at more random places than GCC 12's sanitizers expect, they run with fixed ones.
  if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ] && setarch -R true 2>/dev/null; then
    wrap=(setarch -R)
  fi
  export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS="halt_on_error=1 suppressions=$PWD/tests/tsan.supp"
  unit_tests asan core grid device io ops comm nn pipeline optim plan train app
  [ $long = no ] || check "files changed at random" changed_files
  check "grids under AddressSanitizer" some_grids asan
  unit_tests tsan comm pipeline optim plan train io
  check "grids under ThreadSanitizer" some_grids tsan
  wrap=()
  avx512
  check clang-format formatted
fi
[ $tidy = no ] || check clang-tidy tidied
[ $long = no ] || check "Debian package" tests/install/debian.sh build/release

say "summary"
printf '%s\n' "${summary[@]}"
# Again what failed and the end of what it said, for much lies between.
for report in build/{release,asan,tsan,avx512}/ctest.xml; do
  [ ! -f "$report" ] || python3 tests/failures.py "$report"
done
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
