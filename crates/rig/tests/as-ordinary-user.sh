#!/bin/sh
# Runs the tests of netlink and rig twice: as whoever calls, and, called by root, as an ordinary
# user without any capability. TOWPATH_REQUIRE_ALL=1 makes each skipped test a failed one.
# The build directory must be readable for others: set CARGO_TARGET_DIR if it is not.
set -eu

programs=$(cargo test -p towpath-netlink -p towpath-rig --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
[ -n "$programs" ] || { echo "no test programs were built" >&2; exit 1; }

for program in $programs; do
    "$program"
    if [ "$(id -u)" = 0 ]; then
        echo "as an ordinary user: $program"
        setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all \
            "$program"
    fi
done
