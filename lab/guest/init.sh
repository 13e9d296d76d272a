#!/bin/sh
# The first process of a small guest: prepares the machine, runs /guest/command, and switches the machine
# off. /dev/vda takes the command's files and its status.
export PATH=/guest:/bin LC_ALL=C HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts /run /tmp /out
chmod 1777 /tmp
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t devpts pts /dev/pts
modprobe -a $(cat /guest/modules)
chmod 666 /dev/net/tun /dev/vfio/vfio
ip link set lo up
cd /tmp
# With a priority at which the console shows it.
echo '<1>the command starts' >/dev/kmsg
/bin/bash /guest/command </dev/null >/dev/ttyS1 2>&1
echo $? >/out/status
dmesg >/out/kernel.log
tar -cf /dev/vda -C /out .
sync
echo o >/proc/sysrq-trigger
sleep 60
