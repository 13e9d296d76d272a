# tests/rdma starts this script in a small guest with two e1000e cards. Both have a soft-RoCE device of the kernel
# (rdma_rxe), and programs of librdmacm speak RoCEv2 with each other over the wire between the cards. /out/rdma.pcap
# takes what the first card sends and receives in the checks that measure nothing.
#
# Then Towpath drives the first card, and its peer (towpath-rdma-peer) connects with the same programs, both ways.
# /out/towpath.pcap takes what the second card sends and receives in the first of these checks.
#
# With the argument `measure` the guest has a third card, so that soft-RoCE connects with itself over the second and
# the third one, and with Towpath over the first two, in turn. /out/measured has a line for each round: MB/s of
# soft-RoCE to itself, to Towpath, and of Towpath to it; and of the first two with a program that polls.
set -eu
mode=${1:-check}
. /guest/cards.sh
. /guest/rxe.sh

# Has the kernel reach an address of its own by the wire. A table of its own for each address comes before that of
# local addresses, except for what a card has received.
by_wire() {
    local interface=$1 source=$2 address=$3 table=$4
    ip rule add priority 10 iif "$interface" lookup local
    ip rule add priority 20 to "$address" lookup "$table"
    ip route add "$address" dev "$interface" src "$source" table "$table"
}

makes_devices() {
    makes_rxe rxe0 eth0 192.0.2.1
    makes_rxe rxe1 eth1 192.0.2.2
    rdma link
}

# Joins two interfaces, each given with its address.
joins() {
    by_wire "$1" "$2" "$4" 101
    by_wire "$3" "$4" "$2" 102
    ip rule add priority 30 lookup local
    ip rule delete priority 0
    ping -q -c 1 -W 5 -s $((mtu - 28)) -M do -I "$2" "$4"
    ping -q -c 1 -W 5 -s $((mtu - 28)) -M do -I "$4" "$2"
}

joins_the_sides() {
    joins eth0 192.0.2.1 eth1 192.0.2.2
}

# Starts a program that serves, and one that connects, with the same words; the latter gets an address more.
both() {
    local address=$1
    shift
    "$@" >/tmp/server.log 2>&1 &
    local server=$!
    eventually listens
    "$@" "$address" >/tmp/said 2>&1
    wait $server
    cat /tmp/said
}

rping_between() {
    rping -s -a "$1" -C 3 -v >/tmp/server.log 2>&1 &
    local server=$!
    eventually listens
    rping -c -a "$1" -I "$2" -C 3 -v
    wait $server
}

rping_both_ways() {
    rping_between 192.0.2.2 192.0.2.1
    rping_between 192.0.2.1 192.0.2.2
}

# Arguments: the addresses of the side that serves and of the one that connects, and the options of each.
peers_between() {
    serves_rdma "$1" $3
    rdma-peer $4 connect "$1" $port "$2"
    ends_serving
}

peers_both_ways() {
    peers_between 192.0.2.2 192.0.2.1 '' '--atomic done'
    peers_between 192.0.2.1 192.0.2.2 '' '--atomic done'
}

refuses_a_wrong_key() {
    peers_between 192.0.2.2 192.0.2.1 --broken --wrong-key
}

# At a port where nothing listens.
reports_a_refused_connection() {
    fails rdma-peer connect 192.0.2.2 $port 192.0.2.1
    grep -q 'the peer rejected the connection' /tmp/said
}

peers_measure() {
    peers_between 192.0.2.2 192.0.2.1 '' '--bandwidth 200 --latency 200'
}

# Programs that others have written.
perftest_measures() {
    both 192.0.2.2 ib_write_bw -R -F -s 65536 -n 100 -m 4096
    both 192.0.2.2 ib_read_lat -R -F -s 65536 -n 50 -m 4096
}

# For who reads the output: what soft-RoCE sent and received, and what it had to repeat.
shows_statistics() {
    rdma statistic show link rxe0/1
    rdma statistic show link rxe1/1
}

captures_the_first_card() {
    captures eth0 rdma.pcap
}

# Towpath on the first card.

socket=/run/towpath/card.sock

# What an end by a failure shows, too.
: >/tmp/near.log
: >/tmp/towpath.log
trap '[ $? = 0 ] || { echo "FAILED: $current"; tail -n 20 /tmp/said /tmp/server.log /tmp/near.log /tmp/towpath.log; }' EXIT

# Starts a server for packets of up to so many bytes, with further options.
starts_towpath() {
    local bytes=$1
    shift
    towpath serve --device "pci:$card" --mtu "$bytes" --subnet 192.0.2.2/24 --lease 192.0.2.64/28 --rdma \
        --allow-user root --socket $socket "$@" >/tmp/towpath.log 2>&1 &
    towpath=$!
    eventually grep -q serving /tmp/towpath.log
}

ends_towpath() {
    kill $towpath
    wait $towpath
}

gives_the_first_card_to_towpath() {
    card=$(basename "$(readlink /sys/class/net/eth0/device)")
    if [ $mode = check ]; then rdma link delete rxe0; fi
    ip address flush dev eth0
    towpath device claim "$card" --user root
    mkdir -p /run/towpath
    starts_towpath $mtu
}

captures_towpath() {
    captures eth1 towpath.pcap
}

# Starts a peer of Towpath that serves, in a role. `near`: its address.
serves_near() {
    towpath-rdma-peer "$1" $socket $port >/tmp/near.log 2>&1 &
    peer=$!
    eventually grep -q '^listens' /tmp/near.log
    near=$(sed -n 's/^listens on \(.*\) port .*/\1/p' /tmp/near.log)
}

