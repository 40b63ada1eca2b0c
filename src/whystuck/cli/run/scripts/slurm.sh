#!/usr/bin/env bash
# Starts a job on all nodes of an allocation. Made by `whystuck init slurm`; it is yours to change.
#
#   LOG_DIR       where logs go, on a file system that all nodes share   (default: logs/JOB)
#   COORDINATOR   the first node, where all of them meet for checks of the network, and to decide
#                 together on restarts; empty: they do not   (default: empty)
#   MAX_REQUEUES  how often the job goes back into the queue, without the nodes whose hardware
#                 failed or that a check has called unfit   (default: 3)
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
MAX_REQUEUES=${MAX_REQUEUES:-3}
mkdir -p -- "$LOG_DIR"

# Nodes to keep away from, as n3,n7: whystuck lists them.
list_bad() {
    local list=$LOG_DIR/whystuck/exclude/slurm.txt
    if [[ -s $list ]]; then sed -n 's/^--exclude=//p' "$list"; fi
}
BAD_BEFORE=$(list_bad)

# What each node runs: one file of its own for each node and start.
START=$LOG_DIR/start-${SLURM_RESTART_COUNT:-0}.sh
cat >"$START" <<'END_OF_START'
@START@
END_OF_START

STEP=
SIGNALED=
STOPPED=
pass_on() {
    SIGNALED=yes
    STOPPED=yes
    if [[ -n $STEP ]]; then kill -TERM "$STEP" 2>/dev/null || true; fi
}
trap pass_on TERM INT

# Has the job start once more on other nodes. Slurm changes only jobs that wait, and ends this script
# soon after the job waits: by a signal first, which is passed over, also by what is started here.
requeue() {
    local nodes=$1 code=$2 known
    trap '' TERM INT
    known=$(scontrol show job --oneliner "$SLURM_JOB_ID" | sed -n 's/.* ExcNodeList=\([^ ]*\).*/\1/p') || true
    if [[ -n $known && $known != '(null)' ]]; then nodes=$known,$nodes; fi
    scontrol requeue "$SLURM_JOB_ID" || return 0
    for _ in {1..50}; do
        if scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$nodes" 2>/dev/null; then
            echo "back in the queue, without $nodes"
            exit "$code"
        fi
        sleep 0.5
    done
    echo "back in the queue; the nodes to leave out could not be told to Slurm: $nodes"
    exit "$code"
}

leave() {
    local code=$1 bad
    bad=$(list_bad)
    if ((code != 0)) && [[ -z $STOPPED && -n $bad && $bad != "$BAD_BEFORE" ]] &&
        ((${SLURM_RESTART_COUNT:-0} < MAX_REQUEUES)); then
        requeue "$bad" "$code"
    fi
    if [[ -n $bad ]]; then echo "next time: sbatch --exclude=$bad ..."; fi
    exit "$code"
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
