#!/bin/sh
# Executors as clusters of SkyPilot, one machine for a lease. In miner.toml:
#   provision = ["/opt/muster/skypilot.sh", "provision", "/opt/muster/executor.yaml"]
#   release = ["/opt/muster/skypilot.sh", "release"]
# executor.yaml names the machine (`resources: {accelerators: A6000:1, image_id: …}`), installs a Docker engine and `muster`
# in `setup`, and has `run: timeout "$EXECUTOR_LIFETIME_S" muster executor`.
set -eu

case $1 in
provision)
    # --down with --idle-minutes-to-autostop: the machine goes by itself, should its miner never come back.
    sky launch --yes --detach-run --down --idle-minutes-to-autostop 5 --cluster "$EXECUTOR_NAME" \
        --env MINER_ADDRESS --env EXECUTOR_LIFETIME_S --secret EXECUTOR_TOKEN "$2"
    ;;
release)
    sky down --yes "$EXECUTOR_NAME"
    ;;
*)
    echo "usage: $0 provision FILE | release" >&2
    exit 64
    ;;
esac
