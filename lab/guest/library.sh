# Runs script.sh in a guest, and reports each check. The first serial line is the console; this
# script's output is the report.
set -u
PATH=/guest:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
checks=0 failed=0

# The functions and variables from here on reach the shells of the checks.
set -a

# Runs a command in a shell of its own, at most for 60 seconds. Its output is reported if it fails.
check() {
    local name=$1 status=0 start=$SECONDS how=ok
    shift
    timeout --kill-after=5 60 bash -eu -c '"$@"' check "$@" >/run/check.output 2>&1 || status=$?
    [ $status = 0 ] || how=FAILED
    echo "check $how $name ($((SECONDS - start)) s)"
    checks=$((checks + 1))
    if [ $status != 0 ]; then
        failed=$((failed + 1))
        echo "    status $status (124: took too long)"
        tail -n 15 /run/check.output | sed 's/^/    /'
    fi
}

# Waits until a command succeeds, at most 30 seconds.
eventually() {
    local tries=0
    until "$@" >/run/tried 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 60 ] || { cat /run/tried; echo "not within 30 seconds: $*"; return 1; }
        sleep 0.5
    done
}

fails() {
    ! "$@"
}

# Another host, in a network namespace.
far() {
    ip netns exec far "$@"
}

# Joins two cards: the first keeps 192.0.2.1, and the second is the other host, with 192.0.2.200.
network() {
    ip netns list | grep -qw far || ip netns add far
    ip link set "$2" netns far
    far ip link set lo up
    far ip address add 192.0.2.200/24 dev "$2"
    far ip link set "$2" up
    ip address add 192.0.2.1/24 dev "$1"
    ip link set "$1" up
    ip link set lo up
    eventually ping -c 1 -W 1 192.0.2.200
}

# Starts a program as a user, under a name.
application() {
    local name=$1 user=$2
    shift 2
    systemctl reset-failed "$name.service" 2>/dev/null || true
    systemd-run --quiet --unit="$name" --uid="$user" --property=KillSignal=SIGKILL "$@"
}

# Checks that the journal of a unit has a line, not older than the time in /run/since if that is
# there. journalctl writes to a file: it would fail if grep ended before it.
logged() {
    local since=0
    [ ! -e /run/since ] || since=$(cat /run/since)
    journalctl --sync
    journalctl --unit="$1" --since="@$since" --no-pager --output=cat >/run/journal
    grep -q -- "$2" /run/journal || { tail -n 5 /run/journal; echo "not logged: $2"; return 1; }
}

kernel_is_older_than() {
    printf '%s\n' "$1" "$(uname -r)" | sort --version-sort --check=quiet && return 1
    return 0
}

# systemd starts the keeper, which starts the server.
keeper_pid() {
    systemctl show --property=MainPID --value "towpath@$1"
}

server_pid() {
    pgrep -P "$(keeper_pid "$1")" -x towpath-server
}

# Checks that servers have left nothing: no process, no XDP program, no socket.
nothing_left() {
    fails pgrep -a -u towpath
    fails pgrep -a towpath
    ip -details link >/run/links
    fails grep -w 'xdp\|xdpgeneric' /run/links
    fails grep -w promisc /run/links
    [ -z "$(find /run/towpath -type s 2>/dev/null)" ]
}

finish() {
    if [ $failed -gt 0 ]; then
        journalctl --sync
        journalctl --no-pager --boot >/dev/ttyS0
    fi
    echo "end $checks"
    systemctl poweroff --force --force
}
trap finish EXIT

echo "Linux $(uname -r)"
udevadm settle
. /guest/script.sh
