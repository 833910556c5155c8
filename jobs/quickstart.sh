#!/bin/bash
# From a fresh Debian 12 or 13 to a trained network on 4 MPI ranks: installs packages, builds, makes a data set, trains.
#   jobs/quickstart.sh [IMAGES LABELS]
# IMAGES and LABELS are IDX files, plain or gzip. Without them the digits of MNIST are fetched; where there is no
# network, the input is statistics of this machine's own files. Safe to run twice. It needs root or sudo once, for the
# packages. STRATA_MNIST_URL names another place to fetch the digits from.
set -euo pipefail

mnist_url=${STRATA_MNIST_URL:-https://ossci-datasets.s3.amazonaws.com/mnist}
images_sha256=167310007f03058885c7e95e6c0b19c20de5c7fd3031f4cbdadc9014a523d80b
labels_sha256=fc607395669ec21321ea83e4b82c0544b7e8e63ff5b34337c06bc0a17cc0da3c

step="reading the arguments"
say() { printf '\n== %s\n' "$*"; }
stop() { printf 'quickstart: %s\n' "$*" >&2; trap - ERR; exit 1; }
trap 'stop "failed while $step; the lines above say why"' ERR

[ $# -eq 0 ] || [ $# -eq 2 ] || stop "give nothing, or two IDX files: jobs/quickstart.sh IMAGES LABELS"
files=()
for file in "$@"; do
  [ -r "$file" ] || stop "cannot read $file"
  files+=("$(realpath "$file")")
done
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."

say "packages (what is missing; their size is said first), a build (40 MB; 3 to 5 minutes on 2 cores, once), a data set
   (2 MB are fetched), and training on 4 ranks (10 seconds)"
step="installing packages"
say "1/4 packages"
jobs/setup/install-packages.sh fetch || jobs/setup/install-packages.sh

step="building"
say "2/4 build, into build/release"
# A build directory that is there already keeps its settings.
configure=(cmake --preset release -DSTRATA_TESTS=OFF -DSTRATA_BENCH=OFF)
[ ! -e build/release/build.ninja ] || configure=(cmake build/release)
"${configure[@]}" >build.log 2>&1 || { tail -n 20 build.log >&2; stop "cmake failed; build.log has all of it"; }
cmake --build build/release --target strata
mv build.log build/release/configure.log
strata=$PWD/build/release/bin/strata

# fetch NAME SHA256: data/download/NAME with that checksum; fails where it cannot be had.
fetch() {
  local to=data/download/$1
  has_sum() { echo "$2  $1" | sha256sum --check --status 2>/dev/null; }
  if has_sum "$to" "$2"; then
    return 0
  fi
  mkdir -p data/download
  curl --fail --silent --show-error --location --connect-timeout 10 --max-time 120 --output "$to.part" "$mnist_url/$1" || return 1
  if ! has_sum "$to.part" "$2"; then
    echo "$mnist_url/$1 does not have the checksum that is expected" >&2
    rm -f "$to.part"
    return 1
  fi
  mv "$to.part" "$to"
}

step="making the data set"
say "3/4 data set"
config=jobs/mnist-mlp.ini
settings=()
if [ ${#files[@]} -eq 2 ]; then
  name=quickstart-files
  echo "input: ${files[0]} and ${files[1]}, as given"
elif fetch t10k-images-idx3-ubyte.gz $images_sha256 && fetch t10k-labels-idx1-ubyte.gz $labels_sha256; then
  name=quickstart-mnist
  files=(data/download/t10k-images-idx3-ubyte.gz data/download/t10k-labels-idx1-ubyte.gz)
  echo "input: 10,000 handwritten digits of MNIST, from $mnist_url (checksums agree)"
else
  name=quickstart-file-kinds
  config=jobs/file-kinds.ini
  echo "input: blocks of this machine's own files, told apart by their bytes, as MNIST could not be fetched"
fi
data=data/$name
mkdir -p data
if [ ${#files[@]} -eq 2 ]; then
  "$strata" data import --format=idx --images "${files[0]}" --labels "${files[1]}" --split=0.8,0.2 --output="$data" --overwrite |
    tee data/import.txt
  # The last layer has one output a class.
  classes=$(sed -n 's/.*; \([0-9]*\) classes.*/\1/p' data/import.txt)
  settings=(--model.layer=flatten "--model.layer=dense 128 relu" "--model.layer=dropout 0.2" "--model.layer=dense ${classes:-10}")
else
  jobs/setup/file-kinds.pl >data/file-kinds.csv
  "$strata" data import --format=csv --files data/file-kinds.csv --label=kind --split=0.8,0.2 --output="$data" --overwrite
fi

step="training"
run=runs/$name
say "4/4 training on 4 ranks, 2 replicas x 2 pipeline stages; all that it prints is in $run/log.txt"
rm -rf "$run"  # of an earlier quickstart
mkdir -p "$run"
train=("$strata" train "$config" --data.train="$data/train.h5" --data.test="$data/test.h5" --run.dir="$run" --ranks=4 "${settings[@]}")
began=$SECONDS
"${train[@]}" 2>&1 | tee data/train.txt | grep --line-buffered '^step .* test ' || { tail -n 20 data/train.txt >&2; false; }
accuracy=$(sed -n 's/.*: test .*, \(accuracy .*\)/\1/p' data/train.txt | tail -n 1)
cat <<END

== done: trained in $((SECONDS - began)) s; $accuracy that were not trained on
the program: $strata
the run: $run, with config.ini, metrics.jsonl, log.txt and checkpoints. Next:
  export PATH=$PWD/build/release/bin:\$PATH
  strata evaluate $run --classes           # which classes it takes for which
  strata report $run --output=report.html  # curves, time and memory on a page
  strata train $run/config.ini --ranks=2 --parallel.data=1 --run.dir=$run-2   # the same losses, to the bit
More: docs/first-steps.md
END
