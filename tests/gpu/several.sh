#!/bin/bash
# The first run on a node of 2 to 8 GPUs: doctor; a language model on grids over them, each axis alone and together, with messages
# through pinned memory and through NCCL, held to the loss and gradient norm of one GPU to the bit; a rank that is killed, and the
# run that goes on. One table says what came of each and what a step took.
#   tests/gpu/several.sh [--program=STRATA] [--gpus=N] [--size=124m|small] [--steps=N] [--machine=FILE]
#   tests/gpu/several.sh --cpu=RANKS [...]      the same on CPU ranks, to try the script
# --program: default: strata in PATH. --gpus: default: those of nvidia-smi, or STRATA_STANDIN_GPUS of the stand-in; 2, 4 or 8 of
# them are used. --size: default: 124m; its heads are 16, so that 8 ranks share them. --machine: what doctor compares messages
# with. STRATA_GPU_LOGS: a directory for the whole output; default: a new one. Exit code 77: there are fewer than 2 GPUs.
set -uo pipefail
program=strata gpus='' size=124m steps=20 machine='' device=cuda
for option in "$@"; do
  value=${option#*=}
  case $option in
    --program=*) program=$(realpath -m "$value") ;;
    --gpus=*) gpus=$value ;;
    --cpu=*) gpus=$value device=cpu ;;
    --size=124m | --size=small) size=$value ;;
    --steps=*) steps=$value ;;
    --machine=*) machine=$value ;;
    *) echo "several.sh: there is no option \"$option\"; its first lines list them" >&2; exit 2 ;;
  esac
done
command -v "$program" >/dev/null || { echo "several.sh: $program is not there; give --program=STRATA" >&2; exit 2; }
[ -n "$gpus" ] || gpus=${STRATA_STANDIN_GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU')}
if ! [[ $gpus =~ ^[0-9]+$ && $steps =~ ^[1-9][0-9]*$ ]]; then
  echo "several.sh: $gpus GPUs and $steps steps are no numbers" >&2
  exit 2
fi
if [ "$gpus" -lt 2 ]; then
  echo "several.sh: $gpus GPUs, 2 are needed"
  exit 77
fi
ranks=2
for most in 4 8; do [ "$gpus" -lt $most ] || ranks=$most; done
logs=${STRATA_GPU_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
cd "$logs" || exit 2

# The numbers are those of 8 lanes and 8 shards on every grid.
case $size in
  124m) shape='blocks=12 width=1024 heads=16 context=1024' batch='global=32 micro=2' dtype=bfloat16 ;;
  small) shape='blocks=2 width=64 heads=8 context=64' batch='global=16 micro=1' dtype=float32 ;;
esac
awk 'BEGIN { srand(1); for (i = 0; i < 400000; i++) printf "%c", 97 + int(26 * rand()) % (1 + i % 26) }' >text.txt
[ -d data ] || "$program" data import --format=text --tokenizer=chars --files=text.txt --split=0.9,0.1 --output=data >import.log 2>&1 ||
  { cat import.log; exit 3; }
{
  printf '[model]\npreset = gpt\ndropout = 0.1\n'
  tr ' ' '\n' <<<"$shape"
  printf '[data]\ntrain = data/train.h5\n[batch]\n'
  tr ' ' '\n' <<<"$batch"
  printf '%s\n' '[numerics]' 'lanes = 8' 'shards = 8' "dtype = $dtype" '[optimizer]' 'kind = adamw' 'learning_rate = 0.001' \
    'clip_norm = 1' '[schedule]' 'warmup_steps = 0' '[train]' "steps = $steps" '[run]' "device = $device"
} >run.ini

