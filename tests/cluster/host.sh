#!/bin/bash
# Process 1 of a host of the test cluster: it makes the place look like a machine of its own, and waits.
# host.sh NAME FOLDER, in new namespaces. All that runs on the host ends with it.
set -e
name=$1 folder=$2

hostname "$name"
ip link set lo up
mount --bind "$folder/etc/hosts" /etc/hosts
# /sys/class/net shows the network of whoever mounted it; slurmd wants what is mounted below it, too.
mkdir -p "$folder/hosts/$name.cgroup"
mount --rbind /sys/fs/cgroup "$folder/hosts/$name.cgroup"
mount -t sysfs sysfs /sys
mount --move "$folder/hosts/$name.cgroup" /sys/fs/cgroup
rmdir "$folder/hosts/$name.cgroup"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777,size=1g tmpfs "$folder/unshared"
touch "$folder/hosts/$name.ready"

exec >/dev/null 2>&1
cd /
# bash takes in the orphans of the host while it waits; sleep alone would leave them zombies.
sleep infinity &
wait $!
