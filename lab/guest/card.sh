# tests/card starts this script in a small guest. Towpath drives the first card, and the kernel the second, at
# the other end of the wire.
set -eu

card=$(basename "$(readlink /sys/class/net/eth0/device)")
# QEMU's wire loses packets for which the other card has no buffer.
ethtool -G eth1 rx 4096
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
ip link set eth1 up promisc on
until [ "$(cat /sys/class/net/eth1/carrier)" = 1 ]; do sleep 0.1; done
ulimit -l unlimited
checks=0

current=start
trap '[ $? = 0 ] || { echo "FAILED: $current"; tail -n 20 /tmp/server.log; }' EXIT

# Runs a function of this script. The first command that fails ends the script.
check() {
    current=$1
    echo "check $current"
    "$1"
    checks=$((checks + 1))
}

# Checks that a command fails. Its output is in /tmp/said.
fails() {
    ! "$@" >/tmp/said 2>&1 || return 1
    cat /tmp/said
}

# Waits until a command succeeds, at most 20 seconds.
eventually() {
    local tries=0
    until "$@" >/tmp/tried 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { cat /tmp/tried; echo "not within 20 seconds: $*"; return 1; }
        sleep 0.2
    done
}

# Runs a command as a user.
as_user() {
    local user=$1
    shift
    setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
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

lists_the_cards() {
    towpath device list >/tmp/said
    cat /tmp/said
    grep -q "^$card  8086:10d3 .* eth0 .* yes" /tmp/said
}

refuses_an_unclaimed_card() {
    fails towpath serve --device "pci:$card" --subnet 192.0.2.200/24 --lease 192.0.2.64/28
    grep -q 'has the driver e1000e, not vfio-pci; run, as root: towpath device claim' /tmp/said
    fails towpath serve --device pci:0000:00:1e.7 --subnet 192.0.2.200/24 --lease 192.0.2.64/28
    grep -q 'no PCI device at 0000:00:1e.7' /tmp/said
}

refuses_a_card_in_use() {
    ip address add 198.51.100.1/24 dev eth0
    fails towpath device claim "$card" --user alice
    grep -q 'eth0 on .* has the address 198.51.100.1/24' /tmp/said
    ip address flush dev eth0
    fails as_user alice towpath device claim "$card" --user alice
    grep -q 'run as root' /tmp/said
    fails towpath device release "$card"
    grep -q 'nothing to release' /tmp/said
}

claims_the_card() {
    towpath device claim "$card" --user alice
    towpath device list | grep "^$card .* vfio-pci"
    fails as_user bob towpath serve --device "pci:$card" --subnet 192.0.2.200/24 --lease 192.0.2.64/28
    grep -q 'Permission denied; run, as root: towpath device claim' /tmp/said
}

# As root: the far end of the suite is a packet socket.
conforms() {
    TOWPATH_CARD=$card TOWPATH_FAR=eth1 RUST_BACKTRACE=1 /guest/e1000e conformance
}

serves() {
    ip address add 192.0.2.200/24 dev eth1
    mkdir -p /run/towpath
    chown alice /run/towpath
    # A function in the background would be a shell's process.
    setpriv --reuid=alice --regid=alice --clear-groups \
        towpath serve --device "pci:$card" --subnet 192.0.2.200/24 --lease 192.0.2.64/28 \
        --allow-user bob --socket /run/towpath/card.sock --confine kill >/tmp/server.log 2>&1 &
    server=$!
    eventually grep -q serving /tmp/server.log
    fails as_user alice towpath serve --device "pci:$card" --subnet 192.0.2.200/24 --lease 192.0.2.64/28 \
        --socket /run/towpath/other.sock
    grep -q 'another process uses PCI device' /tmp/said
    fails towpath device release "$card"
    grep -q 'end their servers first' /tmp/said
    # The table of rights in docs/trust.md: neither the keeper nor the server has a capability.
    local process
    for process in $server $(pgrep -P $server); do
        for set in Prm Eff Inh Amb; do
            grep -q "^Cap$set:.0000000000000000$" "/proc/$process/status"
        done
    done
    mkdir -m 755 /tmp/docs
    head -c 3000000 /guest/towpath >/tmp/docs/file
    setpriv --reuid=bob --regid=bob --clear-groups web /run/towpath/card.sock /tmp/docs 8080 >/tmp/web.log 2>&1 &
    web=$!
    eventually ping -c 1 -W 1 192.0.2.64
}

fetch() {
    exec 3<>/dev/tcp/192.0.2.64/8080
    printf 'GET /file HTTP/1.1\r\nHost: card\r\nConnection: close\r\n\r\n' >&3
    cat <&3 >/tmp/got
    exec 3>&-
    tail -c 3000000 /tmp/got | cmp - /tmp/docs/file
}

goes_on_after_a_kill() {
    exec 4<>/dev/tcp/192.0.2.64/8080
    fetch
    local round
    for round in 1 2 3; do
        pkill -KILL -o -f '^towpath server'
        eventually ping -c 1 -W 1 192.0.2.64
    done
    # The connection from before, and a new one.
    printf 'GET /file HTTP/1.1\r\nHost: card\r\nConnection: close\r\n\r\n' >&4
    cat <&4 >/tmp/got
    exec 4>&-
    tail -c 3000000 /tmp/got | cmp - /tmp/docs/file
    fetch
    [ "$(grep -c 'killed by signal 9' /tmp/server.log)" = 3 ]
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
    local download=$! round
    for round in 1 2 3; do
        sleep 0.3
        set_link false
        sleep 0.5
        set_link true
        sleep 1
    done
    wait $download
    eventually ping -c 1 -W 1 192.0.2.64
    fetch
    [ "$(grep -c 'the link is down' /tmp/server.log)" = 3 ]
    [ "$(grep -c 'the link is up' /tmp/server.log)" = 3 ]
}

ends() {
    kill $server
    wait $server
    wait $web || true
    [ -z "$(ls /run/towpath)" ]
    towpath device release "$card"
    towpath device list | grep "^$card .* e1000e"
}

for one in lists_the_cards refuses_an_unclaimed_card refuses_a_card_in_use claims_the_card conforms serves \
    fetch goes_on_after_a_kill outlives_a_pulled_cable ends; do
    check $one
done
current='no fault of the IOMMU'
dmesg >/tmp/said
! grep -i 'dmar.*fault' /tmp/said || exit 1
echo "$checks checks passed"
