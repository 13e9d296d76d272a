# What the scripts for cards share (card.sh, virtio.sh). Towpath drives the first card of the guest, and the kernel
# the second one, at the other end of the wire. An application at 192.0.2.64 serves /tmp/docs.

checks=0
current=start
trap '[ $? = 0 ] || { echo "FAILED: $current"; cat /tmp/said; tail -n 20 /tmp/server.log; }' EXIT
: >>/tmp/said
: >>/tmp/server.log

# Prepares the interface of the second card.
prepares() {
    # QEMU's wire loses packets for which the other card has no buffer.
    ethtool -G "$1" rx 4096
    echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
    # pfifo_fast, which works without a lock, once in a while sends packets of one thread out of order.
    echo pfifo >/proc/sys/net/core/default_qdisc
    ip link set "$1" up promisc on
    until [ "$(cat "/sys/class/net/$1/carrier")" = 1 ]; do sleep 0.1; done
    ulimit -l unlimited
}

# Runs a function. The first command that fails ends the script.
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

# Sends a command to the machine's monitor, and reads what the monitor says.
monitor() {
    local said
    printf '%s\n' "$1" >&5
    while read -r -t 0.3 said <&5; do echo "monitor: $said"; done
}

opens_monitor() {
    # Without echo before the first use, and open until the end: closing loses bytes that are not sent yet.
    stty -F /dev/ttyS2 raw -echo
    exec 5<>/dev/ttyS2
    sleep 0.3
    # The monitor's greeting may have been echoed in part. This byte makes the monitor forget it.
    monitor $'\xff'
    monitor '{"execute": "qmp_capabilities"}'
}

# Plugs the cable of the first card in or out.
set_link() {
    monitor "{\"execute\": \"set_link\", \"arguments\": {\"name\": \"card0\", \"up\": $1}}"
}

# Downloads the file from an address, 192.0.2.64 by default, and compares it. `document_bytes`: its size.
fetch() {
    local got=/tmp/got.$BASHPID status=0
    exec 3<>"/dev/tcp/${1:-192.0.2.64}/8080"
    printf 'GET /file HTTP/1.1\r\nHost: card\r\nConnection: close\r\n\r\n' >&3
    cat <&3 >"$got"
    exec 3>&-
    tail -c "$document_bytes" "$got" | cmp - /tmp/docs/file || status=1
    : >"$got"
    return $status
}

# Runs a command under a flood of so many packets. Each must be answered.
under_flood() {
    local count=$1 ping
    shift
    ping -q -i 0.02 -c "$count" -W 15 192.0.2.64 >/tmp/ping.log &
    ping=$!
    "$@"
    wait $ping
    cat /tmp/ping.log
    grep -q " $count received" /tmp/ping.log
}

kills_a_server() {
    sleep 0.7
    pkill -KILL -o -f '^towpath server'
}

# Checks that the IOMMU has stopped the card only where tests made it go elsewhere: at addresses that begin so.
ends_with_faults_only_at() {
    current='no other fault of the IOMMU'
    dmesg >/tmp/said
    ! grep 'fault addr' /tmp/said | grep -v "fault addr 0x7[$1]00" || exit 1
}
