#!/usr/bin/env bash
# The experiments A to L on a machine with one GPU, some 45 minutes in all; see acceptance.py.
#
#   OUT=folder bench/gpu/acceptance.sh [A B C...] [--stand-in]
#
# Several ranks share the one device: NCCL takes them for ranks of different hosts.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD/src:$PWD/site${PYTHONPATH:+:$PYTHONPATH}"
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_CUMEM_ENABLE=0
export NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_NCHANNELS=2 OMP_NUM_THREADS=1
exec "${PYTHON:-python3}" bench/gpu/acceptance.py --out "${OUT:-out}" "$@"