ends_near() {
    wait $peer
    cat /tmp/near.log
}

# The kernel's side connects, with options.
connects_to_towpath() {
    serves_near serve
    rdma-peer "$@" connect "$near" $port 192.0.2.2
    ends_near
}

# Towpath's side connects, with options. `serving`: those of the other side.
serving=
connects_from_towpath() {
    serves_rdma 192.0.2.2 $serving
    towpath-rdma-peer connect $socket 192.0.2.2 $port "$@"
    ends_serving
}

towpath_both_ways() {
    connects_to_towpath
    connects_from_towpath
}

rping_with_towpath() {
    serves_near rping-serve
    rping -c -a "$near" -p $port -I 192.0.2.2 -C 3 -v
    ends_near
    rping -s -a 192.0.2.2 -p $port -C 3 -v >/tmp/server.log 2>&1 &
    server=$!
    eventually listens
    towpath-rdma-peer rping-connect $socket 192.0.2.2 $port
    ends_serving
}

refuses_wrong_keys_of_both() {
    connects_to_towpath --wrong-key
    serving=--broken connects_from_towpath --wrong-key
}

towpath_refuses_atomics() {
    connects_to_towpath --atomic refused
}

# At a port where nothing listens.
reports_refused_connections() {
    serves_near serve
    fails rdma-peer connect "$near" $((port + 1)) 192.0.2.2
    grep -q 'the peer rejected the connection' /tmp/said
    rdma-peer connect "$near" $port 192.0.2.2
    ends_near
    fails towpath-rdma-peer connect $socket 192.0.2.2 $port
    grep -q 'refused: ' /tmp/said
}

towpath_measures() {
    connects_to_towpath --bandwidth 200 --latency 200
    connects_from_towpath --bandwidth 200 --latency 200
}

# Checks a counter of the server's device.
counted() {
    towpath stat --socket $socket --json >/tmp/stat
    sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" /tmp/stat >/tmp/said
    echo "$1 $(cat /tmp/said)"
    [ "$(cat /tmp/said)" "$2" "$3" ]
}

loses_nothing_by_itself() {
    counted rdma_dropped_malformed -eq 0
    counted rdma_dropped_over_budget -eq 0
    counted rdma_rx_packets -gt 1000
}

# One packet of a hundred is lost, in each direction.
goes_on_with_losses() {
    ends_towpath
    starts_towpath $mtu --fault drop=0.01,seed=42
    connects_to_towpath
    connects_from_towpath
    counted rdma_retransmitted -gt 0
}

# The path MTU is 1024.
has_short_packets() {
    ends_towpath
    ip link set eth1 mtu 1500
    until [ "$(cat /sys/class/net/eth1/carrier)" = 1 ]; do sleep 0.1; done
    starts_towpath 1500
    towpath_both_ways
}

ends() {
    ends_towpath
    towpath device release "$card"
}

# All three cards are on one wire: each gets the packets for it alone.
makes_measured_devices() {
    # Each card answers for its own address alone.
    echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
    makes_rxe rxe1 eth1 192.0.2.2
    makes_rxe rxe2 eth2 192.0.2.3
    ip link set eth1 promisc off
    ip link set eth2 promisc off
    joins eth1 192.0.2.2 eth2 192.0.2.3
}

# Runs a command that measures, and prints its MB/s.
bandwidth_of() {
    # A command in $(...) goes on after failures otherwise.
    set -e
    "$@" --bandwidth 400 >/tmp/said
    sed -n 's/^bandwidth: .*: \(.*\) MB\/s$/\1/p' /tmp/said | grep .
}

soft_roce_to_itself() {
    peers_between 192.0.2.3 192.0.2.2 '' "$*"
}

# In each round, the next of the five begins. A program that polls takes processor time from Towpath's engine, but not
# from soft-RoCE, which receives in soft interrupts.
measures() {
    local round
    for round in 1 2 3 4 5 6 7 8 9 10; do
        local itself= to= from= itself_polling= to_polling= turn
        for turn in 0 1 2 3 4; do
            case $(((round + turn) % 5)) in
                0) itself=$(bandwidth_of soft_roce_to_itself) ;;
                1) to=$(bandwidth_of connects_to_towpath) ;;
                2) from=$(bandwidth_of connects_from_towpath) ;;
                3) itself_polling=$(bandwidth_of soft_roce_to_itself --polls) ;;
                4) to_polling=$(bandwidth_of connects_to_towpath --polls) ;;
            esac
        done
        echo "$itself $to $from $itself_polling $to_polling"
        echo "$itself $to $from $itself_polling $to_polling" >>/out/measured
    done
}

case $mode in
    check) list='makes_devices joins_the_sides captures_the_first_card rping_both_ways peers_both_ways
        refuses_a_wrong_key reports_a_refused_connection ends_the_capture peers_measure perftest_measures
        shows_statistics gives_the_first_card_to_towpath captures_towpath towpath_both_ways rping_with_towpath
        refuses_wrong_keys_of_both towpath_refuses_atomics reports_refused_connections ends_the_capture
        towpath_measures loses_nothing_by_itself goes_on_with_losses has_short_packets ends' ;;
    measure) list='makes_measured_devices gives_the_first_card_to_towpath measures loses_nothing_by_itself ends' ;;
esac
for one in $list; do
    check $one
done
echo "$checks checks passed"
