#!/usr/bin/env bash
# Starts a job on one node. Made by `whystuck init bash`; it is yours to change.
#
# Each stage is logged with time and host when it begins and ends. The log is a new file for each
# start, is complete when the script ends, and the exit code is that of the stage that failed.
#
#   LOG_DIR   where the logs go; may be a shared file system   (default: ./logs)
#   HOLD_S    seconds to stay after a failure, for a look around   (default: 0)
#             The processes of a job that crashed or is stuck stay: `whystuck release` ends that, or
#             a file `release` in LOG_DIR/whystuck. Where there are none, the container stays: a
#             file `release` in LOG_DIR ends that. A signal ends both.
#   MAX_RESTARTS  how often the job is started again when it fails  (default: 0)
set -Eeuo pipefail

HOST=${HOSTNAME:-$(hostname)}
LOG_DIR=${LOG_DIR:-./logs}
HOLD_S=${HOLD_S:-0}
MAX_RESTARTS=${MAX_RESTARTS:-0}
CHILD=
STOPPED=
SIGNALED=

# What has to be there before the job: downloads, unpacking, folders. The first command that fails
# ends the job. It runs in a shell of its own, which has exported variables only.
prepare() {
    :
}

# The job itself.
COMMAND=(@COMMAND@)

say() { printf '%s %s %s\n' "$(date '+%Y-%m-%d %H:%M:%S')" "$HOST" "$*"; }

# Runs a command as a stage, and returns its code. It runs beside this shell, so that a signal
# reaches it at once.
stage() {
    local name=$1 code=0
    shift
    if [[ -n $STOPPED ]]; then return 143; fi
    say "stage $name begins"
    "$@" 3>&- 4>&- &
    CHILD=$!
    # One that came before the number of the child was known.
    if [[ -n $STOPPED ]]; then pass_on; fi
    wait_for_child || code=$?
    CHILD=
    say "stage $name ends with code $code"
    return "$code"
}

# A signal ends a wait, and not the command; its code may have been told just before.
wait_for_child() {
    local code=0 last=
    while :; do
        SIGNALED=
        code=0
        wait "$CHILD" || code=$?
        if ((code == 127)) && [[ -n $last ]]; then return "$last"; fi
        if [[ -z $SIGNALED ]]; then return "$code"; fi
        last=$code
    done
}

pass_on() {
    STOPPED=yes
    SIGNALED=yes
    if [[ -n $CHILD ]]; then kill -TERM "$CHILD" 2>/dev/null || true; fi
}
trap pass_on TERM INT HUP

hold() {
    local until=$((SECONDS + HOLD_S))
    if ((HOLD_S <= 0)) || [[ -n $STOPPED ]]; then return; fi
    say "the scene is kept for $HOLD_S s: \`touch $LOG_DIR/release\` ends that"
    while ((SECONDS < until)) && [[ -z $STOPPED && ! -e $LOG_DIR/release ]]; do
        sleep 1 &
        wait $! || true
    done
    say "the scene is left"
}

mkdir -p -- "$LOG_DIR"
LOG="$LOG_DIR/${SLURM_JOB_ID:-job}-$HOST-$(date -u '+%Y%m%dT%H%M%SZ')-$$.log"
PIPE_DIR=$(mktemp -d)
mkfifo -- "$PIPE_DIR/pipe"
exec 3>&1 4>&2
# Not `> >(tee ...)`: nobody waits for that, and the end of the log is lost.
# A log may hold secrets of the job: it is for its owner alone, whatever the umask.
(trap '' TERM INT HUP; umask 077; exec tee -a -- "$LOG" <"$PIPE_DIR/pipe" >&3) &
TEE=$!
exec >"$PIPE_DIR/pipe" 2>&1
rm -r -- "$PIPE_DIR"

CODE=0
STAGE=prepare
# In a shell of its own: behind `||`, this one would not end at the first command that fails.
stage prepare bash -Eeuo pipefail -c "$(declare -f prepare); prepare" || CODE=$?
if ((CODE == 0)); then
    STAGE=train
    stage train "${COMMAND[@]}" || CODE=$?
fi
if ((CODE != 0)); then
    say "failed with code $CODE; the log is $LOG"
    # Else whystuck has kept the scene, which is more than the container.
    case $CODE:$STAGE in 12[05-7]:* | *:prepare) hold ;; esac
fi

# The end of the output is waited for, and what somebody left running is not.
exec >&3 2>&4
for _ in {1..50}; do
    kill -0 "$TEE" 2>/dev/null || break
    sleep 0.1
done
kill -KILL "$TEE" 2>/dev/null || true
exit "$CODE"
