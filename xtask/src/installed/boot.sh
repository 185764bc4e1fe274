#!/bin/bash
# boot.sh ROOT CGROUP: starts systemd as the first process of the Debian in ROOT, in namespaces of its own. Its network
# is a loopback alone, so that its Docker engine changes nothing of the machine's. The capability CAP_SYS_RESOURCE is not
# needed, so no engine of containers is asked for all of them. Control groups of version 1 or 2 are mounted as the
# machine has them.
set -eu
root=$1
group=$2

if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$group"
    echo $$ > "/sys/fs/cgroup/$group/cgroup.procs"
    controllers=
else
    controllers=$(cd /sys/fs/cgroup && ls -d -- */cgroup.procs | cut -d / -f 1 | grep -vx unified)
    for name in $controllers; do
        mkdir -p "/sys/fs/cgroup/$name/$group"
        if [ "$name" = cpuset ]; then
            cat "/sys/fs/cgroup/cpuset/cpuset.cpus" > "/sys/fs/cgroup/cpuset/$group/cpuset.cpus"
            cat "/sys/fs/cgroup/cpuset/cpuset.mems" > "/sys/fs/cgroup/cpuset/$group/cpuset.mems"
        fi
        echo $$ > "/sys/fs/cgroup/$name/$group/cgroup.procs"
    done
fi

export root controllers
exec unshare --mount --pid --uts --ipc --cgroup --net --fork bash -euc '
hostname bare
ip link set lo up
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mkdir -p .old
mount -t proc proc proc
mount -t sysfs sysfs sys
if [ -z "$controllers" ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs tmpfs sys/fs/cgroup
    for name in $controllers; do
        mkdir -p "sys/fs/cgroup/$name"
        option=$name
        [ "$name" = systemd ] && option=none,name=systemd
        mount -t cgroup -o "$option" cgroup "sys/fs/cgroup/$name"
    done
fi
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty fuse loop-control $(cd /dev && ls -d loop[0-9]* 2>/dev/null); do
    [ -e "/dev/$device" ] || continue
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
pivot_root . .old
umount -l /.old
rmdir /.old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --log-target=null </dev/null
'
