# `towpath-lab card` starts this script in a small guest with ten e1000e cards, which prepares one card for each
# way and one for the sender, and runs the trials of /guest/plan. The kernel keeps the first card.
set -eu

usecs=$1
ulimit -l unlimited
trap '[ $? = 0 ] || tail -n 20 /tmp/*.log' EXIT

echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
# For DPDK, and for the servers' packets.
echo 84 >/proc/sys/vm/nr_hugepages
mkdir -p /run/towpath /dev/hugepages
mount -t hugetlbfs none /dev/hugepages
chown towpath /run/towpath

cards=
for number in 1 2 3 4 5 6 7 8 9; do
    cards="$cards $(basename "$(readlink /sys/class/net/eth$number/device)")"
done
# The addresses of the plan.
[ "$cards" = "$(printf ' 0000:00:%02x.0' 2 3 4 5 6 7 8 9 10)" ]
for card in $cards; do
    towpath device claim "$card" --user towpath
done

ethtool -G eth0 rx 4096 tx 4096
ethtool -K eth0 gro off
ethtool -C eth0 rx-usecs "$usecs"
ip link set eth0 up
until [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do sleep 0.1; done

# Starts a server on a card, with a wait strategy, whose name its socket has.
serve() {
    setpriv --reuid=towpath --regid=towpath --clear-groups \
        towpath serve --device "pci:$1,rx-usecs=$usecs,tx-usecs=$usecs" --subnet 192.0.2.200/24 \
        --lease 192.0.2.64/28 --allow-user root --socket "/run/towpath/$2.sock" --wait "$2" >"/tmp/$2.log" 2>&1 &
    servers="$servers $!"
    echo $! >"/run/towpath/$2.pid"
    until grep -q serving "/tmp/$2.log"; do
        [ -e /proc/$! ]
        sleep 0.1
    done
}

servers=
serve 0000:00:04.0 block
serve 0000:00:05.0 auto
towpath-lab --role "$(cat /guest/plan)"
kill $servers
wait $servers
