#!/bin/bash
# Installs the Debian packages that strata is built from; skips what is there, safe to run twice.
#   jobs/setup/install-packages.sh           to build and run
#   jobs/setup/install-packages.sh tests     also what tests/run.sh uses
#   jobs/setup/install-packages.sh fetch     also what jobs/quickstart.sh fetches MNIST with
#   jobs/setup/install-packages.sh --list [tests | fetch]
#                                            says which are missing and installs none
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhdf5-dev zlib1g-dev libdnnl-dev
  librandom123-dev libxxhash-dev libssl-dev libfmt-dev nlohmann-json3-dev libhwloc-dev libutf8proc-dev
  libpcre2-dev libturbojpeg0-dev libpng-dev libzstd-dev libsentencepiece-dev)
install=yes
if [ "${1:-}" = --list ]; then
  install=no
  shift
fi
if [ "${1:-}" = tests ]; then
  packages+=(git libgtest-dev libgmock-dev libbenchmark-dev clang-format clang-tidy python3 python3-numpy
    python3-h5py python3-torch python3-regex python3-sentencepiece python3-opencv python3-jinja2
    groff-base xz-utils slurmctld slurmd slurm-client munge)
elif [ "${1:-}" = fetch ]; then
  packages+=(curl ca-certificates)
elif [ $# -gt 0 ]; then
  echo "install-packages.sh: \"$1\" is not a list of packages; give [--list] [tests | fetch]" >&2
  exit 2
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all ${#packages[@]} are installed"
  exit 0
fi

if [ $install = no ]; then
  echo "packages: missing: ${missing[*]}; none is installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install-packages.sh: these packages are missing: ${missing[*]}" >&2
    echo "install-packages.sh: run this script as root, or install sudo" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "packages: installing with ${as_root[*]:+sudo }apt-get: ${missing[*]}"
apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
"${apt_get[@]}" update >/dev/null || echo "packages: apt-get update failed; going on with the lists at hand" >&2
LC_ALL=C "${apt_get[@]}" install --no-install-recommends --assume-no "${missing[@]}" 2>/dev/null | grep -E '^(Need to get|After this)' || true
if ! log=$("${apt_get[@]}" install -y --no-install-recommends "${missing[@]}" 2>&1); then
  tail -n 20 <<<"$log" >&2
  echo "install-packages.sh: apt-get could not install the packages; the lines above say why" >&2
  exit 1
fi
