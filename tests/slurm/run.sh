#!/bin/bash
# Submits scripts of `strata job` to a real Slurm. Runs that are cut off, lose a node or meet a second copy of themselves
# end with the losses and the receipts of a run that was never disturbed.
#   tests/slurm/run.sh STRATA [CASE ...]     as in "stalls mpirun training save evaluation set-up"
# cluster.sh starts the cluster. Without Slurm's packages or root the test is skipped (exit code 77).
set -uo pipefail

skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "a cluster on one machine needs root"
for program in slurmctld slurmd munged sbatch; do
  PATH=$PATH:/usr/sbin command -v $program >/dev/null ||
    skip "$program is not installed (jobs/setup/install-packages.sh tests installs it)"
done
unshare --uts true 2>/dev/null || skip "UTS namespaces are not allowed here"

tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cluster=$tests/slurm/cluster.sh
python=${PYTHON:-/usr/bin/python3}  # with h5py
strata=$(realpath "$1")
shift
unset STRATA
export STRATA_NO_BINDING=1 STRATA_SITE=/dev/null
work=$(mktemp -d "${TMPDIR:-/tmp}/strata-slurm.XXXXXX")
chmod 755 "$work"
export STRATA_SLURM_DIR=$work/cluster STRATA_SLURM_OWNER=$$
trap '"$cluster" down; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
cd "$work" || exit 1

check() {  # check RUN WHAT COMMAND...: the command must succeed
  local run=$1 what=$2
  shift 2
  if "$@"; then
    echo "ok: $run: $what"
  else
    echo "FAILED: $run: $what" | tee -a failures
    tail -n 20 "$run.plan" strata-*.log
    exit 1
  fi
}
wait_until() {  # wait_until SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@" 2>/dev/null; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.2
  done
}
job_is() { scontrol show job "$1" -o | grep -q "JobState=$2 .*Restarts=${3:-}"; }
says() { tail -n "+$(($2 + 1))" "strata-$1.log" | grep -qE "$3"; }  # says JOB LINES PATTERN: after its first LINES lines
step_of() { tail -n 1 "$1/metrics.jsonl" 2>/dev/null | sed -n 's/.*"step":\([0-9]*\),.*/\1/p'; }
passed() { [ "$(step_of "$1")" -gt "$2" ]; }
losses() { grep -o '"kind":"train","step":[0-9]*,"loss":[^,]*,"grad_norm":[^,]*' "$1/metrics.jsonl"; }
same_losses() { [ -n "$(losses "$1")" ] && cmp -s <(losses "$1") <(losses "undisturbed/$1"); }
same_tensors() {
  PYTHONPATH=$tests/mpi "$python" -c "if True:
    import sys, harness
    ends = [harness.checkpoints(run)[-1] for run in sys.argv[1:]]
    assert ends[0].name == ends[1].name and not harness.differing_tensors(*map(harness.tensors, ends)), ends" "$1" "undisturbed/$1"
}
verifies() { "$strata" verify "$1" --stretches=1 --length=600 >"$1.json"; }
rank_process() {  # rank_process RUN RANK: its id
  local process
  for process in $(pgrep -f -- "train $1.ini"); do
    if [ "$(readlink "/proc/$process/exe")" = "$strata" ] && grep -qzx "PMIX_RANK=$2" "/proc/$process/environ"; then
      echo "$process" && return
    fi
  done
  return 1
}
has_rank() { rank_process "$@" >/dev/null; }
no_ranks() { ! has_rank "$@"; }
submit() {  # submit RUN OPTION...: prints the job's id
  local run=$1
  shift
  cp net.ini "$run.ini"
  "$strata" job "$run.ini" --submit --output="$run.sbatch" --ranks-per-node=2 --cpus-per-task=1 --signal=45 \
    --run.dir="$run" --job-name="$run's \"job\" #1" "$@" 2>"$run.plan"
}
goes_on_after() {  # goes_on_after RUN STEP: it passes the step by a few
  check "$1" "goes on after step $2" wait_until 200 passed "$1" $(($2 + 20))
}
last_steps() {  # last_steps RUN JOB: the run ends 200 steps after its next start
  sed -i "s/^steps = .*/steps = $(($(step_of "$1") + 200))/" "$1.ini"
  check "$1" "the run ends" wait_until 300 job_is "$2" COMPLETED
}

cut_by_limit() { :; }  # Slurm's signal, ahead of the limit of a minute
cut_by_requeue() { scontrol requeue "$1"; }
cut_by_signal() {
  if [ "$2" = srun ]; then scancel --signal=USR1 "$1"; else scancel --batch --signal=USR1 "$1"; fi
}
cuts() {  # cuts LAUNCHER: three in one run
  local way=$1 job restarts=0 kind
  job=$(submit "$way" --nodes=2 --constraint=pair1 --time=1 --launcher="$way") || exit 1
  check "$way" "its name is read back" test "$(squeue -h -j "$job" -o %j)" = "$way's \"job\" #1"
  for kind in limit requeue signal; do
    goes_on_after "$way" "$(step_of "$way")"
    cut_by_$kind "$job" "$way"
    check "$way" "cut by the $kind, back in the queue" wait_until 200 job_is "$job" '[A-Z]*' $((++restarts))
    scontrol update jobid="$job" timelimit=30
  done
  last_steps "$way" "$job"
}

