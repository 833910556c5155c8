#!/bin/bash
# Trains jobs/gpt2-124m.ini on 2 nodes x 4 ranks: 4 data x 1 pipeline x 2 tensor. Made by
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

echo "job $FLUX_ENCLOSING_ID"
module load openmpi/4.1 hdf5
strata=${STRATA:-build/release/bin/strata}
run=runs/gpt2-124m
for setting in "$@"; do
  [[ $setting != --run.dir=* ]] || run=${setting#*=}
  [[ ${option:-} != --run.dir ]] || run=$setting
  option=$setting
done

# Starts without a new checkpoint are counted in the run's directory, across requeues. The newest checkpoint is the one
# written last: a run that went back behind a damaged one writes smaller steps.
newest_checkpoint() {
  stat -c '%n@%Y' -- "$(ls -dt -- "$run"/checkpoints/step-* 2>/dev/null | head -n 1)" 2>/dev/null | grep -o 'step-.*' || echo none
}
count_starts() { echo "$1 $before" >"$run/starts.new" && mv -- "$run/starts.new" "$run/starts"; }
mkdir -p -- "$run" || exit 2
before=$(newest_checkpoint) last= starts=0
[ ! -s "$run/starts" ] || read -r starts last <"$run/starts"
[[ $before = "$last" && $starts =~ ^[1-9][0-9]{0,5}$ ]] || starts=0
count_starts $((++starts))
flux run -o pmi=pmix --nodes=2 --tasks-per-node=4 --cores=64 --gpus-per-node=4 \
  --time-limit=43200s --signal=SIGUSR1@120s \
  apptainer exec --nv strata.sif "$strata" train jobs/gpt2-124m.ini --parallel.tensor=2 --run.device=cuda "$@" --run.resume=auto
code=$?

case $code in
  0) exit 0 ;;
  2 | 3 | 4 | 6 | 126 | 127)
    [ $code -ne 2 ] || count_starts $((starts - 1))  # another job may train in this directory
    echo "stopped: exit code $code, which a restart would repeat; the lines above say why"
    exit $code ;;
esac
now=$(newest_checkpoint)
if [ "$now" = "$before" ] && [ "$starts" -ge 3 ]; then
  echo "stopped: exit code $code, and $starts consecutive starts ended without a new checkpoint; the lines above say why"
  exit $code
fi
echo "exit code $code, newest checkpoint ${now%@*}; restarting"
flux batch tests/job/gpt2.flux "$@"
exit $code
