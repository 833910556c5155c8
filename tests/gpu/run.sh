#!/bin/bash
# Runs the GPU tests on a node that has a GPU and needs nothing else installed; a table says what came of them.
# Then each operation of a layer is held to its roofline, in a table of its own; the share of a step of GPT-2 124M in which
# the GPU is idle is measured; and where a Python has PyTorch and sees the GPU, strata is compared with it.
#   tests/gpu/run.sh [--only=tests|grids|several|rooflines|idle|comparison|accuracy] [--sanitize=TOOL]... [ARCHIVE]
# ARCHIVE: default build/strata-gpu.tar.xz, made by tests/gpu/bundle.sh; inside an unpacked archive: what is there.
# grids: of the tests, those of several ranks. several, only where it is asked for: tests/gpu/several.sh, on 2 to 8 GPUs.
# accuracy, only where it is asked for: jobs on MNIST, CIFAR-10 and Shakespeare are trained and held to what is expected. The
# data: STRATA_DATA_DIR, else strata-data.tar beside ARCHIVE or the unpacked archive, made by tests/gpu/bundle.sh --data.
# STRATA_ACCURACY_OPTIONS, STRATA_ROOFLINE_OPTIONS, STRATA_IDLE_OPTIONS: more options of tests/gpu/accuracy.py, of
# bench_gpu_layer and of bench/gpu_idle.py.
# --sanitize: the operations under compute-sanitizer's memcheck, racecheck, initcheck or synccheck too, some minutes each.
# STRATA_PEER_PYTHON: the Python that has PyTorch; default: python3. STRATA_PEER_OPTIONS: more options of bench/gpu_vs_torch.py.
# STRATA_GPU_LOGS: a directory for the whole output of each test; default: a new one.
set -uo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
logs=${STRATA_GPU_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
tools=()
only=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --sanitize=memcheck | --sanitize=racecheck | --sanitize=initcheck | --sanitize=synccheck) tools+=("${1#*=}") ;;
    --only=tests | --only=grids | --only=several | --only=rooflines | --only=idle | --only=comparison | --only=accuracy) only=${1#*=} ;;
    *) echo "run.sh: there is no option \"$1\"; give --only=tests, grids, several, rooflines, idle, comparison or accuracy, --sanitize=memcheck, racecheck, initcheck or synccheck, or nothing" >&2; exit 2 ;;
  esac
  shift