table=() failed=0
# note NAME RESULT MILLISECONDS EXPOSED: a row of the table.
note() {
  [ "$2" = ok ] || [[ $2 = left\ out* ]] || failed=$((failed + 1))
  table+=("$(printf '%-46s %-34s %12s %14s' "$1" "$2" "${3:--}" "${4:--}")")
  echo "${table[-1]}"
}
# field NAME FILE: the median of a number over the steps of a run but the first two.
field() {
  grep -o "\"$1\":[^,}]*" "$2" | tail -n +3 | cut -d: -f2 | sort -g |
    awk '{ n[NR] = $1 } END { if (NR) printf "%.1f", 1000 * n[int((NR + 1) / 2)] }'
}
numbers_of() { grep -o '"step":[0-9]*,"loss":[^,]*,"grad_norm":[^,]*' "$1/metrics.jsonl" 2>/dev/null; }
# launch DIRECTORY RANKS [SETTING...]
launch() {
  local directory=$1 count=$2
  shift 2
  rm -rf "$directory"
  timeout 900 "$program" train run.ini --ranks="$count" --run.dir="$directory" "$@" >"$directory.log" 2>&1
}
# grid NAME REFERENCE TRANSPORT DATA PIPELINE TENSOR [SETTING...]: trains, and compares with the run of one rank.
grid() {
  local name=$1 reference=$2 transport=$3 data=$4 pipeline=$5 tensor=$6 directory result=ok code=0
  directory=${name//[^A-Za-z0-9]/-}
  shift 6
  if [ $((data * pipeline * tensor)) -gt $ranks ]; then
    note "$name" "left out: $((data * pipeline * tensor)) GPUs needed"
    return
  fi
  [ $device = cpu ] || set -- "$@" --run.transport="$transport"
  launch "$directory" $((data * pipeline * tensor)) --parallel.data="$data" --parallel.pipeline="$pipeline" --parallel.tensor="$tensor" \
    "$@" || code=$?
  if [ $code -ne 0 ]; then
    result="exit code $code"
    grep '^strata:' "$directory.log" | head -n 3
  elif [ "$(numbers_of "$directory" | wc -l)" -ne "$steps" ] || [ "$(numbers_of "$reference")" != "$(numbers_of "$directory")" ]; then
    result='other numbers than one rank'
  elif [ "$transport" = nccl ] && [ $device = cuda ] && ! grep -q 'messages by NCCL' "$directory.log"; then
    result='not by NCCL'
  fi
  grep -h '^warning:' "$directory.log" | sed 's/^/  /'
  note "$name" "$result" "$(field step_seconds "$directory/metrics.jsonl")" "$(field communication_seconds "$directory/metrics.jsonl")"
}

echo "$("$program" --version | head -n 1), $ranks of $gpus $([ $device = cuda ] && echo GPUs || echo 'CPU ranks'), logs: $logs"
code=0
"$program" doctor --ranks=$ranks ${machine:+--machine="$machine"} >doctor.log 2>&1 || code=$?
grep -E '^(messages|loaded|- )' doctor.log
note doctor "$([ $code -eq 0 ] && echo ok || echo "exit code $code")"

for pieces in 1 8; do
  grid "one rank, row_pieces $pieces" "one-rank--row-pieces-$pieces" mpi 1 1 1 --numerics.row_pieces=$pieces
done
one="one-rank--row-pieces-1"
transports=(mpi nccl)
[ $device = cuda ] || transports=(mpi)
for transport in "${transports[@]}"; do
  for sizes in '2 1 1' '1 2 1' '1 1 2' '2 2 1' '2 1 2' '1 2 2' '2 2 2' '1 1 8' '8 1 1'; do
    read -r data pipeline tensor <<<"$sizes"
    grid "$transport, $data data x $pipeline pipeline x $tensor tensor" $one "$transport" "$data" "$pipeline" "$tensor"
  done
  # The two levels of a reduction between nodes, on one.
  grid "$transport, 4 data, nodes of 2" $one "$transport" 4 1 1 --parallel.node_ranks=2
  grid "$transport, 8 data, nodes of 4" $one "$transport" 8 1 1 --parallel.node_ranks=4
  grid "$transport, $ranks tensor, row_pieces 8" one-rank--row-pieces-8 "$transport" 1 1 $ranks --numerics.row_pieces=8
done

# ranks_of PROCESS: the processes that it and its launcher started.
ranks_of() {
  local child below
  for child in $(pgrep -P "$1"); do
    below=$(ranks_of "$child")
    if [ -n "$below" ]; then echo "$below"; else echo "$child"; fi
  done
}
# A rank is killed in the middle of a run; the run that goes on has the numbers of the first.
killed() {
  local launcher victim code=0 began last
  rm -rf killed
  timeout 900 "$program" train run.ini --ranks=2 --run.dir=killed --parallel.data=2 --checkpoint.every=2 \
    --train.steps=1000000 >killed.log 2>&1 &
  launcher=$!
  began=$SECONDS
  until [ "$(numbers_of killed | wc -l)" -ge 4 ]; do
    if ! kill -0 $launcher 2>/dev/null || [ $((SECONDS - began)) -gt 600 ]; then
      echo "the run ended before it could be killed"
      return
    fi
    sleep 0.05
  done
  if [ $device = cuda ] && command -v nvidia-smi >/dev/null; then
    contexts=$(nvidia-smi --query-compute-apps=pid,gpu_uuid --format=csv,noheader | sort -u | cut -d, -f1 | sort | uniq -d | wc -l)
  fi
  victim=$(ranks_of $launcher | tail -n 1)
  if [ -z "$victim" ]; then
    echo "left out: the ranks are not ours to kill"
    kill $launcher
    return
  fi
  kill -9 "$victim"
  began=$SECONDS
  wait $launcher || code=$?
  if [ $code -eq 0 ]; then
    echo "the run went on without a rank"
  elif [ $((SECONDS - began)) -gt 60 ]; then
    echo "the others ended after $((SECONDS - began)) s"
  else
    last=$(find killed/checkpoints -name 'step-*' | sort | tail -n 1 | grep -o '[1-9][0-9]*$')
    last=$((last + 4 > steps ? last + 4 : steps))
    timeout 900 "$program" train run.ini --ranks=2 --run.dir=killed --parallel.data=2 --run.resume=auto --train.steps=$last >>killed.log 2>&1
    if [ "$(numbers_of killed | wc -l)" -eq $last ] && [ "$(numbers_of $one)" = "$(numbers_of killed | head -n "$steps")" ]; then
      echo ok
    else
      echo "other numbers after it went on"
    fi
  fi
}
contexts=
killed >killed.result
note 'a rank killed, the run continued' "$(cat killed.result)"
[ -z "$contexts" ] || note 'each process on one GPU' "$([ "$contexts" -eq 0 ] && echo ok || echo "$contexts on several")"

echo
printf '%-46s %-34s %12s %14s\n' run result 'ms a step' 'exposed, ms'
printf '%s\n' "${table[@]}"
echo "$failed failed"
[ $failed -eq 0 ]
