#!/bin/busybox sh
# The first program on the disk: mounts cgroup v2, runs one suite after the other, and powers off.
#
# tests/vm/report.py reads its output on the second serial line.
export PATH=/usr/bin:/usr/sbin HOME=/root LC_ALL=C.UTF-8
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sys /sys
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup
ip link set lo up
hostname machine
stty -F /dev/ttyS1 raw -echo
exec </dev/null >/dev/ttyS1 2>&1

export CARREL_SLOWNESS=5 CARREL_BIN=/opt/carrel/carrel CARREL_AGENTD=/opt/carrel/carrel-agentd
echo "@ kernel $(uname -r)"
echo "@ suite machine plain"
busybox sh /opt/checks.sh
echo "@ end $?"
while read -r name program arguments; do
  echo "@ suite $name json"
  # Unquoted: they are split into arguments.
  RUSTC_BOOTSTRAP=1 "$program" $arguments
  echo "@ end $?"
done </opt/suites
echo "@ done"
sync
poweroff -f
