#!/bin/busybox sh
# The first program of the machine: inserts the modules, and switches to the disk. Every sandbox uses `pivot_root`, which
# needs a root that is a mount; the initial archive is none.
export PATH=/bin
busybox mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
  busybox insmod "$module" || echo "cannot insert $module"
done
busybox mount -t ext4 -o noatime /dev/vda /disk || busybox poweroff -f
exec busybox switch_root /disk /sbin/init
