#!/bin/sh
# The first process in the VM: one soft-RoCE device on the loopback interface, then the tests.
export PATH=/t:/usr/bin:/bin:/sbin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
say() { echo "## [$(cut -d' ' -f1 /proc/uptime)] $*"; }
# The exit status goes to a port of QEMU's; the line tells it from an exit of QEMU itself.
end() {
  say "EXIT $1"
  sync
  sleep 0.1
  printf "\\$(printf %o "$1")" | dd of=/dev/port bs=1 seek=244 conv=notrunc 2>/dev/null
  poweroff -f
}
for module in $(cat /modules/list); do
  insmod "/modules/$module" || { say "module $module"; end 97; }
done
ulimit -l unlimited
ip link set lo up
rdma link add rxe0 type rxe netdev lo || end 98
say "device: $(rdma link)"
sh /t/run.sh
end $?
