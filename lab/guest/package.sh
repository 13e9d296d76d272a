# guest: kernel=stable,backports limit=600
# The Debian package, from its installation to its removal, on an interface of a real driver.

unit=towpath@intel0
socket=/run/towpath/intel0.sock

installs() {
    useradd alice
    useradd bob
    dpkg -i /guest/towpath.deb
    id towpath
    stat -c '%U:%G %a' /run/towpath | grep -x 'root:towpath 1775'
    towpath --version
    test -e /usr/share/man/man1/towpath-serve.1.gz
    test -e /usr/share/bash-completion/completions/towpath
    towpath policy check /etc/towpath/policy.toml
    systemd-analyze verify --man=no /usr/lib/systemd/system/towpath@.service \
        /usr/lib/systemd/system/towpath.service
}

# Linux before 6.6 hands AF_XDP no packets in several buffers.
needs_gro_off_before_6_6() {
    if kernel_is_older_than 6.6; then
        fails systemctl start $unit
        logged $unit 'intel0: it merges received packets (GRO).*ethtool -K intel0 gro off'
        systemctl stop $unit
        ethtool -K intel0 gro off
        ethtool -K virtio0 gro off
    fi
}

starts() {
    systemctl enable --now $unit
    systemctl is-active $unit
    test -S $socket
    towpath ls | grep -w intel0
    logged $unit serving
}

runs_confined() {
    local pid
    pid=$(server_pid intel0)
    # The server has given up the capabilities of its start.
    grep -x 'CapEff:	0000000000000000' /proc/$pid/status
    grep -x 'CapPrm:	0000000000000000' /proc/$pid/status
    stat -c %U /proc/$pid | grep -x 'towpath\|root'
    grep -E "^Uid:	$(id -u towpath)" /proc/$pid/status
}

refuses_by_default() {
    fails setpriv --reuid=alice --regid=alice --init-groups web $socket /guest 8080 >/run/said 2>&1
    cat /run/said
    grep -i 'grant\|allow' /run/said
}

grants() {
    printf '[[grant]]\nusers = ["alice"]\ndevices = ["intel0"]\n' >>/etc/towpath/policy.toml
    systemctl reload $unit
    eventually logged $unit 'policy reloaded'
    application web alice /guest/web $socket /guest 8080
    eventually logged web 'serving /guest'
}

serves_the_other_host() {
    far curl -sS -m 10 http://192.0.2.1:8080/script.sh | cmp - /guest/script.sh
    # The kernel goes on with everything else.
    far ping -c 3 -W 5 192.0.2.1
}

refuses_others() {
    fails setpriv --reuid=bob --regid=bob --init-groups web $socket /guest 8081 >/run/said 2>&1
    cat /run/said
    grep -i 'grant\|allow' /run/said
}

serves_programs_of_its_host() {
    if kernel_is_older_than 6.6; then
        # The server warns, and serves only other hosts.
        logged $unit 'programs of this host and applications .* do not reach each other'
        fails curl -sS -m 5 http://192.0.2.1:8080/script.sh
    else
        curl -sS -m 10 http://192.0.2.1:8080/script.sh | cmp - /guest/script.sh
    fi
}

keeps_the_old_policy() {
    cp /etc/towpath/policy.toml /run/policy.toml
    echo 'nonsense = 1' >/etc/towpath/policy.toml
    systemctl reload $unit
    eventually logged $unit 'the old policy stays in force'
    systemctl is-active $unit
    serves_the_other_host
    cp /run/policy.toml /etc/towpath/policy.toml
}

survives_an_upgrade() {
    local before
    before=$(server_pid intel0)
    dpkg -i /guest/towpath.deb
    [ "$(server_pid intel0)" = "$before" ]
    grep alice /etc/towpath/policy.toml
    serves_the_other_host
}

has_another_server() {
    local server
    server=$(server_pid intel0)
    [ -n "$server" ] && [ "$server" != "$1" ]
}

# Another server follows one that is killed. The program stays at the interface meanwhile.
survives_a_kill() {
    local server keeper
    server=$(server_pid intel0)
    keeper=$(keeper_pid intel0)
    kill -9 "$server"
    ip -details link show intel0 | grep -w 'xdp\|xdpgeneric'
    eventually logged $unit 'another server starts'
    eventually has_another_server "$server"
    [ "$(keeper_pid intel0)" = "$keeper" ]
    # Before Linux 6.5, a server cannot recognise the application's process.
    if kernel_is_older_than 6.5; then
        systemctl stop web || true
        application web2 alice /guest/web $socket /guest 8080
        eventually logged web2 'serving /guest'
    fi
    eventually serves_the_other_host
}

# During a restart, systemd holds the keeper's objects. Before Linux 6.5, a server cannot recognise the
# application's process.
survives_a_restart() {
    local keeper web
    keeper=$(keeper_pid intel0)
    web=$(systemctl show --property=MainPID --value web)
    far curl -sS -m 50 --limit-rate 100k -o /run/fetched http://192.0.2.1:8080/towpath.deb &
    sleep 1
    systemctl restart $unit
    [ "$(keeper_pid intel0)" != "$keeper" ]
    logged $unit 'the keeper goes on with the objects of the earlier keeper'
    if kernel_is_older_than 6.5; then
        # The download never ends.
        kill $! || true
        wait $! || true
        systemctl stop web || true
        application web3 alice /guest/web $socket /guest 8080
        eventually logged web3 'serving /guest'
    else
        wait $!
        cmp /run/fetched /guest/towpath.deb
        [ "$(systemctl show --property=MainPID --value web)" = "$web" ]
    fi
    eventually serves_the_other_host
}

