# tests/rdma starts this script in a small guest with two e1000e cards. Both have a soft-RoCE device of the kernel
# (rdma_rxe), and programs of librdmacm speak RoCEv2 with each other over the wire between the cards. /out/rdma.pcap
# takes what the first card sends and receives in the checks that measure nothing.
set -eu
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

joins_the_sides() {
    by_wire eth0 192.0.2.1 192.0.2.2 101
    by_wire eth1 192.0.2.2 192.0.2.1 102
    ip rule add priority 30 lookup local
    ip rule delete priority 0
    ping -q -c 1 -W 5 -s $((mtu - 28)) -M do -I 192.0.2.1 192.0.2.2
    ping -q -c 1 -W 5 -s $((mtu - 28)) -M do -I 192.0.2.2 192.0.2.1
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
    captures eth0
}

list='makes_devices joins_the_sides captures_the_first_card rping_both_ways peers_both_ways
    refuses_a_wrong_key reports_a_refused_connection ends_the_capture peers_measure perftest_measures
    shows_statistics'
for one in $list; do
    check $one
done
echo "$checks checks passed"
