# guest: kernel=stable,backports limit=400
# Interfaces on top of others: VLANs (802.1Q) and bonds. Here the server runs without the unit of the
# package.

serve() {
    local device=$1
    shift
    # Those of a check that failed.
    systemctl stop server web 2>/dev/null || true
    systemctl reset-failed server 2>/dev/null || true
    # All servers have this name: their checks look at the journal from here on.
    date +%s.%N >/run/since
    systemd-run --quiet --unit=server --property=Type=notify \
        towpath serve --device "xdp:$device" --share-host --user towpath --allow-user alice "$@"
    application web alice /guest/web "/run/towpath/${device%%,*}.sock" /guest 8080
    eventually logged web 'serving /guest'
}

end() {
    systemctl stop server
    systemctl stop web 2>/dev/null || true
    nothing_left
}

prepare() {
    useradd alice
    dpkg -i /guest/towpath.deb
    network intel0 intel1
    ethtool -K intel0 gro off
}

makes_vlans() {
    modprobe 8021q
    ip link add link intel0 name intel0.5 type vlan id 5
    ip address add 203.0.113.1/24 dev intel0.5
    ip link set intel0.5 up
    far ip link add link intel1 name intel1.5 type vlan id 5
    far ip address add 203.0.113.200/24 dev intel1.5
    far ip link set intel1.5 up
    eventually ping -c 1 -W 1 203.0.113.200
}

fetch() {
    far curl -sS -m 10 "http://$1:8080/script.sh" | cmp - /guest/script.sh
}

# The driver's default decides whether XDP programs see tags.
vlan_goes_on() {
    serve intel0
    fetch 192.0.2.1
    ping -c 20 -i 0.1 -W 5 203.0.113.200 | tee /run/said
    grep -w '0% packet loss' /run/said
    # The kernel refuses a connection in the VLAN to the application's port.
    fails far curl -sS -m 5 http://203.0.113.1:8080/ >/run/said 2>&1
    cat /run/said
    grep "Couldn't connect" /run/said
    fetch 192.0.2.1
    end
}

# The server warns of a driver that hides tags, and the remedy of the warning works.
warns_of_hidden_tags() {
    ethtool -K intel0 rxvlan on
    serve intel0
    logged server 'rxvlan off' || { ethtool -k intel0 | grep vlan; false; }
    end
}

tags_visible() {
    ethtool -K intel0 rxvlan off
    serve intel0
    fetch 192.0.2.1
    ping -c 10 -i 0.1 -W 5 203.0.113.200
    fails logged server 'rxvlan off'
    end
}

serves_a_vlan_interface() {
    # This kernel may hand AF_XDP no packets in several buffers.
    ethtool -K intel0.5 gro off
    serve intel0.5
    fetch 203.0.113.1
    ping -c 3 -W 5 192.0.2.200
    end
    ip link delete intel0.5
    far ip link delete intel1.5
}

makes_a_bond() {
    modprobe bonding
    ip link add bond0 type bond mode active-backup miimon 100
    ip link set virtio0 master bond0
    ip link set bond0 up
    ip address add 198.51.100.1/24 dev bond0
    ip link set virtio1 netns far
    far ip address add 198.51.100.200/24 dev virtio1
    far ip link set virtio1 up
    ethtool -K virtio0 gro off
    ethtool -K bond0 gro off
    eventually ping -c 1 -W 1 198.51.100.200
}

refuses_a_port_of_a_bond() {
    fails towpath serve --device xdp:virtio0 --share-host --user towpath --allow-user alice \
        >/run/said 2>&1
    cat /run/said
    grep 'virtio0 is a port of bond0' /run/said
}

refuses_native_mode() {
    fails towpath serve --device xdp:bond0,mode=native --share-host --user towpath \
        --allow-user alice >/run/said 2>&1
    cat /run/said
    grep 'bond0 is a bond' /run/said
}

serves_a_bond() {
    serve "$1"
    fetch 198.51.100.1
    ping -c 3 -W 5 198.51.100.200
    journalctl --unit=server --no-pager --output=cat | grep -i mode
    end
}

check 'a machine with the package' prepare
check 'a VLAN interface of the kernel' makes_vlans
check 'the traffic of the VLAN goes on beside an application' vlan_goes_on
check 'the server warns of a driver that hides tags' warns_of_hidden_tags
check 'with visible tags, the traffic of the VLAN goes on' tags_visible
check 'the server serves a VLAN interface' serves_a_vlan_interface
check 'a bond of the kernel' makes_a_bond
check 'the server refuses a port of a bond' refuses_a_port_of_a_bond
check 'the server refuses a bond in native mode' refuses_native_mode
check 'the server serves a bond, in generic mode' serves_a_bond bond0,mode=generic
check 'the server serves a bond, by default' serves_a_bond bond0
