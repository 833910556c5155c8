#!/bin/bash
# Builds strata with Debian's MPICH, which lies beside Open MPI, and runs the tests of its communication: tests/distributions/mpich.sh
# Needs the packages of jobs/setup/install-packages.sh tests, and libmpich-dev and mpich. Exit code 77: skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for tool in mpicc.mpich mpiexec.hydra; do
  command -v $tool >/dev/null || { echo "mpich.sh: there is no $tool (apt-get install libmpich-dev mpich); skipped"; exit 77; }
done
cmake --preset mpich -DSTRATA_TESTS=ON "$@"
cmake --build build/mpich --target strata strata_rig unit_comm comm_mpi_test stall_at fault_shim
# golden_bits compares with a record that was made with Open MPI.
ctest --test-dir build/mpich --output-on-failure --no-tests=error \
  -R '^(unit\.comm|mpi\.(comm_.|grids|golden_bits|resume|kill|stop|stall|faults|launch|local|async|streams|instruction_sets))$'
# A job whose ranks Slurm starts by its own PMI, cut off by the time limit, a requeue and a signal.
tests/slurm/run.sh build/mpich/bin/strata "cuts srun" || [ $? -eq 77 ]
build/mpich/bin/strata job jobs/mnist-mlp.ini --nodes=2 --ranks-per-node=2 --time=1:00:00 --output=/dev/stdout | grep -F -- '--mpi=pmi2'
code=0
build/mpich/bin/strata job jobs/mnist-mlp.ini --nodes=2 --time=1:00:00 --launcher=mpirun --output=/dev/stdout || code=$?
[ $code -eq 2 ]
echo "mpich.sh: passed with $(build/mpich/bin/strata --version | grep '^MPI')"
