# tests/card starts this script in a small guest. Towpath drives the first card, and the kernel the second, at
# the other end of the wire. Arguments: the kills of servers, those of applications, and the seconds of a pulled
# cable, in the longest checks.
set -eu

server_kills=$1
application_kills=$2
cable_out=$3

card=$(basename "$(readlink /sys/class/net/eth0/device)")
. /guest/cards.sh
prepares eth1
document_bytes=3000000

# Runs a command as a user.
as_user() {
    local user=$1
    shift
    setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
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
    TOWPATH_CARD=$card TOWPATH_FAR=eth1 TOWPATH_WAKE_UPS=2000 RUST_BACKTRACE=1 /guest/e1000e conformance
}

# A test driver makes descriptors with wrong addresses. The kernel names the card and the address.
is_stopped_by_the_iommu() {
    TOWPATH_CARD=$card TOWPATH_FAR=eth1 RUST_BACKTRACE=1 /guest/e1000e wrong_addresses
    dmesg >/tmp/said
    local address=${card#0000:}
    grep "DMAR: .*DMA Write.* Request device \[$address\] fault addr 0x7d00000000" /tmp/said
    grep "DMAR: .*DMA Read.* Request device \[$address\] fault addr 0x7c00000000" /tmp/said
}

serves() {
    ip address add 192.0.2.200/24 dev eth1
    mkdir -p /run/towpath
    chown alice /run/towpath
    mkdir -m 755 /tmp/docs
    head -c $document_bytes /guest/towpath >/tmp/docs/file
    starts
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
}

# Starts a server with further options, and a web server over it. `moderation`: options of the card.
moderation=
starts() {
    # A function in the background would be a shell's process.
    setpriv --reuid=alice --regid=alice --clear-groups \
        towpath serve --device "pci:$card$moderation" --subnet 192.0.2.200/24 --lease 192.0.2.64/28 \
        --allow-user bob --socket /run/towpath/card.sock --confine kill "$@" >/tmp/server.log 2>&1 &
    server=$!
    eventually grep -q serving /tmp/server.log
    setpriv --reuid=bob --regid=bob --clear-groups web /run/towpath/card.sock /tmp/docs 8080 >/tmp/web.log 2>&1 &
    web=$!
    eventually ping -c 1 -W 1 192.0.2.64
}

counts() {
    fetch
    towpath stat --socket /run/towpath/card.sock >/tmp/said
    sed -n '/HARDWARE/,/^$/p' /tmp/said
    grep -q '^rx_packets .*[1-9][0-9][0-9]' /tmp/said
    grep -q '^tx_bytes .*[1-9][0-9][0-9][0-9][0-9][0-9][0-9]$' /tmp/said
}

# An application within a VLAN answers the kernel's interface of that VLAN. The card removes and inserts the tags.
# Outside of the VLAN the application does not answer.
asks_within_a_vlan() {
    printf %s "$1" >&6
    # One call reads the datagram.
    [ "$(timeout 2 head -c ${#1} <&6)" = "$1" ]
}

serves_within_a_vlan() {
    ip link add link eth1 name eth1.7 type vlan id 7
    ip link set eth1.7 up
    ip address add 192.0.2.201/32 dev eth1.7
    ip route add 192.0.2.65/32 dev eth1.7 src 192.0.2.201
    setpriv --reuid=bob --regid=bob --clear-groups \
        udp_echo /run/towpath/card.sock 7 >/tmp/echo7.log 2>&1 &
    local inside=$!
    eventually ping -c 1 -W 1 192.0.2.65
    ping -c 1 -W 1 -s 1472 -M do 192.0.2.65
    exec 6<>/dev/udp/192.0.2.65/7
    local line
    printf -v line %1400s ''
    eventually asks_within_a_vlan "${line// /v}"
    exec 6>&-
    ip link delete eth1.7
    fails ping -c 1 -W 1 192.0.2.65
    kill $inside
    wait $inside || true
    eventually has_one_session
    fetch
}

# Returns the command register of the card's configuration space.
command_register() {
    od -An -tu2 -j 4 -N 2 "/sys/bus/pci/devices/$card/config"
}

# Returns 0 while the card may access memory.
is_bus_master() {
    [ $(($(command_register) & 4)) != 0 ]
}

# The card goes on while no server runs: it receives a packet, which the next server delivers.
goes_on_after_a_kill() {
    exec 4<>/dev/tcp/192.0.2.64/8080
    fetch
    local round
    for round in 1 2 3; do
        kill -STOP $server
        pkill -KILL -o -f '^towpath server'
        ping -c 1 -W 15 192.0.2.64 >/tmp/ping.log &
        local ping=$!
        sleep 0.5
        is_bus_master
        kill -CONT $server
        wait $ping
    done
    # No pause of the keeper.
    under_flood 300 kills_three_servers
    # The connection from before, and a new one.
    printf 'GET /file HTTP/1.1\r\nHost: card\r\nConnection: close\r\n\r\n' >&4
    cat <&4 >/tmp/got
    exec 4>&-
    tail -c $document_bytes /tmp/got | cmp - /tmp/docs/file
    fetch
    [ "$(grep -c 'killed by signal 9' /tmp/server.log)" = 6 ]
    [ "$(grep -c 'goes on with the memory of the earlier server' /tmp/server.log)" = 6 ]
}

kills_three_servers() {
    local round
    for round in 1 2 3; do
        servers=$(servings)
        kills_a_server
        # The card's ring holds the packets of one restart. On a slow machine, a restart takes two seconds.
        eventually serves_again
    done
}

# Prints how often a server has begun to serve.
servings() {
    grep -c ' INFO serving ' /tmp/server.log
}

serves_again() {
    [ "$(servings)" -gt "$servers" ]
}

# Another server follows in order.
goes_on_after_an_upgrade() {
    under_flood 300 upgrades
    fetch
    [ "$(grep -c 'goes on with the memory of the earlier server' /tmp/server.log)" = 7 ]
}

upgrades() {
    sleep 0.5
    as_user alice towpath upgrade /run/towpath/card.sock
}

# A crash drops the packets that wait. The rings go on.
goes_on_after_a_crash() {
    pkill -ABRT -o -f '^towpath server'
    eventually ping -c 1 -W 1 192.0.2.64
    fetch
    [ "$(grep -c 'goes on with the memory of the earlier server' /tmp/server.log)" = 8 ]
}

# Servers are killed under load, again and again.
outlives_many_kills() {
    (while fetch; do :; done; echo failed >/tmp/load) &
    local load=$! round
    for ((round = 0; round < server_kills; round++)); do
        sleep 0.$((RANDOM % 900 + 100))
        pkill -KILL -o -f '^towpath server'
        eventually pgrep -f '^towpath server'
    done
    echo "$round servers killed"
    [ ! -e /tmp/load ]
    kill $load
    wait $load || true
    eventually ping -c 1 -W 1 192.0.2.64
    fetch
    # Only the first of all servers began with a memory of its own.
    [ "$(grep -c 'KiB for packets' /tmp/server.log)" = 1 ]
}

# Applications are killed while they attach, listen, serve, or wait. Nothing of them stays.
outlives_many_applications() {
    local round application
    for ((round = 0; round < application_kills; round++)); do
        setpriv --reuid=bob --regid=bob --clear-groups \
            web /run/towpath/card.sock /tmp/docs 8081 >/dev/null 2>&1 &
        application=$!
        sleep 0.0$((RANDOM % 90 + 10))
        kill -KILL $application
        wait $application 2>/dev/null || true
    done
    eventually has_one_session
    fetch
}

has_one_session() {
    towpath ls --socket /run/towpath/card.sock >/tmp/sessions
    [ "$(grep -c ' bob ' /tmp/sessions)" = 1 ]
}

# Without a keeper, the card must not write into memory any more.
stops_with_its_keeper() {
    is_bus_master
    kill -KILL $server $(pgrep -f '^towpath server')
    wait $server || true
    kill -KILL $web
    wait $web || true
    ! is_bus_master || return 1
}

# The driver of a server names wrong addresses. Their packets are lost, and all else goes on. QEMU's card completes
# their descriptors; the watchdog resets one that does not.
goes_on_with_wrong_addresses() {
    starts --fault tx.elsewhere=0.02
    fetch
    fetch
    dmesg >/tmp/said
    grep "DMAR: .*DMA Read.* Request device \[${card#0000:}\] fault addr 0x7e" /tmp/said | tail -n 1
}

# From outside, the card is made to stop, under load. The watchdog resets it, and the download goes on.
outlives_a_stall() {
    local round download
    for round in 1 2 3; do
        fetch &
        download=$!
        sleep 0.3
        TOWPATH_CARD=$card /guest/e1000e stops_sending
        wait $download
        # The first download may have been over before.
        fetch
    done
    towpath stat --socket /run/towpath/card.sock >/tmp/said
    grep -E '^(device_stalls|device_resets|tx_resubmitted) ' /tmp/said
    grep -q '^device_resets .*[3-9]$' /tmp/said
}

# The link goes down and comes back under load. The download goes on.
outlives_a_pulled_cable() {
    opens_monitor
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
    # A long time without a link.
    fetch &
    download=$!
    sleep 0.3
    set_link false
    sleep "$cable_out"
    set_link true
    wait $download
    fetch
    [ "$(grep -c 'the link is down' /tmp/server.log)" = 4 ]
    [ "$(grep -c 'the link is up' /tmp/server.log)" = 4 ]
}

# One interrupt for all causes, and the card's own delays.
goes_on_with_one_interrupt() {
    ends_the_server
    moderation=,interrupts=msi,rx-usecs=200,rx-usecs-max=1000,tx-usecs=500,tx-usecs-max=5000
    starts
    fetch
    under_flood 200 kills_a_server
    fetch
}

# Two queues, each with an engine. The watchdog of one engine resets the card, and the other one follows.
goes_on_with_two_queues() {
    ends_the_server
    moderation=
    starts --lanes 2
    local turn download
    fetch
    for turn in 1 2 3; do
        (for round in 1 2 3; do fetch; done) &
        download=$!
        fetch &
        sleep 0.3
        TOWPATH_CARD=$card /guest/e1000e stops_sending
        wait $download
        wait $!
        fetch
    done
    under_flood 200 kills_a_server
    fetch
    # Both queues went on, and both have received.
    [ "$(grep -c 'goes on with the memory of the earlier server' /tmp/server.log)" = 2 ]
    towpath stat --socket /run/towpath/card.sock --json >/tmp/stat
    sed -n '/"lanes"/,/\]/p' /tmp/stat >/tmp/said
    [ "$(grep -c '"rx_packets": [1-9]' /tmp/said)" = 2 ]
}

# The card puts packets into the memory of an application that is alone, and into the server's once there is
# another. Ends without them, and with the server.
gives_the_queue_to_the_only_session() {
    ends_the_server
    printf '[[grant]]\nusers = ["bob"]\nown-queues = [1]\n' >/tmp/policy
    setpriv --reuid=alice --regid=alice --clear-groups \
        towpath serve --device "pci:$card" --subnet 192.0.2.200/24 --lease 192.0.2.64/28 \
        --policy /tmp/policy --socket /run/towpath/card.sock --confine kill >/tmp/server.log 2>&1 &
    server=$!
    eventually grep -q serving /tmp/server.log
    local round
    for round in 1 2; do
        starts_alone
        copies_of_pings -lt 10
        fails as_user bob own_queue /run/towpath/card.sock
        grep -q 'only while there is no other session' /tmp/said
        setpriv --reuid=bob --regid=bob --clear-groups \
            web /run/towpath/card.sock /tmp/docs 8080 >/tmp/web.log 2>&1 &
        web=$!
        eventually ping -c 1 -W 1 192.0.2.65
        copies_of_pings -ge 100
        # The watchdog of the engine's queue resets the card, with both queues.
        TOWPATH_CARD=$card /guest/e1000e stops_sending
        eventually ping -c 1 -W 1 192.0.2.65
        eventually ping -c 1 -W 1 192.0.2.64
        kill $web
        wait $web || true
        eventually has_one_session
        copies_of_pings -lt 10
        # An application that stops keeps no other packets waiting.
        kill -STOP $alone
        ping -q -f -c 2000 -W 1 192.0.2.64 >/tmp/ping.log || true
        setpriv --reuid=bob --regid=bob --clear-groups \
            web /run/towpath/card.sock /tmp/docs 8080 >/tmp/web.log 2>&1 &
        web=$!
        eventually ping -c 1 -W 1 192.0.2.65
        fetch 192.0.2.65
        kill -CONT $alone
        kill $web
        wait $web || true
        eventually has_one_session
        copies_of_pings -lt 10
        # The watchdog of the session's queue resets the card, with both queues.
        TOWPATH_CARD=$card /guest/e1000e stops_sending
        eventually ping -c 1 -W 1 192.0.2.64
        copies_of_pings -lt 10
        # The next server has the card put nothing into that application's memory.
        [ $round = 2 ] || pkill -KILL -o -f '^towpath server'
        [ $round = 1 ] || kill $alone
        ! wait $alone || return 1
    done
    eventually has_no_session
    web=
}

# Starts an application with a hardware queue of its own.
starts_alone() {
    eventually has_no_session
    setpriv --reuid=bob --regid=bob --clear-groups own_queue /run/towpath/card.sock >/tmp/alone.log 2>&1 &
    alone=$!
    eventually ping -c 1 -W 1 192.0.2.64
}

# Compares the number of copies that 100 pings make.
copies_of_pings() {
    local before more
    before=$(copies)
    ping -q -i 0.01 -c 100 -W 15 192.0.2.64 >/tmp/ping.log
    grep ' 100 received' /tmp/ping.log
    more=$(copies)
    more=$((more - before))
    echo "$more copies"
    [ $more "$1" "$2" ]
}

# Returns the copies of received packets, of all sessions.
copies() {
    towpath stat --socket /run/towpath/card.sock --json >/tmp/stat
    echo $(($(sed -n 's/.*"rx_copies": \([0-9]*\).*/\1 +/p' /tmp/stat) 0))
}

has_no_session() {
    towpath ls --socket /run/towpath/card.sock >/tmp/sessions
    ! grep -q ' bob ' /tmp/sessions || return 1
}

ends_the_server() {
    kill $server
    wait $server
    [ -z "$web" ] || wait $web || true
}

ends() {
    ends_the_server
    [ -z "$(ls /run/towpath)" ]
    towpath device release "$card"
    towpath device list | grep "^$card .* e1000e"
}

for one in lists_the_cards refuses_an_unclaimed_card refuses_a_card_in_use claims_the_card conforms \
    is_stopped_by_the_iommu serves fetch counts serves_within_a_vlan goes_on_after_a_kill \
    goes_on_after_an_upgrade goes_on_after_a_crash outlives_many_kills outlives_many_applications outlives_a_stall outlives_a_pulled_cable \
    stops_with_its_keeper goes_on_with_wrong_addresses goes_on_with_one_interrupt goes_on_with_two_queues \
    gives_the_queue_to_the_only_session ends; do
    check $one
done
ends_with_faults_only_at cde
current='the number of checks'
# bash goes on behind a loop in which an expression is wrong.
[ $checks = 23 ]
echo "$checks checks passed"
