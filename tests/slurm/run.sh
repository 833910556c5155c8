#!/bin/bash
# Runs both Slurm scripts of jobs/ on a real Slurm: stopped by a signal, back into the queue by themselves, ended with
# the losses of a run that was never stopped. Then a node is killed in the middle of a run.
#   tests/slurm/run.sh STRATA
# cluster.sh starts the cluster. Without Slurm's packages or root the test is skipped (exit code 77).
set -uo pipefail

skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "a cluster on one machine needs root"
for program in slurmctld slurmd munged sbatch; do
  PATH=$PATH:/usr/sbin command -v $program >/dev/null || skip "$program is not installed"
done
unshare --uts true 2>/dev/null || skip "UTS namespaces are not allowed here"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cluster=$here/cluster.sh
jobs=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../jobs" && pwd)
STRATA=$(realpath "$1")
export STRATA STRATA_NO_BINDING=1
work=$(mktemp -d "${TMPDIR:-/tmp}/strata-slurm.XXXXXX")
chmod 755 "$work"
export STRATA_SLURM_DIR=$work/cluster STRATA_SLURM_OWNER=$$
trap '"$cluster" down; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
cd "$work" || exit 1

failures=0
check() {  # check WHAT COMMAND...: the command must succeed
  local what=$1
  shift
  if "$@"; then
    echo "ok: $what"
  else
    echo "FAILED: $what"
    tail -n 30 "$work"/*.log 2>/dev/null
    failures=$((failures + 1))
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
state_is() { scontrol show job "$1" -o | grep -q "JobState=$2 "; }
steps_done() { grep -q "\"step\":$2," "$1/metrics.jsonl"; }
losses() { grep -o '"kind":"train","step":[0-9]*,"loss":[^,]*,"grad_norm":[^,]*' "$1/metrics.jsonl"; }
same_losses() { [ "$(losses "$1")" = "$(losses "$2" | head -n 2000)" ]; }

# A network that takes long enough to be stopped in the middle; only its first 2000 steps are compared.
awk 'BEGIN { srand(1); for (j = 0; j < 64; j++) printf "x%d,", j; print "y";
  for (i = 0; i < 2000; i++) { s = 0; for (j = 0; j < 64; j++) { x = rand() - 0.5; s += (j % 3 - 1) * x; printf "%.4f,", x } print s } }' >points.csv
"$STRATA" data import --format=csv --files points.csv --label=y --split=0.9,0.1 --output=points || exit 1
cat >net.ini <<'END'
[model]
layer = dense 256 relu
layer = dense 256 relu
layer = dense 1
[data]
train = points/train.h5
test = points/test.h5
[batch]
global = 64
micro = 8
[parallel]
pipeline = 2
[numerics]
lanes = 4
[train]
steps = 5000
[checkpoint]
every = 500
[run]
threads = 1
END

"$cluster" up 4 || exit 1
eval "$("$cluster" env)"

"$STRATA" train net.ini --parallel.pipeline=1 --train.steps=2000 --run.dir=undisturbed 2>undisturbed.log
check "a run on one rank" steps_done undisturbed 2000

for way in srun mpirun; do
  job=$(sbatch --parsable --cpus-per-task=1 "$jobs/slurm-$way.sbatch" net.ini --run.dir=$way)
  wait_until 120 steps_done $way 60
  if [ $way = srun ]; then
    scancel --signal=USR1 "$job"
  else
    scancel --batch --signal=USR1 "$job"
  fi
  check "$way: exit code 75 puts the job back into the queue" wait_until 60 grep -q "back into the queue" "strata-$job.log"
  check "$way: the job goes on after its checkpoint" wait_until 120 grep -q "continuing after step" "strata-$job.log"
  check "$way: the job ends" wait_until 300 state_is "$job" COMPLETED
  check "$way: the bits of the run that was never stopped" same_losses undisturbed $way
done

job=$(sbatch --parsable --cpus-per-task=1 "$jobs/slurm-srun.sbatch" net.ini --run.dir=killed)
wait_until 120 steps_done killed 550
nodes=$(scontrol show hostnames "$(squeue -h -j "$job" -o %N)")
"$cluster" node-kill "$(sed -n 's/node//;2p' <<<"$nodes")" >/dev/null
check "node killed: the job goes on on other nodes" wait_until 120 grep -q "continuing after step" "strata-$job.log"
check "node killed: the job ends" wait_until 300 state_is "$job" COMPLETED
check "node killed: the bits of the run that was never stopped" same_losses undisturbed killed
[ $failures -eq 0 ]
