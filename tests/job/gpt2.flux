#!/bin/bash
# jobs/gpt2-124m.ini on 2 nodes x 4 ranks: 4 data x 1 pipeline x 2 tensor. Made by
#   strata job jobs/gpt2-124m.ini --scheduler=flux --nodes=2 --ranks-per-node=4 --time=12:00:00 --container=strata.sif --parallel.tensor=2 --run.device=cuda --program=build/release/bin/strata --output=tests/job/gpt2.flux
# Start: flux batch tests/job/gpt2.flux [--section.key=value ...]
# 120 s before the time limit the ranks get USR1: they end their step, write a checkpoint and exit with code 75.
# flux: --job-name=gpt2-124m
# flux: --nodes=2
# flux: --nslots=8
# flux: --cores-per-slot=8
# flux: --gpus-per-slot=1
# flux: --queue=batch
# flux: --bank=physics
# flux: --time-limit=43200s
# flux: --output=strata-{{id}}.log

module load openmpi/4.1 hdf5
echo "job $FLUX_ENCLOSING_ID"
strata=${STRATA:-build/release/bin/strata}
run=runs/gpt2-124m
for setting in "$@"; do [[ $setting != --run.dir=* ]] || run=${setting#*=}; done

# Starts without a new checkpoint are counted in the run's directory, across requeues.
newest_step() {
  ls "$run/checkpoints" 2>/dev/null | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1 | grep . || echo 0
}
mkdir -p "$run" || exit 2
step=$(newest_step) last=0 starts=0
[ ! -s "$run/starts" ] || read -r last starts <"$run/starts"
[ "$step" -le "$last" ] || starts=0
echo "$step $((++starts))" >"$run/starts"
ranks=8
flux run -o pmi=pmix --nodes=2 --ntasks=$ranks --cores-per-task=8 --gpus-per-task=1 \
  --time-limit=43200s --signal=SIGUSR1@120s \
  apptainer exec --nv strata.sif "$strata" train jobs/gpt2-124m.ini --parallel.tensor=2 --run.device=cuda "$@" --run.resume=auto
code=$?

case $code in
  0) exit 0 ;;
  2 | 3 | 4 | 6 | 126 | 127)
    echo "stopped: exit code $code, which a new start would repeat; the lines above say why"
    exit $code ;;
esac
now=$(newest_step)
if [ "$now" -le "$step" ] && [ "$starts" -ge 3 ]; then
  echo "stopped: exit code $code, and $starts starts in a row ended without a new checkpoint; the lines above say why"
  exit $code
fi
echo "exit code $code, newest checkpoint of step $now; going on in a new start"
flux batch tests/job/gpt2.flux "$@"
exit $code
