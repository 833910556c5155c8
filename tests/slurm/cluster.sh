#!/bin/bash
# A Slurm cluster of N nodes on this machine, for tests: munged, slurmctld and N slurmd from Debian's packages, without
# systemd and without files outside one directory. Needs root.
#   cluster.sh up N          starts node1 ... nodeN, with the features pair1, pair1, pair2, pair2 ..., and from node5 on
#                            trio1, trio1, trio1, trio2 ...; ends with its caller
#   cluster.sh env           prints what a shell needs to use it: eval "$(cluster.sh env)"
#   cluster.sh node-kill K   kills node K and all that runs there, as a power cut does
#   cluster.sh node-down K   takes node K out of service; Slurm ends its jobs at once
#   cluster.sh node-up K     takes node K back into service
#   cluster.sh down          ends everything and removes the directory; may be repeated
# STRATA_SLURM_DIR names the directory (default /tmp/strata-slurm), STRATA_SLURM_OWNER the process with which it ends.
#
# The controller and each node have a UTS namespace: a host name of their own, without which Open MPI's shared memory of
# two nodes would collide, and a mark on every process that they start, by which `down` finds them.
set -uo pipefail

dir=${STRATA_SLURM_DIR:-/tmp/strata-slurm}
cpus=16  # of each node, more than there may be: config_overrides
PATH=$PATH:/usr/sbin
export SLURM_CONF=$dir/slurm.conf

die() {
  echo "cluster.sh: $*" >&2
  exit 1
}
wait_until() {  # wait_until SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@" 2>/dev/null; do
    [ $SECONDS -lt "$end" ] || return 1
    sleep 0.1
  done
}

start_host() {  # start_host NAME: a sleeping process holds the namespace of a host
  setsid unshare --uts sh -c 'hostname "$0" && : >"$1" && exec sleep infinity' "$1" "$dir/$1.up" </dev/null >/dev/null 2>&1 &
  echo $! >"$dir/hosts/$1"
  wait_until 10 test -e "$dir/$1.up" || die "cannot make a UTS namespace for $1"
}
start_on() {  # start_on HOST COMMAND...
  local host=$1
  shift
  setsid nsenter -t "$(cat "$dir/hosts/$host")" --uts "$@" </dev/null >>"$dir/$host.out" 2>&1 &
}
# The processes on a host, its holder apart.
processes_on() {
  local holder namespace process
  holder=$(cat "$dir/hosts/$1") && namespace=$(readlink "/proc/$holder/ns/uts") || return
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/uts" 2>/dev/null)" != "$namespace" ] || [ "${process#/proc/}" = "$holder" ] ||
      echo "${process#/proc/}"
  done
}
kill_host() {
  local processes
  for _ in 1 2 3 4 5; do  # what a process starts while the others are killed
    processes=$(processes_on "$1")
    [ -n "$processes" ] || return 0
    # shellcheck disable=SC2086  # several processes
    kill -KILL $processes 2>/dev/null
  done
}
idle_nodes_are() { [ "$(sinfo -h -N -t idle -o %N | wc -l)" = "$1" ]; }

write_config() {  # write_config N
  local port=$((21000 + RANDOM % 900 * 10)) node
  # Each node has a TmpFS of its own, where PMIx puts its directory. cred_expire delays a requeued job; below 5 s Slurm
  # takes its default of 120 s.
  cat >"$SLURM_CONF" <<END
ClusterName=strata
SlurmctldHost=controller(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/%n.spool
TmpFS=$dir/%n.tmp
SlurmctldPidFile=$dir/controller.pid
SlurmdPidFile=$dir/%n.pid
SlurmctldLogFile=$dir/controller.log
SlurmdLogFile=$dir/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=pmix
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
JobRequeue=1
JobFileAppend=1
SlurmdTimeout=6
KillWait=5
KillOnBadExit=1
MinJobAge=3600
MessageTimeout=10
TCPTimeout=2
END
  for ((node = 1; node <= $1; node++)); do
    echo "NodeName=node$node NodeAddr=127.0.0.1 Port=$((port + node)) CPUs=$cpus RealMemory=64000" \
      "Feature=pair$(((node + 1) / 2)),trio$(((node - 2) / 3))" >>"$SLURM_CONF"
  done
  echo "PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$SLURM_CONF"
}

up() {  # up N OWNER
  local node
  [ "$(id -u)" -eq 0 ] || die "a cluster on one machine needs root"
  down
  mkdir -p "$dir"/{hosts,munge,state} || exit 1
  chmod 755 "$dir"
  # Ends the cluster also where its owner is killed; ends itself where another cluster took the directory.
  setsid bash -c 'while sleep 1; [ "$(cat "$2/watcher")" = $$ ]; do kill -0 "$1" || exec "$0" down; done' \
    "$(realpath "$0")" "$2" "$dir" </dev/null >/dev/null 2>&1 &
  echo $! >"$dir/watcher"
  write_config "$1"
  (umask 077 && head -c 128 /dev/urandom >"$dir/munge/key")
  start_host controller
  start_on controller munged -F --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
    --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
  wait_until 10 test -S "$dir/munge/socket" || die "munged did not start: $(cat "$dir/controller.out")"
  start_on controller slurmctld -D -f "$SLURM_CONF"
  for ((node = 1; node <= $1; node++)); do
    mkdir -p "$dir/node$node.spool" "$dir/node$node.tmp"
    start_host "node$node"
    start_on "node$node" slurmd -D -N "node$node" -f "$SLURM_CONF"
  done
  wait_until 30 idle_nodes_are "$1" || die "the nodes are not idle: $(sinfo -N 2>&1; tail -n 5 "$dir"/*.out "$dir"/*.log)"
}

down() {
  local host name
  for host in "$dir"/hosts/*; do
    [ -e "$host" ] || continue
    name=${host##*/}
    kill_host "$name"
    kill -KILL "$(cat "$host")" 2>/dev/null
    rm -f /dev/shm/vader_segment."$name".*
  done
  rm -rf "$dir"
}

case "${1:-}" in
  up) up "${2:?the number of nodes}" "${STRATA_SLURM_OWNER:-$PPID}" ;;
  env)
    echo "export SLURM_CONF=$SLURM_CONF OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" \
      "OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none" \
      "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none" \
      "OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo"
    ;;
  node-kill) kill_host "node$2" ;;
  node-down) scontrol update nodename="node$2" state=down reason=test ;;
  node-up) scontrol update nodename="node$2" state=resume ;;
  down) down ;;
  *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
