#!/bin/sh
# Executors on one machine that is reached by SSH. In miner.toml:
#   provision = ["/opt/muster/ssh-host.sh", "provision", "USER@HOST"]
#   release = ["/opt/muster/ssh-host.sh", "release", "USER@HOST"]
# HOST has a Docker engine, `muster` in its PATH and, where it is needed, ~/executor.toml.
set -eu
action=$1
host=$2
folder=".muster/$EXECUTOR_NAME"
remote() { ssh -o BatchMode=yes -o ConnectTimeout=15 ${MUSTER_SSH_OPTIONS:-} "$host" "$1"; }

case $action in
provision)
    # The token goes through standard input: arguments are seen by everybody on the machine.
    printf 'MINER_ADDRESS=%s\nEXECUTOR_TOKEN=%s\nexport MINER_ADDRESS EXECUTOR_TOKEN\n' \
        "$MINER_ADDRESS" "$EXECUTOR_TOKEN" |
        remote "
            set -eu
            umask 077
            mkdir -p $folder
            cd $folder
            cat > environment
            . ./environment
            rm environment
            [ ! -e \$HOME/executor.toml ] || set -- --config \$HOME/executor.toml
            # Once a release has removed the folder, nothing starts. The machine ends the executor by itself, should its
            # miner never come back.
            setsid sh -c 'echo \$\$ > pid && exec timeout --kill-after=30 $EXECUTOR_LIFETIME_S muster executor \"\$@\"' \
                executor \"\$@\" < /dev/null > log 2>&1 &
        "
    ;;
release)
    remote "
        [ -e $folder ] || exit 0
        pid=\$(cat $folder/pid 2>/dev/null) || pid=
        [ -z \"\$pid\" ] || kill -TERM -- -\$pid 2>/dev/null || pid=
        # The executor removes its container first.
        for second in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
            [ -n \"\$pid\" ] && kill -0 -- -\$pid 2>/dev/null || break
            sleep 1
        done
        [ -z \"\$pid\" ] || kill -KILL -- -\$pid 2>/dev/null || true
        rm -rf $folder
    "
    ;;
*)
    echo "usage: $0 provision|release USER@HOST" >&2
    exit 64
    ;;
esac