gives_up_a_wrong_option() {
    echo 'TOWPATH_OPTIONS="--no-such-option"' >/etc/towpath/intel1.conf
    fails systemctl start towpath@intel1
    systemctl show --property=ExecMainStatus towpath@intel1 | grep -x ExecMainStatus=2
    sleep 2
    systemctl is-failed towpath@intel1
    logged towpath@intel1 no-such-option
    rm /etc/towpath/intel1.conf
}

# A server starts once its interface appears, and again when the interface comes back.
waits_for_its_interface() {
    systemctl start --no-block towpath@late0
    eventually logged towpath@late0 late0
    ip link add late0 type veth peer name late1
    ip link set late1 up
    ethtool -K late0 gro off
    ip link set late0 up
    eventually systemctl is-active towpath@late0
    ip link delete late0
    eventually logged towpath@late0 'start the server again when the interface is back'
    systemctl stop towpath@late0
}

# A second server beside the first one, with a conf file of its own and another driver.
leases() {
    ip address add 198.51.100.1/24 dev virtio0
    ip link set virtio0 up
    ip link set virtio1 netns far
    far ip address add 198.51.100.200/24 dev virtio1
    far ip link set virtio1 up
    echo 'TOWPATH_OPTIONS="--device xdp:virtio0 --lease 198.51.100.64/28 --allow-user alice"' \
        >/etc/towpath/virtio0.conf
    systemctl start towpath@virtio0
    application echo alice /guest/udp_echo /run/towpath/virtio0.sock
    eventually logged echo 'answering at'
    far ping -c 3 -W 5 198.51.100.64
    far ping -c 3 -W 5 198.51.100.1
    systemctl stop towpath@virtio0
    systemctl is-active $unit
    serves_the_other_host
}

shares_virtio() {
    sed 's/intel0/virtio0/' -i /etc/towpath/policy.toml
    rm /etc/towpath/virtio0.conf
    systemctl start towpath@virtio0
    application virtio alice /guest/web /run/towpath/virtio0.sock /guest 8080
    eventually logged virtio 'serving /guest'
    far curl -sS -m 10 http://198.51.100.1:8080/script.sh | cmp - /guest/script.sh
    systemctl stop towpath@virtio0
    cp /run/policy.toml /etc/towpath/policy.toml
}

makes_a_tap() {
    cp /usr/share/doc/towpath/examples/tap0.conf /etc/towpath/
    sed 's/--policy [^"]*/--allow-user alice/' -i /etc/towpath/tap0.conf
    systemctl start towpath@tap0
    application tap alice /guest/udp_echo /run/towpath/tap0.sock
    eventually logged tap 'answering at'
    ping -c 3 -W 5 10.77.0.2
    systemctl stop towpath@tap0
    fails ip link show tap0
}

stops() {
    systemctl stop $unit
    nothing_left
    # The kernel has the port again.
    fails far curl -sS -m 5 http://192.0.2.1:8080/script.sh >/run/said 2>&1
    grep 'refused\|connect to' /run/said
}

is_removed() {
    systemctl start $unit
    apt-get remove --yes towpath
    nothing_left
    fails systemctl is-active $unit
    fails test -e /run/towpath
    test -e /etc/towpath/policy.toml
}

is_purged() {
    apt-get purge --yes towpath
    fails test -e /etc/towpath
    find / -xdev -name '*towpath*' -not -path '/guest/*' -not -path '/var/log/*' >/run/said
    cat /run/said
    test ! -s /run/said
}

check 'two cards of the driver e1000e reach each other' network intel0 intel1
check 'the package installs' installs
check 'before Linux 6.6, the server asks for an interface without GRO' needs_gro_off_before_6_6
check 'the unit starts' starts
check 'the server has no capability and is not root' runs_confined
check 'without a grant, a user is refused' refuses_by_default
check 'a reload grants a user' grants
check 'an application serves another host, beside the kernel' serves_the_other_host
check 'a user without a grant is refused' refuses_others
check 'programs of the host, by kernel' serves_programs_of_its_host
check 'a reload with an error keeps the old policy' keeps_the_old_policy
check 'an upgrade leaves the server alone' survives_an_upgrade
check 'after kill -9, another server follows' survives_a_kill
check 'after a restart, applications go on' survives_a_restart
check 'a wrong option is not tried again' gives_up_a_wrong_option
check 'a server waits for its interface' waits_for_its_interface
check 'addresses of a lease, on virtio-net' leases
check 'ports of the host, on virtio-net' shares_virtio
check 'a TAP' makes_a_tap
check 'a stop leaves nothing' stops
check 'a removal stops servers and leaves nothing' is_removed
check 'a purge removes the configuration' is_purged
