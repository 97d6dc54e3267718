#!/bin/bash
# A study on Slurm: a Ray cluster over the nodes of one job, the driver on the first of them. From the repository's root:
#   CL2R_STORAGE=/shared/cl2r CL2R_DATA=/shared/data sbatch cluster/slurm.sh python studies/ablation.py --preset cifar100 --seeds 0 1 2
# The driver runs in the folder of this command. A trial gets one GPU and its share of a node's CPUs, as many trials as fit run at a time;
# CL2R_GPUS_PER_WORKER scales both; CL2R_CPUS_PER_WORKER, or options of the study, say otherwise. Beside the option --gpus-per-worker give
# --cpus-per-worker too.
# Before the time limit Slurm sends TERM to this script, which hands it to the driver: trials save their epoch, the driver ends with 75,
# and the job goes back into the queue with the same command, which resumes. Any other exit code is the job's own. `scancel` ends it for good.
# Never run on a real Slurm: with stand-ins for it (tests/unit/project/test_cluster_slurm.py).
#SBATCH --job-name=cl2r
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=cl2r-%j.log
# shellcheck disable=SC2329  # functions called by traps and by until_true
set -euo pipefail
umask 077

fail() {
    echo "slurm.sh: $1" >&2
    exit "${2:-1}"
}

(($# > 0)) || fail "give the command of a study: sbatch cluster/slurm.sh python studies/ablation.py ..." 2
[[ -n ${SLURM_JOB_ID:-} && -n ${SLURM_JOB_NODELIST:-} ]] || fail "this is a batch script: sbatch cluster/slurm.sh ..." 2

REQUEUE=75                                            # the driver: the same command resumes
start_seconds=${CL2R_START_SECONDS:-300}              # for the head and the nodes to come up
stop_seconds=${CL2R_STOP_SECONDS:-45}                 # Ray drains for up to 30 s
most_restarts=${CL2R_MAX_RESTARTS:-100}
own=${CL2R_JOB_DIR:-$HOME/.cl2r-slurm}/$SLURM_JOB_ID  # seen by all nodes

export RAY_TMPDIR=${CL2R_TMP:-/tmp}/r$SLURM_JOB_ID    # short: sockets have 107 characters
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$own/auth_token
export RAY_USAGE_STATS_ENABLED=0 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 PIP_NO_INDEX=1
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}   # srun no longer takes it from sbatch
gpus=${SLURM_GPUS_ON_NODE:-0}
if ((gpus > 0)); then
    export CL2R_GPUS_PER_WORKER=${CL2R_GPUS_PER_WORKER:-1}
    # The CPUs of its GPUs, or of its part of one; one CPU per GPU is left for Ray and for loading.
    share=$(awk -v own="$CL2R_GPUS_PER_WORKER" -v each="$((SRUN_CPUS_PER_TASK / gpus - 1))" 'BEGIN { print int(own * each) }')
    export CL2R_CPUS_PER_WORKER=${CL2R_CPUS_PER_WORKER:-$((share > 1 ? share : 1))}
fi

pieces=()  # the srun of the head, the srun of the other nodes
driver=
stopping=

# The exit code of a process; signals that arrive meanwhile are handled, and waited past.
await() {
    local code=0 own_code=0
    wait "$1" || code=$?
    while ((code > 128)) && kill -0 "$1" 2>/dev/null; do
        code=0
        wait "$1" || code=$?
    done
    if ((code > 128)); then  # the signal's number, or the process's own
        wait "$1" 2>/dev/null || own_code=$?
        ((own_code == 127)) || code=$own_code
    fi
    return "$code"
}

on_term() {
    stopping=yes
    echo "slurm.sh: TERM: the study saves its epochs and stops"
    [[ -z $driver ]] || kill -TERM "$driver" 2>/dev/null || true
}

clean_up() {
    local piece deadline=$((SECONDS + stop_seconds))
    trap '' TERM
    for piece in "$driver" "${pieces[@]}"; do
        [[ -z $piece ]] || kill -TERM "$piece" 2>/dev/null || true
    done
    for piece in "$driver" "${pieces[@]}"; do
        [[ -n $piece ]] || continue
        while kill -0 "$piece" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.2; done
        kill -KILL "$piece" 2>/dev/null || true
    done
    if ((${#pieces[@]} > 1)); then  # the other nodes' files
        timeout 30 srun --nodes="$others" --ntasks="$others" --exclude="$head" rm -rf "$RAY_TMPDIR" || true
    fi
    rm -rf "$own" "$RAY_TMPDIR"
}

alive() {
    local piece
    for piece in "${pieces[@]}"; do kill -0 "$piece" 2>/dev/null || return 1; done
}

# Try until it works; give up when a part of the cluster has ended, or after start_seconds.
until_true() {
    local what=$1 deadline=$((SECONDS + start_seconds))
    shift
    until "$@" >/dev/null 2>&1; do
        [[ -z $stopping ]] || go_on_later
        alive || fail "$what: ray start has ended; its messages are above"
        ((SECONDS < deadline)) || fail "$what: nothing after $start_seconds s"
        sleep 0.5
    done
}

all_joined() {
    python -c 'import sys, ray; ray.init(logging_level="ERROR"); sys.exit(sum(n["Alive"] for n in ray.nodes()) < int(sys.argv[1]))' "$1"
}

go_on_later() {
    trap - EXIT
    clean_up  # before Slurm ends this script
    ((${SLURM_RESTART_COUNT:-0} < most_restarts)) || fail "requeued $most_restarts times already; submit it again by hand" "$REQUEUE"
    echo "slurm.sh: back into the queue"
    scontrol requeue "$SLURM_JOB_ID" || fail "could not be requeued; run the same sbatch command again to resume" "$REQUEUE"
    exit "$REQUEUE"
}

trap clean_up EXIT
trap on_term TERM

mkdir -p "$own" "$RAY_TMPDIR"
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH"

names=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
mapfile -t nodes <<<"$names"
head=${nodes[0]}
others=$((${#nodes[@]} - 1))
read -r address _ <<<"$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address)"
port=$((20000 + SLURM_JOB_ID % 10000))
export RAY_ADDRESS=$address:$port

srun --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --block --node-ip-address="$address" --port="$port" --num-cpus="$SRUN_CPUS_PER_TASK" \
    --dashboard-host=127.0.0.1 --dashboard-port=$((port + 10000)) --disable-usage-stats &
pieces+=($!)
until_true "the head on $head did not start" ray status --address "$RAY_ADDRESS"

if ((others > 0)); then
    srun --nodes="$others" --ntasks="$others" --ntasks-per-node=1 --exclude="$head" \
        ray start --address="$RAY_ADDRESS" --block --num-cpus="$SRUN_CPUS_PER_TASK" &
    pieces+=($!)
    until_true "not all of ${#nodes[@]} nodes joined" all_joined "${#nodes[@]}"
fi
[[ -z $stopping ]] || go_on_later

echo "slurm.sh: ${#nodes[@]} nodes; $*"
"$@" &
driver=$!
[[ -z $stopping ]] || kill -TERM "$driver"
code=0
await "$driver" || code=$?
driver=
((code != REQUEUE)) || go_on_later
exit "$code"
