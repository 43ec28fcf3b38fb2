#!/usr/bin/env bash
# The template unchanged over two and over four nodes: the losses that all other checks compare with, ranks of a node one after the
# other, and what travels between nodes by the chosen NICs.
# shellcheck disable=SC2034,SC2154

bytes() { awk -v nic="$2" '$2 ~ nic { sum += $3 } END { print sum + 0 }' <<<"$1"; }
# sent_by_rails BEFORE AFTER: most by hsn0 and hsn1, little by the management network.
sent_by_rails() {
  local rails=$(($(bytes "$2" '^hsn') - $(bytes "$1" '^hsn'))) management=$(($(bytes "$2" '^eth') - $(bytes "$1" '^eth')))
  [ "$rails" -gt 5000000 ] || fail "only $rails bytes went by hsn0 and hsn1"
  [ "$management" -lt $((rails / 10)) ] || fail "$management bytes went by eth0, and $rails by hsn0 and hsn1"
  echo "  between nodes: $rails bytes by hsn0 and hsn1, $management by eth0"
}

before=$("$lab" traffic)
uninterrupted
sent_by_rails "$before" "$("$lab" traffic)"
log=$work/plain.log
said "ranks: 1 on each node, consecutive (block)"
said "annulus-topology: rank 0: OMPI_MCA_btl_tcp_if_include=hsn0,hsn1"
said "annulus-topology: rank 0: NCCL_SOCKET_IFNAME==hsn0,hsn1"
said "2 nodes × 1 rank"
said "annulus-topology: rank 0: OMP_NUM_THREADS=1"
said "started by: srun --mpi=pmix"

before=$("$lab" traffic)
train four --nodes=4 --ntasks-per-node=2 --gpus-per-node=4 -- --set train.steps=30
ends "$job" COMPLETED
sent_by_rails "$before" "$("$lab" traffic)"
said "below leaf1 leaf2"
said "GPUs of a node: 4 (indices 0,1,2,3)"
said "8 = DP 1 × CP 8, 4 nodes × 2 ranks"
said "schedule topology-burst, layout zigzag"

# The other launcher, told by the site, and a subset of what could be had: one rank a GPU.
ANNULUS_MPI=mpirun ANNULUS_RANKS=gpu train mpirun --nodes=2 --gpus-per-node=2 --ntasks-per-node=4 -- --set train.steps=10
ends "$job" COMPLETED
said "mpirun"
said "2 nodes × 2 ranks"
