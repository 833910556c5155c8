# shellcheck shell=bash
# Sourced by scripts that try a Debian in a directory, as root:
#   make_root SUITE DIRECTORY [OPTION...]   makes it with debootstrap, unless it is there, and mounts what programs need; unmounted
#                                           at exit. An empty DIRECTORY: a temporary one, removed at exit. Sets `root`.
#   in_root COMMAND...                      runs a command there, without this machine's environment
#   copy_source                             copies the sources there, to /root/strata; what was built there stays
# From a Debian mirror (STRATA_MIRROR; default http://deb.debian.org/debian). Exit code 77 where this user cannot make one.
mirror=${STRATA_MIRROR:-http://deb.debian.org/debian}
mounted=()
temporary=

clean_up() {
  [ ${#mounted[@]} -eq 0 ] || umount "${mounted[@]}"
  [ -z "$temporary" ] || rm -rf --one-file-system "$temporary"
}

mount_there() {  # mount_there PLACE MOUNT ARGUMENT...
  local place=$root/$1
  shift
  mkdir -p "$place"
  mountpoint -q "$place" || { mount "$@" "$place" && mounted+=("$place"); }
}

make_root() {
  local suite=$1 keep=$2
  shift 2
  if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
    echo "$(basename "$0"): needs root and debootstrap (apt-get install debootstrap); skipped"
    exit 77
  fi
  if [ -n "$keep" ]; then
    mkdir -p "$keep"
    root=$(realpath "$keep")
  else
    root=$(mktemp -d)
    temporary=$root
  fi
  trap clean_up EXIT
  chmod 755 "$root"  # users other than root run there too, as man
  if [ ! -e "$root/etc/debian_version" ] || [ -e "$root/debootstrap" ]; then
    debootstrap --variant=minbase "$@" "$suite" "$root" "$mirror" >"$root.log" || { tail "$root.log"; exit 1; }
    rm "$root.log"
  fi
  [ -e "$root/etc/hosts" ] || cp /etc/hosts "$root/etc"  # MPI waits for names that do not resolve
  mount_there proc -t proc proc
  mount_there sys -t sysfs -o ro sysfs
  mount_there dev/shm -t tmpfs tmpfs
  mount_there dev/pts -t devpts -o ptmxmode=666 devpts
}

in_root() {
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot "$root" "$@"
}

copy_source() {
  local source
  source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
  mkdir -p "$root/root/strata"
  find "$root/root/strata" -mindepth 1 -maxdepth 1 ! -name build ! -name data -exec rm -rf {} +
  git -C "$source" ls-files -z | tar -C "$source" --null --files-from=- -c | tar -C "$root/root/strata" --no-same-owner -x
  # Scripts there ask git for the list of files.
  in_root bash -c 'cd /root/strata && ! command -v git >/dev/null || { git init -q && git add -A; }'
}
