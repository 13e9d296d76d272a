# tests/virtio-card starts this script in a small guest. Towpath drives the first card, a virtio one, and the kernel
# the second, at the other end of the wire. Arguments: names of tests, or none for all.
set -eu

card=
for device in /sys/bus/pci/devices/*; do
    read -r vendor <"$device/vendor"
    read -r number <"$device/device"
    [ "$vendor:$number" != 0x1af4:0x1041 ] || card=$(basename "$device")
done
[ -n "$card" ] || { echo 'no virtio card'; exit 1; }

# The kernel's driver shows the address that Towpath's is to read.
modprobe virtio_net
mac=
for interface in /sys/class/net/*; do
    [ ! -e "$interface/device" ] || case $(readlink -f "$interface/device") in
        */"$card"/*) read -r mac <"$interface/address" ;;
    esac
done
far=
for interface in /sys/class/net/*; do
    [ ! -e "$interface/device/driver" ] || case $(readlink "$interface/device/driver") in
        */e1000e) far=$(basename "$interface") ;;
    esac
done
# QEMU's wire loses packets for which the other card has no buffer.
ethtool -G "$far" rx 4096
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
# pfifo_fast, which works without a lock, once in a while sends packets of one thread out of order.
echo pfifo >/proc/sys/net/core/default_qdisc
ip link set "$far" up promisc on
until [ "$(cat "/sys/class/net/$far/carrier")" = 1 ]; do sleep 0.1; done
ulimit -l unlimited

towpath device list
towpath device claim "$card" --user root
export TOWPATH_CARD=$card TOWPATH_FAR=$far TOWPATH_MAC=$mac RUST_BACKTRACE=1
status=0
for name in "${@:-}"; do
    /guest/virtio_net $name || { status=1; echo "FAILED: $name"; }
done
dmesg >/tmp/said
# Addresses of the test wrong_addresses.
! grep 'fault addr' /tmp/said | grep -v 'fault addr 0x7[cd]00' || status=1
exit $status
