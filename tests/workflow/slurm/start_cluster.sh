#!/usr/bin/env bash
# Start a Slurm cluster of this machine alone: start_cluster.sh FOLDER [LINE OF slurm.conf ...]
#
# In the environment, NODES (1) is the number of nodes that the machine pretends to be, ACCOUNTING
# (none) is `slurmdbd` for an accounting database, and NETWORK (all) is `none` for nodes that reach
# the login node alone, as root (iproute2).
# It needs slurmctld, slurmd and munged (Debian: slurm-wlm and munge), for accounting also slurmdbd
# and mariadbd (slurmdbd and mariadb-server). They keep everything in FOLDER, and listen on
# 127.0.0.1 alone, but for slurmdbd, which knows no such setting, and slurmctld where NETWORK is
# none. FOLDER's path must be short: a socket lies in it. Slurm's commands need
# SLURM_CONF=FOLDER/slurm.conf, and jobs of Snakemake FOLDER/bin in their PATH: it takes that
# variable from the environment of `srun`.
# stop_cluster.sh FOLDER ends the cluster.
set -eEuo pipefail # -E: the trap holds in functions
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$folder"/{state,spool,log,bin}
chmod 755 "$folder"
trap '"$here/stop_cluster.sh" "$folder"' ERR

nodes=${NODES:-1}
accounting=${ACCOUNTING:-none}
read -r controller accountant database ports < <(python3 - "$nodes" <<'PYTHON'
import socket
import sys

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3 + int(sys.argv[1]))]
print(*(each.getsockname()[1] for each in sockets))
PYTHON
)
# Slurm on the login node, on the nodes, and what runs a command there
login=127.0.0.1 node=127.0.0.1 there=() bound=NoInAddrAny,NoCtldInAddrAny
if [ "${NETWORK:-all}" = none ]; then
  space=$(basename "$folder") subnet=198.18.$((RANDOM % 256))
  login=$subnet.1 node=$subnet.2 there=(nsenter "--net=/run/netns/$space") bound=
  ip netns add "$space"
  ip link add "slurm$$" type veth peer name login netns "$space"
  ip address add "$login/30" dev "slurm$$"
  ip link set "slurm$$" up
  "${there[@]}" ip address add "$node/30" dev login
  "${there[@]}" ip link set login up
  "${there[@]}" ip link set lo up
fi
hardware=$(SLURM_CONF=/dev/null slurmd -C | sed -n 's/^NodeName=[^ ]* //p')

cat >"$folder/slurm.conf" <<CONF
ClusterName=alone
SlurmctldHost=$(hostname -s)($login)
SlurmctldPort=$controller
${bound:+CommunicationParameters=$bound}
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SchedulerType=sched/backfill
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/$accounting
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$accountant
AccountingStoragePass=$folder/munge.socket
ReturnToService=2
KillWait=10
$(printf '%s\n' "$@")
$(number=0
here="NodeHostname=$(hostname -s) NodeAddr=$node $hardware State=UNKNOWN"
for port in $ports; do echo "NodeName=node$((++number)) Port=$port $here"; done)
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF

cat >"$folder/bin/srun" <<SRUN
#!/bin/sh
SLURM_CONF=$folder/slurm.conf exec $(command -v srun) "\$@"
SRUN
chmod 755 "$folder/bin/srun"
head -c 128 /dev/urandom >"$folder/munge.key"
chmod 600 "$folder/munge.key"
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munged.pid" --seed-file="$folder/munge.seed" \
  --log-file="$folder/log/munged" 2>>"$folder/log/start"
export SLURM_CONF=$folder/slurm.conf

# wait_for SECONDS COMMAND: until it succeeds
wait_for() {
  local last=$((SECONDS + $1))
  while ((SECONDS < last)); do
    "${@:2}" >/dev/null 2>&1 && return
    sleep 0.1
  done
  echo "error  $folder: the cluster did not start within $1 s; read its log folder" >&2
  false
}

if [ "$accounting" = slurmdbd ]; then
  password=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
  own=(--no-defaults "--socket=$folder/mariadbd.socket")
  mariadb-install-db --no-defaults "--user=$(id -un)" "--datadir=$folder/database" \
    --auth-root-authentication-method=normal --skip-test-db >"$folder/log/database" 2>&1
  mariadbd "${own[@]}" "--user=$(id -un)" "--datadir=$folder/database" --bind-address=127.0.0.1 \
    "--port=$database" "--pid-file=$folder/mariadbd.pid" --innodb-flush-log-at-trx-commit=0 \
    >>"$folder/log/database" 2>&1 &
  wait_for 60 mariadb-admin "${own[@]}" ping
  mariadb "${own[@]}" --execute="DELETE FROM mysql.global_priv WHERE User = 'root' AND \
    Host <> 'localhost'; FLUSH PRIVILEGES; CREATE USER slurm@'%' IDENTIFIED BY '$password'; \
    GRANT ALL ON slurm_acct_db.* TO slurm@'%'"
  (umask 077 && cat >"$folder/slurmdbd.conf") <<CONF
DbdHost=$(hostname -s)
DbdAddr=127.0.0.1
DbdPort=$accountant
SlurmUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$database
StorageUser=slurm
StoragePass=$password
LogFile=$folder/log/slurmdbd
PidFile=$folder/slurmdbd.pid
CONF
  slurmdbd
  wait_for 60 timeout 5 sacctmgr --noheader show cluster
fi
slurmctld -c
for ((number = 1; number <= nodes; number++)); do
  mkdir -p "$folder/spool/node$number"
  "${there[@]}" slurmd -N "node$number"
done
all_idle() {
  # sort -u: a node of several partitions is listed in each
  idle=$(timeout 5 sinfo --noheader --Node --format="%N %t" | sort -u | grep -c " idle$")
  [ "$idle" = "$nodes" ]
}
wait_for 30 all_idle
