#!/usr/bin/env bash
# Start a Slurm cluster of this machine alone: start_cluster.sh FOLDER [LINE OF slurm.conf ...]
#
# NODES in the environment (1) is the number of nodes that the machine pretends to be.
# It needs slurmctld, slurmd and munged (Debian: slurm-wlm and munge). They listen on 127.0.0.1
# alone, keep everything in FOLDER, and have no accounting database. FOLDER's path must be short:
# a socket lies in it. Slurm's commands need SLURM_CONF=FOLDER/slurm.conf, and jobs of Snakemake
# FOLDER/bin in their PATH: it takes that variable from the environment of `srun`.
# stop_cluster.sh FOLDER ends the cluster.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$folder"/{state,spool,log,bin}
chmod 755 "$folder"
trap '"$here/stop_cluster.sh" "$folder"' ERR

nodes=${NODES:-1}
read -r controller ports < <(python3 - "$nodes" <<'PYTHON'
import socket
import sys

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(1 + int(sys.argv[1]))]
print(*(each.getsockname()[1] for each in sockets))
PYTHON
)
hardware=$(SLURM_CONF=/dev/null slurmd -C | sed -n 's/^NodeName=[^ ]* //p')

cat >"$folder/slurm.conf" <<CONF
ClusterName=alone
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$controller
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
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
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=10
$(printf '%s\n' "$@")
$(number=0
here="NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 $hardware State=UNKNOWN"
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
slurmctld -c
for ((number = 1; number <= nodes; number++)); do
  mkdir -p "$folder/spool/node$number"
  slurmd -N "node$number"
done
for ((tenths = 0; tenths < 300; tenths++)); do
  if [ "$(sinfo --noheader --Node --format=%t 2>/dev/null | grep -cx idle)" = "$nodes" ]; then
    exit 0
  fi
  sleep 0.1
done
echo "error  $folder: the cluster did not start within 30 s; read its log folder" >&2
false
