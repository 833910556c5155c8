#!/bin/sh
# bin/strata of a release: becomes libexec/strata-openmpi or libexec/strata-mpich, by the variables of the launcher, by the MPI
# libraries that the dynamic linker finds, and where it finds both, by mpirun. Exit code 2: it finds none.
home=$(dirname "$(dirname "$(readlink -f "$0")")")

libraries_of() {
  LD_TRACE_LOADED_OBJECTS=1 "$home/libexec/strata-$1" 2>&1
}
loads() {
  case $(libraries_of "$1") in *' not found'*) return 1 ;; esac
}

family=
if [ -n "${OMPI_COMM_WORLD_SIZE:-}" ]; then
  if loads openmpi; then family=openmpi; fi
elif [ -n "${PMI_RANK:-}${MV2_COMM_WORLD_RANK:-}" ] && loads mpich; then
  family=mpich
elif loads openmpi; then  # also under srun --mpi=pmi2
  family=openmpi
  if loads mpich; then
    case $(mpirun --version 2>/dev/null) in '' | *'Open MPI'*) ;; *) family=mpich ;; esac
  fi
elif loads mpich; then
  family=mpich
fi
if [ -z "$family" ]; then
  if [ -n "${OMPI_COMM_WORLD_SIZE:-}" ]; then
    echo "strata: Open MPI's mpirun started this process, which needs its library libmpi.so.40, of Open MPI 4 or 5;" >&2
  else
    echo "strata needs an MPI library: libmpi.so.40, of Open MPI 4 or 5, or libmpi.so.12, of MPICH and those with its ABI;" >&2
  fi
  echo "install it (Debian: openmpi-bin), load its module, or put its directory into LD_LIBRARY_PATH. The dynamic linker says:" >&2
  { libraries_of openmpi; libraries_of mpich; } | grep ' not found' | sort -u >&2
  exit 2
fi
exec "$home/libexec/strata-$family" "$@"
