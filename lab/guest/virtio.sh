# tests/virtio-card starts this script in a small guest. Towpath drives the first card, a virtio one, and the kernel
# the second, at the other end of the wire. Arguments: names of tests, or none for all.
set -eu
. /guest/cards.sh

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
prepares "$far"
document_bytes=32000000

export TOWPATH_CARD=$card TOWPATH_FAR=$far TOWPATH_MAC=$mac TOWPATH_WAKE_UPS=2000 RUST_BACKTRACE=1

lists_the_card() {
    towpath device list >/tmp/said
    cat /tmp/said
    grep -q "^$card  1af4:1041 .* yes" /tmp/said
}

# The kernel's interface is found below the virtio device.
refuses_a_card_in_use() {
    ip address add 198.51.100.1/24 dev "$near"
    fails towpath device claim "$card" --user root
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
    opens_monitor
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
for one in $list; do
    check $one
done
# Those of the test wrong_addresses.
ends_with_faults_only_at cd
echo "$checks checks passed"
