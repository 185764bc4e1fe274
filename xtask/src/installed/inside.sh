#!/bin/bash
# Runs in a bare Debian with systemd: installs the packages in /packages/before, uses them, goes to those in /packages/after
# and back, and removes them. Each step prints `ok` or `FAILS`; the last line has the counts.
set -u
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# Seconds of the job and words of the answer that an upgrade meets.
job_s=${JOB_S:-60}
words=${WORDS:-1000}
passed=0
failed=0
log=/tmp/step.log
mkdir -p /tmp/try

# step NAME COMMAND...: runs a command, and shows its output if it fails.
step() {
    local name=$1 began
    shift
    began=$(date +%s.%N)
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        printf 'ok     %6.1f s  %s\n' "$(echo "$(date +%s.%N) - $began" | bc)" "$name"
    else
        failed=$((failed + 1))
        printf 'FAILS  %6.1f s  %s\n' "$(echo "$(date +%s.%N) - $began" | bc)" "$name"
        tail -n 25 "$log" | sed 's/^/       /'
    fi
}

# until_true SECONDS COMMAND...: polls a condition.
until_true() {
    local left=$1
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        if [ "$left" -le 0 ]; then
            echo "after all this time it does not hold: $*"
            return 1
        fi
        sleep 1
    done
}

logged() { journalctl --unit "muster-$1" --output cat --no-pager --since "$2" | grep -F -- "$3"; }
now() { date '+%Y-%m-%d %H:%M:%S'; }
active() { systemctl is-active --quiet "muster-$1"; }
not() { ! "$@"; }
roles='facilitator validator miner executor'

