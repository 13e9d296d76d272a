# `towpath-lab card` starts this script in a small guest with two e1000e cards: the program of /guest/plan
# drives the first one, whose address is the argument, and unplugs it. The kernel keeps the second one, at the other
# end of the wire.
set -eu

ulimit -l unlimited
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
# The program takes packets of the other end late.
echo 4194304 >/proc/sys/net/core/rmem_default
ethtool -G eth1 rx 4096
[ "$(basename "$(readlink /sys/class/net/eth0/device)")" = "$1" ]
towpath device claim "$1" --user root
# Without echo, and open until the end: closing loses bytes that are not sent yet.
stty -F /dev/ttyS2 raw -echo
exec 5<>/dev/ttyS2
sleep 0.3
# The monitor's greeting may have been echoed in part. This byte makes the monitor forget it. It wants the command first.
printf '\377\n' >&5
sleep 0.3
printf '{"execute": "qmp_capabilities"}\n' >&5
towpath-lab --role "$(cat /guest/plan)"
