#!/bin/bash
# Packs a build with the libraries that it needs into one archive, for nodes with a GPU and no package registry.
#   tests/gpu/bundle.sh [BUILD_DIRECTORY [ARCHIVE]]     default: build/release, build/strata-gpu.tar.xz
#   tests/gpu/bundle.sh --data [ARCHIVE]                default: build/strata-data.tar; what tests/gpu/accuracy.py trains on,
#                                                       out of STRATA_DATA_DIR
# Left out is what such a node has itself: the C library (2.36 or newer), the driver, CUDA, cuDNN and NCCL. tests/gpu/run.sh
# unpacks the archive and runs what is in it.
set -euo pipefail
root=$(dirname "$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")")
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

if [ "${1:-}" = --data ]; then
  archive=$(realpath -m "${2:-$root/build/strata-data.tar}")
  mkdir "$stage/strata-data"
  for name in t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz input.txt cifar10-jpg.tar.xz; do
    found=$(find -L "${STRATA_DATA_DIR:?names the directory with the data}" -name "$name" -print -quit)
    if [ -n "$found" ]; then
      cp "$found" "$stage/strata-data/"
    else
      echo "bundle.sh: $STRATA_DATA_DIR has no $name; the jobs that need it will be left out"
    fi
  done
  mkdir -p "$(dirname "$archive")"
  tar -C "$stage" -cf "$archive" strata-data  # all but the text is compressed
  echo "bundle.sh: $archive, $(($(stat -c %s "$archive") / 1000000)) MB"
  exit
fi

build=$(realpath -m "${1:-$root/build/release}")
archive=$(realpath -m "${2:-$root/build/strata-gpu.tar.xz}")
most_bytes=$((60 * 1000 * 1000))
programs=(strata gpu_ops gpu_comm unit_device unit_comm unit_train bench_gpu_layer)

for program in "${programs[@]}"; do
  if [ ! -x "$build/bin/$program" ]; then
    echo "bundle.sh: $build/bin/$program is not there; build it first: cmake --preset release && cmake --build build/release --target ${programs[*]}" >&2
    exit 2
  fi
done
tool() { command -v "$1" || { echo "bundle.sh: $1 is not installed; jobs/setup/install-packages.sh installs it" >&2; exit 2; }; }
mpirun=$(realpath "$(tool mpirun)")
orted=$(realpath "$(tool orted)")
plugins=$(ompi_info --path pkglibdir --parsable | sed 's/.*://')
pmix=$(find /usr/lib -path '*/pmix/*mca_*.so' -printf '%h\n' -quit)
[ -n "$pmix" ] || { echo "bundle.sh: PMIx' plugins are not below /usr/lib; install Debian's openmpi-bin" >&2; exit 2; }

top=$stage/strata-gpu
mkdir -p "$top"/{bin,lib,openmpi,pmix,share}
for program in "${programs[@]}"; do
  cp "$build/bin/$program" "$top/bin/"
done
strip "$top"/bin/*
cp "$mpirun" "$top/bin/mpirun"
cp "$orted" "$top/bin/orted"
cp -r /usr/share/openmpi "$top/share/"
# One node: no networks' plugins, whose libraries are large.
for plugin in "$plugins"/mca_*.so; do
  case $(basename "$plugin") in
    *ucx* | *ofi* | *psm* | *openib* | *usnic* | *verbs* | *portals* | *monitoring* | *_tm.so | *slurm* | *lsf*) ;;
    *) cp "$plugin" "$top/openmpi/" ;;
  esac
done
cp "$pmix"/*mca_*.so "$top/pmix/"

# Every library that these load, and theirs, but for those of the C library and the driver.
needed() {
  find "$top/bin" "$top/openmpi" "$top/pmix" -type f -print0 | xargs -0 -n 1 ldd 2>/dev/null |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u
}
for library in $(needed); do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | libutil.so.* | ld-linux*) ;;
    libcuda.so.* | libnvidia*) ;;
    *) cp -L "$library" "$top/lib/" ;;
  esac
done
if [ -f "$build/lib/libgpu_idle.so" ]; then
  cp "$build/lib/libgpu_idle.so" "$top/lib/"
else
  echo "bundle.sh: $build/lib/libgpu_idle.so is not there (target gpu_idle, where CUPTI is found); idle time cannot be measured"
fi
cp "$root"/tests/gpu/{run.sh,several.sh,accuracy.py} "$top/"
mkdir -p "$top/bench/peers" "$top/jobs"
cp "$root"/jobs/*.ini "$top/jobs/"
cp "$root"/bench/{gpu_vs_torch,gpu_idle,measure}.py "$top/bench/"
cp "$root"/bench/peers/*.py "$top/bench/peers/"
git -C "$root" rev-parse HEAD >"$top/commit" 2>/dev/null || true

mkdir -p "$(dirname "$archive")"
tar -C "$stage" -c strata-gpu | xz -T0 -3 >"$archive"
bytes=$(stat -c %s "$archive")
if [ "$bytes" -gt "$most_bytes" ]; then
  echo "bundle.sh: $archive has $bytes bytes, at most $most_bytes were expected; leave out programs or libraries" >&2
  exit 1
fi
echo "bundle.sh: $archive, $((bytes / 1000000)) MB, $(find "$top/lib" -type f | wc -l) libraries"
