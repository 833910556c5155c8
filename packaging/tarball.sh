#!/bin/bash
# Makes build/strata-VERSION-ARCH and its .tar.gz: strata and its libraries for machines that have nothing but an MPI library.
#   packaging/tarball.sh [CMAKE ARGUMENT...]    as -DSTRATA_CUDA=OFF, or "-DCMAKE_CUDA_ARCHITECTURES=80;90"
# Another machine may not be older than this one, as the C library stays out. On a Debian with the packages of
# jobs/setup/install-packages.sh, libmpich-dev and patchelf; a cross-build needs libmpich-dev in its sysroot:
#   packaging/tarball.sh -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DCMAKE_SYSROOT=SYSROOT -DSTRATA_CUDA=OFF
#
#   bin/strata      chooses by the MPI library that it finds (strata-by-mpi.sh)
#   libexec/        the program, linked to Open MPI and to MPICH
#   lib/            libraries that strata loads from here
#   fallback/       libraries that MPI or its plug-ins may load too: those of the system come first
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly outside='^(ld-linux.*|lib(c|m|mvec|dl|pthread|rt|resolv|mpi|mpich))\.so'
readonly shared='^lib(stdc\+\+|gcc_s|z|hwloc|udev|cap|crypto|ssl|k5crypto|krb5|krb5support|gssapi_krb5|com_err|keyutils|sasl2)\.so'
command -v patchelf >/dev/null || { echo "tarball.sh: needs patchelf (apt-get install patchelf)" >&2; exit 1; }

toolchain=$(printf '%s\n' "$@" | sed -n 's/^-DCMAKE_TOOLCHAIN_FILE=\(.*\/\)*\(.*\)\.cmake$/-\2/p')
build=build/tarball$toolchain  # -openmpi, -mpich
export CCACHE_BASEDIR=$PWD  # the second build takes most of its objects from the first, where ccache is installed
for mpi in openmpi mpich; do
  cmake --preset release -B "$build-$mpi" -DSTRATA_TESTS=OFF -DSTRATA_BENCH=OFF -DMPI_C_COMPILER=mpicc.$mpi "$@"
  cmake --build "$build-$mpi" --target strata
done
compiler=$(sed -n 's/^set(CMAKE_CXX_COMPILER "\(.*\)")$/\1/p' "$build-openmpi"/CMakeFiles/*/CMakeCXXCompiler.cmake)
sysroot=$(sed -n 's/^CMAKE_SYSROOT:[A-Z]*=//p' "$build-openmpi/CMakeCache.txt")
triple=$("$compiler" -dumpmachine)
release=$PWD/build/strata-$(sed -n 's/^project(strata VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)-${triple%%-*}
[ -z "$sysroot" ] || export QEMU_LD_PREFIX=$sysroot  # the program prints its manual pages

rm -rf "$release"
mkdir -p "$release"/{libexec,lib,fallback,share/licenses}
for mpi in openmpi mpich; do
  cmake --install "$build-$mpi" --prefix "$release" --component program --strip >/dev/null
  mv "$release/bin/strata" "$release/libexec/strata-$mpi"
done
rm -r "$release/share/modulefiles"  # they name their place
install packaging/strata-by-mpi.sh "$release/bin/strata"

licence() {  # licence PACKAGE
  cp -L "$sysroot/usr/share/doc/$1/copyright" "$release/share/licenses/$1"
}
collect() {  # collect FILE: the libraries that it needs, and those that they need
  local library directory
  for library in $(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    directory=$release/lib
    [[ ! $library =~ $shared ]] || directory=$release/fallback
    if [[ $library =~ $outside ]] || [ -e "$directory/$library" ]; then
      continue
    fi
    install -m 644 "$("$compiler" ${sysroot:+"--sysroot=$sysroot"} -print-file-name="$library")" "$directory/$library"
    licence "$(dpkg-query ${sysroot:+"--admindir=$sysroot/var/lib/dpkg"} --search "*/$triple/$library" | sed -n '1s/:.*//p')"
    collect "$directory/$library"
  done
}
collect "$release/libexec/strata-openmpi"
collect "$release/libexec/strata-mpich"
licence librandom123-dev
licence nlohmann-json3-dev

# shellcheck disable=SC2016 # the dynamic linker's variable
patchelf --set-rpath '$ORIGIN/../lib:'"/usr/lib/$triple:/lib64:/usr/lib64:/usr/lib"':$ORIGIN/../fallback' \
  "$release"/{libexec,lib,fallback}/*
# Debian's MPICH has a name of its own.
patchelf --replace-needed libmpich.so.12 libmpi.so.12 "$release/libexec/strata-mpich"
ln -s "/usr/lib/$triple/libmpich.so.12" "$release/lib/libmpi.so.12"

tar -C build --sort=name --owner=0 --group=0 --numeric-owner -czf "$release.tar.gz" "$(basename "$release")"
newest() {
  find "$release"/{libexec,lib} -type f -exec readelf -V {} + | grep -o "$1_[0-9.]*" | sort -uV | tail -n 1
}
echo "$release.tar.gz: $(du -h "$release.tar.gz" | cut -f 1), for $(newest GLIBC) and $(newest GLIBCXX) or newer"
