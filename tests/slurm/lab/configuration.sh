#!/usr/bin/env bash
# Writes the configuration of the lab's Slurm; sourced by `lab`, which sets $state and $nodes.
# shellcheck disable=SC2154  # both come from there

# Two leaf switches with half of the nodes each, below a spine.
write_topology() {
  local half=$((nodes / 2))
  if [ "$nodes" -lt 2 ]; then
    echo "SwitchName=leaf1 Nodes=n1"
  else
    printf 'SwitchName=leaf1 Nodes=n[1-%d]\nSwitchName=leaf2 Nodes=n[%d-%d]\nSwitchName=spine Switches=leaf[1-2]\n' \
      "$half" $((half + 1)) "$nodes"
  fi >"$state/etc/topology.conf"
}

# More cores and memory than the machine has: nothing here is bound (task/none), and ranks are small.
write_slurm() {
  cat >"$state/etc/slurm.conf" <<CONF
ClusterName=lab
SlurmctldHost=login(10.91.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job may start again after cred_expire seconds; a step that starts later than that fails, as on a busy machine.
AuthInfo=socket=$state/run/munge.socket,cred_expire=10
StateSaveLocation=$state/controller
SlurmdSpoolDir=$state/spool/%n
SlurmctldPidFile=$state/run/slurmctld.pid
SlurmdPidFile=$state/run/slurmd.%n.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
TopologyPlugin=topology/tree
GresTypes=gpu
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=15
SlurmctldTimeout=30
MessageTimeout=10
KillWait=8
MinJobAge=3600
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0,max_switch_wait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
NodeName=n[1-$nodes] NodeAddr=10.91.0.[11-$((10 + nodes))] Sockets=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=4000 Gres=gpu:fake:4 State=UNKNOWN
PartitionName=batch  Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
CONF
}

# Devices of the fake GPUs are copies of /dev/null: Slurm wants character devices, and reads the index off their names.
write_gpus() {
  local gpu
  for gpu in 0 1 2 3; do
    [ -c "$state/run/gpu$gpu" ] || mknod -m 666 "$state/run/gpu$gpu" c 1 3
  done
  printf 'NodeName=n[1-%d] Name=gpu Type=fake File=%s/run/gpu[%s] Cores=%s\n' \
    "$nodes" "$state" 0-1 0-3 "$nodes" "$state" 2-3 4-7 >"$state/etc/gres.conf"
}

write_configuration() {
  local node
  write_slurm
  write_topology
  write_gpus
  echo "CgroupPlugin=cgroup/v1" >"$state/etc/cgroup.conf"   # the other one needs cgroup v2 mounted
  echo "PMIxCollFence=ring" >"$state/etc/mpi.conf"          # the default fence lets ranks of oversubscribed nodes run ahead
  { echo "127.0.0.1 localhost"; echo "10.91.0.1 login"
    for ((node = 1; node <= nodes; ++node)); do echo "10.91.0.$((10 + node)) n$node"; done; } >"$state/etc/hosts"
  (umask 077; head -c 1024 /dev/urandom >"$state/etc/munge.key")
}
