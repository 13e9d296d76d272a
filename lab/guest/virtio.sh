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
mac= near=
for interface in /sys/class/net/*; do
    [ ! -e "$interface/device" ] || case $(readlink -f "$interface/device") in
        */"$card"/*)
            near=$(basename "$interface")
            read -r mac <"$interface/address"
            ;;
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

export TOWPATH_CARD=$card TOWPATH_FAR=$far TOWPATH_MAC=$mac RUST_BACKTRACE=1
checks=0
current=start
trap '[ $? = 0 ] || { echo "FAILED: $current"; cat /tmp/said; tail -n 20 /tmp/server.log; }' EXIT

# Waits until a command succeeds, at most 20 seconds.
eventually() {
    local tries=0
    until "$@" >/tmp/tried 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { cat /tmp/tried; echo "not within 20 seconds: $*"; return 1; }
        sleep 0.2
    done
}

# Sends a command to the machine's monitor, and reads what the monitor says.
monitor() {
    local said
    printf '%s\n' "$1" >&5
    while read -r -t 0.3 said <&5; do echo "monitor: $said"; done
}

# Plugs the cable of the first card in or out.
set_link() {
    monitor "{\"execute\": \"set_link\", \"arguments\": {\"name\": \"card0\", \"up\": $1}}"
}

lists_the_card() {
    towpath device list >/tmp/said
    cat /tmp/said
    grep -q "^$card  1af4:1041 .* yes" /tmp/said
}

# The kernel's interface is found below the virtio device.
refuses_a_card_in_use() {
    ip address add 198.51.100.1/24 dev "$near"
    ! towpath device claim "$card" --user root >/tmp/said 2>&1 || return 1
    grep -q "$near on .* has the address 198.51.100.1/24" /tmp/said
    ip address flush dev "$near"
}

claims_the_card() {
    towpath device claim "$card" --user root
}

tests() {
    local name
    for name in "${names[@]}"; do
        /guest/virtio_net $name
    done
}

serves() {
    ip address add 192.0.2.200/24 dev "$far"
    mkdir -p /run/towpath /tmp/docs
    # A download that lasts some seconds.
    for _ in 1 2 3 4 5 6 7 8; do head -c 4000000 /guest/towpath; done >/tmp/docs/file
    towpath serve --device "pci:$card" --subnet 192.0.2.200/24 --lease 192.0.2.64/28 --allow-user bob \
        --socket /run/towpath/card.sock "$@" >/tmp/server.log 2>&1 &
    server=$!
    eventually grep -q serving /tmp/server.log
    setpriv --reuid=bob --regid=bob --clear-groups web /run/towpath/card.sock /tmp/docs 8080 >/tmp/web.log 2>&1 &
    web=$!
    eventually ping -c 1 -W 1 192.0.2.64
}

fetch() {
    exec 3<>/dev/tcp/192.0.2.64/8080
    printf 'GET /file HTTP/1.1\r\nHost: card\r\nConnection: close\r\n\r\n' >&3
    local got=/tmp/got.$BASHPID
    cat <&3 >$got
    exec 3>&-
    tail -c 32000000 $got | cmp - /tmp/docs/file
    : >$got
}

# The next server opens the card anew.
outlives_a_killed_server() {
    local round
    for round in 1 2 3; do
        pkill -KILL -o -f '^towpath server'
        eventually ping -c 1 -W 1 192.0.2.64
    done
    fetch
}

# From outside, the card is made to stop, under load. The watchdog resets it, and the download goes on.
outlives_a_stall() {
    fetch &
    local download=$!
    sleep 0.3
    /guest/virtio_net stops
    wait $download
    towpath stat --socket /run/towpath/card.sock >/tmp/said
    grep -q '^device_resets .*[1-9]$' /tmp/said
}

# The link goes down and comes back under load. The download goes on.
outlives_a_pulled_cable() {
    # Without echo before the first use, and open until the end: closing loses bytes that are not sent yet.
    stty -F /dev/ttyS2 raw -echo
    exec 5<>/dev/ttyS2
    sleep 0.3
    # The monitor's greeting may have been echoed in part. This byte makes the monitor forget it.
    monitor $'\xff'
    monitor '{"execute": "qmp_capabilities"}'
    fetch &
    local download=$!
    sleep 0.3
    set_link false
    sleep 1
    set_link true
    wait $download
    grep -q 'the link is down' /tmp/server.log
    grep -q 'the link is up' /tmp/server.log
}

ends() {
    kill $server
    wait $server
    wait $web || true
    towpath device release "$card"
    eventually grep -q "$mac" /sys/class/net/*/address
}

names=("${@:-}")
list='lists_the_card refuses_a_card_in_use claims_the_card tests'
if [ $# = 0 ] && [ -e /guest/web ]; then
    list="$list serves fetch outlives_a_killed_server outlives_a_stall outlives_a_pulled_cable ends"
fi
for current in $list; do
    echo "check $current"
    $current
    checks=$((checks + 1))
done
current='no other fault of the IOMMU'
dmesg >/tmp/said
# Those of the test wrong_addresses.
grep 'fault addr' /tmp/said | head -n 4 || true
! grep 'fault addr' /tmp/said | grep -v 'fault addr 0x7[cd]00' || exit 1
echo "$checks checks passed"
