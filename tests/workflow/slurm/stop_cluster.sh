#!/usr/bin/env bash
# End the cluster that start_cluster.sh FOLDER started, and its jobs; true if there is none.
PATH=$PATH:/usr/sbin:/sbin
folder=$(cd "$1" 2>/dev/null && pwd) || exit 0
export SLURM_CONF=$folder/slurm.conf
if [ -s "$folder/slurmctld.pid" ]; then
  timeout 20 scancel --user="$(id -un)" 2>/dev/null
  for ((tenths = 0; tenths < 200; tenths++)); do
    [ -z "$(timeout 5 squeue --noheader 2>/dev/null)" ] && break
    sleep 0.1
  done
fi
for file in "$folder"/slurmd-*.pid "$folder"/{slurmctld,slurmdbd,mariadbd,munged}.pid; do
  pid=$(cat "$file" 2>/dev/null) || continue
  daemon=$(basename "$file" .pid)
  daemon=${daemon%-*}
  # A pid may have gone to another process since.
  grep -qs "$daemon" "/proc/$pid/cmdline" || continue
  kill "$pid"
  for ((tenths = 0; tenths < 100; tenths++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null
done
ip netns delete "$(basename "$folder")" 2>/dev/null
exit 0
