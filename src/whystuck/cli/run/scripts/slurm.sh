#!/usr/bin/env bash
# Starts a job on all nodes of an allocation. Made by `whystuck init slurm`; it is yours to change.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --requeue
# A restart must not overwrite the log of the start before.
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
# Two minutes to save before the time is over, to this script, which passes it on.
#SBATCH --signal=B:TERM@120
set -Eeuo pipefail

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
export MASTER_PORT=${MASTER_PORT:-29500}
export LOG_DIR=${LOG_DIR:-$SLURM_SUBMIT_DIR/logs/$SLURM_JOB_ID}
mkdir -p -- "$LOG_DIR"

# What each node runs: one file of its own for each node and start.
START=$LOG_DIR/start-${SLURM_RESTART_COUNT:-0}.sh
cat >"$START" <<'END_OF_START'
@START@
END_OF_START

STEP=
SIGNALED=
pass_on() {
    SIGNALED=yes
    if [[ -n $STEP ]]; then kill -TERM "$STEP" 2>/dev/null || true; fi
}
trap pass_on TERM INT

# Nodes whose hardware failed are on a list, for the next submission.
leave() {
    local list=$LOG_DIR/whystuck/exclude/slurm.txt
    if [[ -s $list ]]; then echo "next time: sbatch $(cat -- "$list") ..."; fi
    exit "$1"
}

srun --kill-on-bad-exit=1 --export=ALL bash "$START" &
STEP=$!
if [[ -n $SIGNALED ]]; then pass_on; fi
# A signal ends a wait, and not the step; its code may have been told just before.
LAST=
while :; do
    SIGNALED=
    CODE=0
    wait "$STEP" || CODE=$?
    if ((CODE == 127)) && [[ -n $LAST ]]; then leave "$LAST"; fi
    if [[ -z $SIGNALED ]]; then leave "$CODE"; fi
    LAST=$CODE
done
