#!/bin/sh
# Executors as batch jobs of Slurm, on a machine with its client. In miner.toml:
#   provision = ["/opt/muster/slurm.sh", "provision", "--gpus=1"]
#   release = ["/opt/muster/slurm.sh", "release"]
# What follows "provision" goes to sbatch. MUSTER_PROGRAM names `muster` on the nodes.
set -eu
action=$1
shift

case $action in
provision)
    # Slurm ends the job by itself, should its miner never come back. The variables do not show in `scontrol show job`.
    minutes=$(( (EXECUTOR_LIFETIME_S + 59) / 60 ))
    sbatch --quiet --job-name="$EXECUTOR_NAME" --no-requeue --time="$minutes" --output=/dev/null \
        --export=MINER_ADDRESS,EXECUTOR_TOKEN "$@" --wrap "exec ${MUSTER_PROGRAM:-muster} executor"
    ;;
release)
    scancel --quiet --name="$EXECUTOR_NAME"
    # A job that is being cancelled still holds its node.
    while jobs=$(squeue --noheader --name="$EXECUTOR_NAME" --format=%i) && [ -n "$jobs" ]; do
        sleep 1
    done
    ;;
*)
    echo "usage: $0 provision [SBATCH OPTIONS] | release" >&2
    exit 64
    ;;
esac
