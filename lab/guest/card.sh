# The tests of the driver for PCI cards, in a small guest: tests/card starts it.
set -eu

# The first card is the driver's, and the second one the kernel's.
card=$(basename "$(readlink /sys/class/net/eth0/device)")
towpath device list
towpath device claim "$card" --user alice
towpath device list
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
# QEMU's wire loses packets for which the other card has no buffer.
ethtool -G eth1 rx 4096
ip link set eth1 up promisc on
until [ "$(cat /sys/class/net/eth1/carrier)" = 1 ]; do sleep 0.1; done
export TOWPATH_CARD=$card TOWPATH_FAR=eth1 RUST_BACKTRACE=1
/guest/e1000e "$@" || {
    grep . /sys/class/net/eth1/statistics/* | grep -v ':0$'
    exit 1
}
towpath device release "$card"