# A node is taken out of service: the replicas of the remaining one go on. It comes back: both nodes train again.
node() {
  local job lost
  job=$(submit node --nodes=1-2 --constraint=pair2 --time=30) || exit 1
  check node "two replicas" wait_until 100 grep -q "grid: 2 data x 2 pipeline" "strata-$job.log"
  goes_on_after node 600
  lost=$(squeue -h -j "$job" -o %N | sed 's/.*\([0-9]\).*/\1/')
  "$cluster" node-down "$lost"
  check node "back in the queue" wait_until 200 job_is "$job" '[A-Z]*' 1
  goes_on_after node "$(step_of node)"
  check node "one replica" grep -q "grid: 1 data x 2 pipeline" "strata-$job.log"
  "$cluster" node-up "$lost"
  scontrol requeuehold "$job"
  check node "both nodes are free" wait_until 100 eval '[ "$(sinfo -h -N -n node3,node4 -o %T | sort -u)" = idle ]'
  scontrol release "$job"
  check node "back in the queue" wait_until 200 job_is "$job" '[A-Z]*' 2
  goes_on_after node "$(step_of node)"
  check node "two replicas again" test "$(grep -c "grid: 2 data x 2 pipeline" "strata-$job.log")" = 2
  scontrol requeue "$job"
  check node "back in the queue" wait_until 200 job_is "$job" '[A-Z]*' 3
  last_steps node "$job"
}

# Two nodes train and one is spare: in one allocation a node dies and the spare takes its place; a rank is killed, and the
# nodes start again; a node is taken out of service, and the one that is left goes on with half the replicas.
spares() {  # spares LAUNCHER TRIO
  local run=spares-$1 job
  job=$(submit "$run" --nodes=2 --spares=1 --starts=9 --constraint="trio$2" --time=30 --launcher="$1") || exit 1
  goes_on_after "$run" 600
  "$cluster" node-kill $((3 * $2 + 3))
  check "$run" "the spare is used" wait_until 100 grep -q "2 of [23] nodes answer" "strata-$job.log"
  goes_on_after "$run" "$(step_of "$run")"
  check "$run" "as many replicas" test "$(grep -c "grid: 2 data x 2 pipeline" "strata-$job.log")" = 2
  kill -KILL "$(rank_process "$run" 1)"
  check "$run" "the ranks end within 10 s of a killed one" wait_until 10 no_ranks "$run" 0
  goes_on_after "$run" "$(step_of "$run")"
  "$cluster" node-down $((3 * $2 + 4))
  check "$run" "the node that is left goes on" wait_until 100 grep -q "grid: 1 data x 2 pipeline" "strata-$job.log"
  goes_on_after "$run" "$(step_of "$run")"
  kill -KILL "$(rank_process "$run" 1)"
  last_steps "$run" "$job"
  check "$run" "in one allocation" job_is "$job" COMPLETED 0
}

# A rank that is stopped is named within the timeout + 5 s, one that is killed takes the others along within 10 s; the job
# goes back into the queue.
stalls() {  # stalls LAUNCHER PHASE...
  local run=stalls-$1 job restarts=0 process phase sent lines
  job=$(submit "$run" --nodes=2 --constraint=pair1 --time=30 --launcher="$1" --run.timeout=3 --starts=9 \
    --data.test=points/test.h5 --train.evaluate_every=1 --checkpoint.every=1) || exit 1
  shift
  for phase in "$@" killed; do
    check "$run" "a rank starts" wait_until 100 has_rank "$run" 1
    process=$(rank_process "$run" 1)
    case $phase in
      set-up) ;;
      killed) goes_on_after "$run" "$(step_of "$run")" ;;
      *)
        goes_on_after "$run" "$(step_of "$run")"
        check "$run" "is in its $phase" wait_until 60 grep -qE "^[0-9]+ node[0-9]+ $process $phase" "$run"/heartbeats/*-rank-1
        ;;
    esac
    sent=$EPOCHREALTIME lines=$(wc -l <"strata-$job.log")
    if [ "$phase" = killed ]; then
      kill -KILL "$process"
      check "$run" "the ranks end within 10 s of a killed one" wait_until 10 no_ranks "$run" 0
    else
      kill -STOP "$process"
      check "$run" "a rank that stops in its $phase is named within 8 s" wait_until 8 \
        says "$job" "$lines" "waiting to .*Rank 1 (has not written|\(host node[0-9]+, process $process\) has not responded)"
    fi
    echo "$run: $phase: $(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $sent }") s"
    check "$run" "back in the queue" wait_until 200 job_is "$job" '[A-Z]*' $((++restarts))
  done
  last_steps "$run" "$job"
}

# A script that is submitted twice: one job trains, the other says why not.
twice() {
  local first second
  first=$(submit twice --nodes=2 --constraint=pair1 --time=30) || exit 1
  second=$(sbatch --parsable twice.sbatch)
  check twice "one job ends" wait_until 200 grep -lq "^stopped: exit code 2" "strata-$first.log" "strata-$second.log"
  local trains=$first ends=$second
  if grep -q "^stopped" "strata-$first.log"; then trains=$second ends=$first; fi
  check twice "it names the other" grep -q "twice is in use by slurm job $trains, host" "strata-$ends.log"
  goes_on_after twice "$(step_of twice)"
  scontrol requeue "$trains"
  check twice "back in the queue" wait_until 200 job_is "$trains" '[A-Z]*' 1
  last_steps twice "$trains"
}

# A script that has the program start the ranks itself, over two nodes. A stop request to it reaches them.
launch() {
  local job
  cp net.ini launch.ini
  printf '#!/bin/bash\n%s\n' '#SBATCH --nodes=2 --ntasks=4 --cpus-per-task=1 --constraint=pair1 --time=30 --output=strata-%j.log' \
    "SLURM_CPU_BIND=none exec '$strata' train launch.ini --ranks=4 --run.dir=launch --run.resume=auto" >launch.sbatch
  job=$(sbatch --parsable launch.sbatch) || exit 1
  goes_on_after launch 0
  check launch "on both nodes" grep -q "on 2 nodes: " "strata-$job.log"
  scancel --batch --signal=TERM "$job"
  check launch "stops on request" wait_until 60 grep -q "stopped on request after step .*, checkpoint written" "strata-$job.log"
  check launch "with its exit code" wait_until 60 eval "scontrol show job $job -o | grep -q 'JobState=FAILED .*ExitCode=75:0'"
  sed -i "s/^steps = .*/steps = $(($(step_of launch) + 200))/" launch.ini
  job=$(sbatch --parsable launch.sbatch) || exit 1
  check launch "the run ends" wait_until 100 job_is "$job" COMPLETED
}

