# The kernel's soft-RoCE (rdma_rxe) on a card of a small guest: the other end of RoCEv2 for who drives the other card.
# The functions need those of cards.sh.

# libibverbs finds the driver beside the programs, without a configuration.
export IBV_DRIVERS=/guest/librxe
mkdir -p /etc/libibverbs.d

# Packets of 4096 bytes and the longest headers that soft-RoCE counts with: 80 bytes behind those of Ethernet.
mtu=4200

# Where a peer serves.
port=7471

# Makes a soft-RoCE device on an interface that is down, with an address. Both stay in the first network namespace, as
# soft-RoCE receives there alone, up to Linux 6.12 at least. So the other card goes elsewhere.
makes_rxe() {
    local device=$1 interface=$2 address=$3
    # Before the link is up: a later change resets the card, which then has no link for seconds.
    ip link set "$interface" mtu $mtu
    ip address add "$address/24" dev "$interface"
    prepares "$interface"
    modprobe -a rdma_rxe rdma_ucm
    rdma link add "$device" type rxe netdev "$interface"
}

# Has a file below /out take what an interface sends and receives, until `ends_the_capture`.
captures() {
    # The ring has a place of that length for each packet, and tcpdump leaves none there when it ends.
    tcpdump -Z root -i "$1" -s 4400 -B 65536 --immediate-mode -w "/out/$2" udp port 4791 2>/tmp/tcpdump.log &
    capture=$!
    eventually grep -q listening /tmp/tcpdump.log
}

ends_the_capture() {
    kill $capture
    wait $capture
    cat /tmp/tcpdump.log
    grep -q '^0 packets dropped by kernel' /tmp/tcpdump.log
}

listens() {
    rdma resource show cm_id | grep -q 'state LISTEN'
}

# Starts a peer that serves at an address, with options. `ends_serving` takes its end.
serves_rdma() {
    local address=$1
    shift
    rdma-peer "$@" serve "$address" $port >/tmp/server.log 2>&1 &
    server=$!
    eventually listens
}

ends_serving() {
    wait $server
    cat /tmp/server.log
}