install_before() { apt-get install --yes --no-install-recommends /packages/before/*.deb; }
install_after() { apt-get install --yes --no-install-recommends /packages/after/*.deb; }
roll_back() { apt-get install --yes --no-install-recommends --allow-downgrades /packages/before/*.deb; }

nothing_is_started() { for role in $roles; do not active "$role" || return 1; done; }
units_are_well_formed() { systemd-analyze verify --man=no /usr/lib/systemd/system/muster-*.service; }
exposure() {
    for role in facilitator validator miner; do
        systemd-analyze security --offline=true --threshold=30 "muster-$role.service" || return 1
    done
}
executor_exposure() { systemd-analyze security --offline=true --no-pager muster-executor.service | tail -n 1; }

# refuses ROLE TEXT: the role ends with a text in its log.
refuses() {
    local since
    since=$(now)
    systemctl start "muster-$1"
    until_true 20 logged "$1" "$since" "$2"
    local told=$?
    journalctl --unit "muster-$1" --output cat --no-pager --since "$since" | tail -n 5
    systemctl stop "muster-$1"
    systemctl reset-failed "muster-$1" 2>/dev/null
    return $told
}
refuses_without_configuration() {
    mv "/etc/muster/$1.toml" /tmp/try/
    refuses "$1" "muster $1 --print-config"
    local told=$?
    mv "/tmp/try/$1.toml" /etc/muster/
    return $told
}
removes_unconfigured() { apt-get remove --yes muster-miner && install_before && systemctl enable muster-miner muster-executor; }
refuses_root() { muster facilitator --config /etc/muster/facilitator.toml 2>&1 | tee /dev/stderr | grep -F 'runuser -u muster-facilitator -- muster facilitator'; }
refuses_full_disk() {
    mount -t tmpfs -o size=64k,mode=0700,uid="$(id -u muster-facilitator)",gid="$(id -g muster-facilitator)" tmpfs /var/lib/muster/facilitator
    refuses facilitator "full"
    local told=$?
    umount /var/lib/muster/facilitator
    return $told
}
facilitator_starts() {
    systemctl start muster-facilitator && until_true 20 bash -c '</dev/tcp/127.0.0.1/8090' && systemctl stop muster-facilitator
}

demo() {
    local began=$SECONDS
    mkdir /tmp/try/demo && cd /tmp/try/demo && muster up --demo && [ $((SECONDS - began)) -le 15 ]
}

subnet=/srv/subnet
raise_local_subnet() {
    mkdir -p $subnet
    systemd-run --quiet --unit=local-subnet --working-directory=$subnet muster up --executors 1
    until_true 60 bash -c "journalctl --unit local-subnet --output cat --no-pager | grep -F 'muster job run'"
}
local_job() { cd $subnet && muster job run muster/hello:latest --input text.txt=/etc/os-release -- words; }

# The subnet of `muster up` becomes one of installed roles: the same keys, the same chain, the same addresses.
move_to_installed_roles() {
    systemctl stop local-subnet
    systemd-run --quiet --unit=local-chain /usr/libexec/muster/muster-devchain --port 9944 \
        --spec $subnet/.muster/config/genesis.json --block-time-ms 500
    for role in facilitator validator miner; do
        { echo "state_dir = \"/var/lib/muster/$role\""
          grep -v '^ready_file' "$subnet/.muster/config/$role.toml" |
            sed -e "s|$subnet/.muster/data|/var/lib/muster/$role|; s|$subnet/.muster/wallets|/var/lib/muster/$role/wallets|"
        } > "/etc/muster/$role.toml"
        cp -r $subnet/.muster/wallets "/var/lib/muster/$role/"
    done
    sed -i 's|^drain_s = 0|drain_s = 60|' /etc/muster/validator.toml
    printf '[http]\ndrain_s = 60\n' >> /etc/muster/facilitator.toml
    sed -i -e '/^\[executor\]/,$d' -e 's|^\[standing\]|[standing]\nbind = "127.0.0.1:8099"|' /etc/muster/miner.toml
    printf '[executor]\ncount = 0\n' >> /etc/muster/miner.toml
    # The facilitator that was tried before had a key of its own.
    rm -f /var/lib/muster/facilitator/facilitator.db*
    cp $subnet/.muster/data/facilitator.db* /var/lib/muster/facilitator/
    for role in facilitator validator miner; do chown -R "muster-$role:" "/var/lib/muster/$role"; done
    { echo 'state_dir = "/var/lib/muster"'
      grep -v -e '^work_dir' -e '^cache_dir' -e '^orphan_s' $subnet/.muster/config/executor.toml
      printf '[persistent]\nclass = "always_on.test"\ncapacity = 2\n'
    } > /etc/muster/executor.toml
    since=$(now)
    systemctl start muster-facilitator muster-validator muster-miner
    for role in facilitator validator miner; do until_true 30 logged "$role" "$since" ready || return 1; done
}
enroll() {
    local token
    until_true 30 bash -c '</dev/tcp/127.0.0.1/8099'
    token=$(runuser -u muster-miner -- muster miner enroll --config /etc/muster/miner.toml --class always_on.test --capacity 2) &&
        muster executor --enroll "$token" --name bare --config /etc/muster/executor.toml &&
        systemctl start muster-executor && until_true 30 logged executor today 'connected'
}
installed_job() { cd $subnet && muster job run muster/hello:latest --input text.txt=/etc/os-release -- words; }
# A job's file system, which the engine sees too.
sized_disk() { mount | grep -F 'disk.img on /var/lib/muster/executor/'; }
disks_are_sized() {
    cd $subnet
    muster job run muster/hello:latest -- probe sleep 5 &
    until_true 30 sized_disk
    local told=$?
    wait $! && return $told
}

is_running() { muster job ls | grep -E "^ *[0-9a-f-]+ +$1 +running"; }
# A job and a streamed answer that an upgrade meets.
begin_long() {
    cd $subnet
    muster job run --name "$1" --timeout 2h muster/hello:latest -- probe sleep "$job_s" > "/tmp/try/$1.job" 2>&1 &
    echo $! > "/tmp/try/$1.job.pid"
    muster chat parrot -m 'tell me much' --max-tokens 1 > /dev/null 2>&1
    muster chat parrot -m 'tell me much' --max-tokens "$words" > "/tmp/try/$1.chat" 2>&1 &
    echo $! > "/tmp/try/$1.chat.pid"
    until_true 90 is_running "$1" && until_true 60 test -s "/tmp/try/$1.chat"
}
# ended NAME KIND PATTERN: the process that began has ended well.
ended() {
    local pid
    pid=$(cat "/tmp/try/$1.$2.pid")
    until_true $((job_s + 120)) not kill -0 "$pid"
    wait "$pid"
    local code=$?
    tail -n 8 "/tmp/try/$1.$2"
    [ $code -eq 0 ] && grep -qE "$3" "/tmp/try/$1.$2"
}
runs_new_program() {
    until_true 90 bash -c 'pid=$(systemctl show --value --property MainPID muster-'"$1"') && [ "$pid" != 0 ] && ! readlink "/proc/$pid/exe" | grep -q deleted'
}
version_is() { [ "$(dpkg-query --show --showformat '${Version}' "$1")" = "$(dpkg-deb --field /packages/"$2"/muster_*.deb Version)" ]; }

second_process_is_refused() {
    timeout 20 runuser -u "muster-$1" -- muster "$1" --config "/etc/muster/$1.toml" 2>&1 | tee /dev/stderr | grep -F "$2" && active "$1"
}
# The commands of docs/operations/backup.md.
backup_and_restore() {
    local since
    install -d -o muster-miner -m 700 /var/backups/muster-miner
    runuser -u muster-miner -- muster backup miner --config /etc/muster/miner.toml --to /var/backups/muster-miner/today || return 1
    systemctl stop muster-miner
    (cd /var/lib/muster/miner && mkdir old && mv miner.db* old/ && for kept in standing tls provisioned; do [ -e $kept ] && mv $kept old/; done; true)
    runuser -u muster-miner -- muster restore miner --config /etc/muster/miner.toml --from /var/backups/muster-miner/today || return 1
    since=$(now)
    systemctl start muster-miner && until_true 30 logged miner "$since" ready
}
removal_is_refused() {
    cd $subnet
    muster job run --name holds muster/hello:latest -- probe sleep 40 > /tmp/try/holds 2>&1 &
    until_true 60 sized_disk
    apt-get remove --yes "muster-$1" 2>&1 | tee /dev/stderr | grep -F "muster-$1 is not removed, because it has jobs" || return 1
    active "$1" || return 1
    wait $!
}
forced_removal() {
    cd $subnet
    muster job run --name lost --timeout 1h muster/hello:latest -- probe sleep 600 > /tmp/try/lost 2>&1 &
    until_true 60 sized_disk
    MUSTER_FORCE=1 apt-get remove --yes muster-executor && not active executor && not sized_disk &&
        [ -z "$(docker ps --quiet --filter label=muster.attempt)" ]
}
# The miner still has the job that was lost.
purge() { MUSTER_FORCE=1 apt-get purge --yes muster muster-facilitator muster-validator muster-miner muster-executor; }
nothing_left_but_state() {
    local left
    left=$(find / -xdev \( -path /proc -o -path /sys -o -path /packages -o -path /tmp -o -path /root -o -path /srv -o -path /var/backups -o -path /var/lib/muster -o -path /var/lib/docker -o -path /var/log -o -path /var/cache -o -path /run \) -prune -o -iname '*muster*' -print)
    echo "$left"
    [ -z "$left" ] && [ -d /var/lib/muster/miner/wallets ]
}

step "packages of the first version are installed, with the Docker engine" install_before
step "nothing is started" nothing_is_started
step "the units are well-formed" units_are_well_formed
step "the units of facilitator, validator and miner are exposed by at most 3.0" exposure
executor_exposure
step "the facilitator of the package starts" facilitator_starts
step "the validator of the package names the wallet that it needs" refuses validator 'muster wallet new'
step "the miner of the package names the address that it needs" refuses miner 'announce'
step "the executor of the package names the token that it needs" refuses executor 'muster executor --enroll TOKEN'
for role in $roles; do
    step "the $role without configuration says how to make one" refuses_without_configuration "$role"
done
step "an unconfigured miner is removed, and installed again" removes_unconfigured
step "a role that root starts is refused" refuses_root
step "a role whose disk is full says so" refuses_full_disk
step "muster up --demo in an empty folder takes at most 15 s" demo
step "muster up" raise_local_subnet
step "the first job" local_job
step "the installed roles take the subnet over" move_to_installed_roles
step "the executor enrolls" enroll
step "a job through the installed roles" installed_job
step "its disk has a fixed size" disks_are_sized
for role in facilitator validator miner; do
    step "a second process of the $role is refused" second_process_is_refused "$role" 'in use'
done
step "the miner is backed up, and restored" backup_and_restore
step "a job after it" until_true 60 installed_job
for way in after before; do
    step "a job of $job_s s and an answer of $words words begin" begin_long "$way"
    if [ $way = after ]; then
        step "the upgrade" install_after
    else
        step "the way back" roll_back
    fi
    for role in $roles; do
        [ "$role" = executor ] || step "the $role runs the program of the package" runs_new_program "$role"
    done
    step "all packages have the version" version_is muster-executor "$way"
    step "the answer came whole" ended "$way" chat 'proven'
    step "the executor runs the program of the package" runs_new_program executor
    step "the job ended well" ended "$way" job '.'
    step "a job after it, once the executor is back" until_true 60 installed_job
done
step "the executor's package is not removed while a job runs" removal_is_refused executor
step "the miner's package is not removed while a job runs" removal_is_refused miner
step "the executor's package is removed by force" forced_removal
step "all packages are purged" purge
step "nothing is left but state" nothing_left_but_state
echo "$failed" > /packages/failed
echo "$passed passed, $failed failed, 0 skipped"