# A program that always loses a peer is not started for ever.
hopeless() {
  local job
  job=$(submit hopeless --program="$work/lost" --nodes=1 --time=30 --parallel.pipeline=1 --parallel.data=2 --starts=2) || exit 1
  check hopeless "gives up" wait_until 200 job_is "$job" FAILED 1
  check hopeless "says why" grep -q "exit code 5, and 2 consecutive starts ended without a new checkpoint" "strata-$job.log"
}
# The runs of a sweep as a job array, one of which is requeued.
array() {
  local job
  cp net.ini array.ini
  job=$("$strata" sweep array.ini --dir=array --set run.seed=1,2 --data.test=points/test.h5 --train.steps=20000 \
    --train.evaluate_every=5000 --nodes=1 --ranks-per-node=2 --cpus-per-task=1 --time=10 --submit 2>array.plan)
  check array "it is submitted" test "$job" -gt 0
  check array "both elements train" wait_until 90 eval 'passed array/seed=1 500 && passed array/seed=2 500'
  scontrol requeue "${job}_0"
  check array "both end" wait_until 240 eval '! squeue -h -j '"$job"' -o %t | grep -q .'
  "$strata" sweep array --table >array.table
  check array "both are finished" test "$(grep -c '20000 of 20000.*finished' array.table)" -eq 2
  check array "one was requeued" grep -q "start 2" "strata-${job}_0.log"
  mv array/seed=1 array-1  # the seed of the others
}

awk 'BEGIN { srand(1); for (j = 0; j < 16; j++) printf "x%d,", j; print "y";
  for (i = 0; i < 1000; i++) { s = 0; for (j = 0; j < 16; j++) { x = rand() - 0.5; s += x; printf "%.4f,", x } print s } }' >points.csv
"$strata" data import --format=csv --files points.csv --label=y --split=0.9,0.1 --output=points || exit 1
# Small, so that the ranks mostly wait for each other and one rank repeats all of it soon.
cat >net.ini <<'END'
[model]
layer = dense 32 relu
layer = dense 1
[data]
train = points/train.h5
[batch]
global = 64
micro = 16
[parallel]
pipeline = 2
[numerics]
lanes = 4
[optimizer]
kind = sgd
learning_rate = 0.001
[train]
steps = 10000000
metrics_every = 1
[checkpoint]
every = 500
[run]
threads = 1
receipts = 100
END
printf '#!/bin/sh\nexit 5\n' >lost && chmod 755 lost
"$cluster" up 10 || exit 1
eval "$("$cluster" env)"

[ $# -gt 0 ] || set -- "cuts srun" "cuts mpirun" node twice hopeless "spares srun 1" "spares mpirun 2" "stalls srun training set-up" launch array
for case in "$@"; do
  $case &
done
wait
for run in */metrics.jsonl; do
  run=${run%/*}
  "$strata" train net.ini --parallel.pipeline=1 --train.steps="$(step_of "$run")" --run.dir="undisturbed/$run" >"$run.plan" 2>&1
  check "$run" "the losses and gradient norms of a run that nothing disturbed" same_losses "$run"
  check "$run" "its weights and optimizer state" same_tensors "$run"
  check "$run" "its receipts" "$strata" replay --bisect "$run" "undisturbed/$run"
  check "$run" "steps of it computed again" verifies "$run"
done
[ ! -e failures ]