done
if [ ${#tools[@]} -gt 0 ] && ! command -v compute-sanitizer >/dev/null; then
  echo "run.sh: compute-sanitizer is not installed; leave --sanitize out, or install the CUDA toolkit" >&2
  exit 2
fi

unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
if [ -x "$here/bin/strata" ]; then
  top=$here
  data_archive=$here/../strata-data.tar
else
  archive=${1:-$here/../../build/strata-gpu.tar.xz}
  [ -f "$archive" ] || { echo "run.sh: there is no $archive; make it with tests/gpu/bundle.sh" >&2; exit 2; }
  # Python reads it where there is no xz.
  tar -C "$unpacked" -xf "$archive" 2>/dev/null ||
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$archive" "$unpacked" || exit 3
  top=$unpacked/strata-gpu
  data_archive=$(dirname "$archive")/strata-data.tar
fi

# The node's CUDA libraries, of the versions that the program opens: a toolkit's, or those that a Python environment carries.
peer_python=${STRATA_PEER_PYTHON:-python3}
cuda_directories() {
  local name
  for name in libcublasLt.so.13 libcudnn.so.9 libnvrtc.so.13 libnccl.so.2 libcupti.so.13; do
    { ls -d /usr/local/cuda*/lib64 /usr/local/cuda*/extras/CUPTI/lib64 /usr/local/cuda*/targets/x86_64-linux/lib /usr/lib/x86_64-linux-gnu 2>/dev/null
      command -v "$peer_python" >/dev/null && "$peer_python" -c 'import site, sysconfig
for path in {sysconfig.get_paths()["purelib"], *site.getsitepackages()}:
    print(path + "/nvidia")' 2>/dev/null
    } | while read -r place; do
      find -L "$place" -maxdepth 4 -name "$name" -printf '%h\n' 2>/dev/null | head -n 1
    done | head -n 1
  done | sort -u
}
own_libraries=${LD_LIBRARY_PATH:-}
libraries=$top/lib
for directory in $(cuda_directories) /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
  # The C library's own directory would stand before the bundle's libraries.
  [ "$directory" = /usr/lib/x86_64-linux-gnu ] || [ ! -d "$directory" ] || libraries+=:$directory
done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$top/bin:$PATH
export OPAL_PREFIX=$top OPAL_PKGDATADIR=$top/share/openmpi OPAL_PKGLIBDIR=$top/openmpi
export OMPI_MCA_mca_base_component_path=$top/openmpi PMIX_MCA_mca_base_component_path=$top/pmix
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_hwloc_base_binding_policy=none OMP_NUM_THREADS=1

table=()
failed=0
# row NAME COMMAND...: runs it and notes what came of it.
row() {
  local name=$1 log=$logs/${1//[^A-Za-z0-9]/-}.log start=$SECONDS status=0
  shift
  ("$@") >"$log" 2>&1 || status=$?
  local passed skipped lost
  passed=$(grep -c '^\[       OK \]' "$log")
  skipped=$(grep -c '^\[  SKIPPED \].* ms)$' "$log")
  lost=$(grep -c '^\[  FAILED  \].* ms)$' "$log")
  [ $status -eq 0 ] || failed=$((failed + 1))
  table+=("$(printf '%-56s %6s %5d passed %4d failed %4d skipped %5d s' "$name" \
    "$([ $status -eq 0 ] && echo ok || echo "rc $status")" "$passed" "$lost" "$skipped" $((SECONDS - start)))")
  echo "${table[-1]}"
  [ $status -eq 0 ] || grep -E 'exception with|actual:|other bits| in (float32|float64|bfloat16)$|^\[  FAILED  \]|ERROR SUMMARY|=====.*(Invalid|hazard|Barrier)|rror:' "$log" |
    sort | uniq -c | sort -rn | head -n 60
}

echo "strata $(cut -c 1-12 "$top/commit" 2>/dev/null) on $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo 'a node without a GPU')"
strata --version
# Whether the bundle's Open MPI, HDF5 and oneDNN work here, on CPU ranks.
two_ranks() {
  cd "$(mktemp -d)" || return 1
  awk 'BEGIN { srand(1); print "a,b,y"; for (i = 0; i < 400; i++) { a = 2 * rand() - 1; b = 2 * rand() - 1
    print a "," b "," 3 * a - 2 * b + 0.5 } }' >line.csv
  strata data import --format=csv --files line.csv --label=y --split=0.8,0.2 --output=data/line &&
    timeout 300 mpirun -n 2 strata train "$top/jobs/linear-regression.ini" --run.device=cpu
}
# A language model trained on grids of ranks that share the first GPU, twice, and with passes given as CUDA graphs: the same loss
# and gradient norm, to the bit.
# NCCL takes ranks of one host for one unless each says that it is of another.
same_bits() {
  local dtype=$1 transport=$2 grid data pipeline tensor graphs runs=0
  cd "$(mktemp -d)" || return 1
  awk 'BEGIN { srand(1); for (i = 0; i < 20000; i++) printf "%c", 97 + int(26 * rand()) % (1 + i % 26) }' >text.txt
  strata data import --format=text --tokenizer=chars --files=text.txt --split=0.9,0.1 --output=data || return 1
  printf '%s\n' '[model]' 'preset = gpt' 'blocks = 2' 'width = 128' 'heads = 2' 'context = 64' 'dropout = 0.1' \
    '[data]' 'train = data/train.h5' '[batch]' 'global = 16' 'micro = 2' '[numerics]' 'lanes = 4' 'shards = 2' \
    '[optimizer]' 'kind = adamw' 'learning_rate = 0.001' 'clip_norm = 1' '[train]' 'steps = 10' \
    '[run]' 'device = cuda' >run.ini
  for grid in "1 1 1 off" "1 1 1 off" "2 1 1 off" "1 2 1 off" "1 1 2 off" "2 2 2 off" "1 1 1 on" "2 2 1 on"; do
    read -r data pipeline tensor graphs <<<"$grid"
    runs=$((runs + 1))
    # shellcheck disable=SC2016
    timeout 300 mpirun -n $((data * pipeline * tensor)) \
      bash -c 'NCCL_HOSTID=$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo exec strata "$@"' strata \
      train run.ini --numerics.dtype="$dtype" --run.transport="$transport" --run.dir="run$runs" \
      --parallel.data="$data" --parallel.pipeline="$pipeline" --parallel.tensor="$tensor" --run.cuda_graphs="$graphs" ||
      return 1
    grep -o '"step":[0-9]*,"loss":[^,]*,"grad_norm":[^,]*' "run$runs/metrics.jsonl" >"numbers$runs"
    echo "grid $data $pipeline $tensor, graphs $graphs"
    [ "$graphs" = off ] || grep -q 'CUDA graphs: up to [1-9]' "run$runs/log.txt" || return 1
    [ "$(wc -l <"numbers$runs")" -eq 10 ] && cmp numbers1 "numbers$runs" || return 1
  done
}
# doctor also ends with another code than 0 where two ranks share a GPU.
has_gpu() { grep -q '^GPUs: as above' <<<"$(strata doctor 2>/dev/null)"; }
run_tests() {
  row "device" timeout 300 unit_device --gtest_filter='Cuda.*'
  row "staged messages" timeout 120 unit_comm --gtest_filter='CudaStaged.*'
  row "samples" timeout 120 unit_train --gtest_filter='Feed.OfAGpu*'
  # A process a test: after an illegal access no call of a process succeeds.
  local tests test tool
  tests=$(gpu_ops --gtest_list_tests | awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }')
  [ -n "$tests" ] || row "operations" gpu_ops --gtest_list_tests
  for test in $tests; do
    row "$test" timeout 120 gpu_ops --gtest_filter="$test"
  done
  # Own kernels only: the libraries' make the tools slow.
  for tool in "${tools[@]}"; do
    row "operations $tool" timeout 540 compute-sanitizer --tool "$tool" --kernel-name kns=strata --report-api-errors no \
      --error-exitcode 9 --print-limit 5 "$top/bin/gpu_ops"
  done
}
run_grids() {
  local ranks dtype first_gpu=${CUDA_VISIBLE_DEVICES:-0}
  first_gpu=${first_gpu%%,*}
  # Ranks that share the first GPU, against MPI.
  for ranks in 2 4; do
    row "nccl on $ranks ranks" timeout 300 env CUDA_VISIBLE_DEVICES="$first_gpu" mpirun -n "$ranks" "$top/bin/gpu_comm"
  done
  for dtype in bfloat16 float32; do
    has_gpu || { table+=("the same bits on grids, $dtype: left out, there is no GPU"); continue; }
    CUDA_VISIBLE_DEVICES=$first_gpu row "the same bits on grids, NCCL, $dtype" same_bits "$dtype" nccl
    CUDA_VISIBLE_DEVICES=$first_gpu row "the same bits on grids, $dtype" same_bits "$dtype" mpi
  done
  row "doctor" timeout 120 strata doctor
  row "two ranks" two_ranks
}

# PyTorch brings its own libraries: only strata itself is to find the bundle's.
comparison() {
  local python=$peer_python strata=$logs/strata
  printf '#!/bin/bash\nexport LD_LIBRARY_PATH=%q\nexec %q "$@"\n' "$LD_LIBRARY_PATH" "$top/bin/strata" >"$strata"
  chmod +x "$strata"
  # shellcheck disable=SC2086  # several options
  LD_LIBRARY_PATH=$own_libraries "$python" "$top/bench/gpu_vs_torch.py" "$strata" --python="$python" \
    --seconds=300 --output="$logs/comparison.json" ${STRATA_PEER_OPTIONS:-}
}
# The GPU's idle share, and the kernels with most time.
idle() {
  if [ ! -f "$top/lib/libgpu_idle.so" ]; then
    echo "idle time not measured: the build had no cupti.h"
  elif ldd "$top/lib/libgpu_idle.so" | grep -q 'not found'; then
    echo "idle time not measured: $(ldd "$top/lib/libgpu_idle.so" | awk '/not found/ { print $1 }' | xargs) not found"
  elif ! has_gpu; then
    echo "idle time not measured: there is no GPU"
  else
    # shellcheck disable=SC2086  # several options
    timeout 580 python3 "$top/bench/gpu_idle.py" "$top/bin/strata" --output="$logs/idle.json" ${STRATA_IDLE_OPTIONS:-}
  fi
}
accuracy() {
  local data=${STRATA_DATA_DIR:-$unpacked/strata-data}
  if [ -z "${STRATA_DATA_DIR:-}" ]; then
    [ -f "$data_archive" ] ||
      { echo "run.sh: there is no $data_archive; make it with tests/gpu/bundle.sh --data, or set STRATA_DATA_DIR" >&2; return 2; }
    tar -C "$unpacked" -xf "$data_archive" || return 3
  fi
  # shellcheck disable=SC2086  # several options
  python3 "$top/accuracy.py" "$top/bin/strata" "$data" --jobs="$top/jobs" ${STRATA_ACCURACY_OPTIONS:-}
}
peer_ready() {
  LD_LIBRARY_PATH=$own_libraries "$peer_python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null
}

# wanted PART: whether it is to be run.
wanted() { [ "$only" = "$1" ] || { [ -z "$only" ] && [ "$1" != accuracy ] && [ "$1" != several ]; }; }

wanted tests && run_tests
{ wanted tests || [ "$only" = grids ]; } && run_grids
echo
echo "logs: $logs"
printf '%s\n' "${table[@]}"
if wanted rooflines; then
  echo
  status=0
  # shellcheck disable=SC2086  # several options
  timeout 300 bench_gpu_layer --output="$logs/rooflines.json" ${STRATA_ROOFLINE_OPTIONS:-} 2>"$logs/rooflines.log" || status=$?
  case $status in
    0) ;;
    77) echo "no rooflines without it" ;;
    *) failed=$((failed + 1)); echo "rooflines: rc $status"; tail -n 40 "$logs/rooflines.log" ;;
  esac
fi
if wanted idle; then
  echo
  idle 2>"$logs/idle.log" || { failed=$((failed + 1)); tail -n 40 "$logs/idle.log"; }
fi
if wanted several; then
  STRATA_GPU_LOGS=$logs "$top/several.sh" || [ $? -eq 77 ] || failed=$((failed + 1))
fi
if wanted accuracy; then
  echo
  accuracy || failed=$((failed + 1))
fi
if wanted comparison; then
  echo
  if peer_ready; then
    echo "strata and PyTorch:"
    comparison 2>"$logs/comparison.log" || { failed=$((failed + 1)); tail -n 40 "$logs/comparison.log"; }
  else
    echo "not compared with PyTorch: $peer_python has none that sees a GPU; name another with STRATA_PEER_PYTHON"
  fi
fi
echo "$failed failed"
[ $failed -eq 0 ]
