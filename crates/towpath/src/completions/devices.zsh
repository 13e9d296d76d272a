# Devices that are served, where the verbs look for their sockets.
_towpath_devices() {
    local expl
    local -a names
    names=(
        /run/towpath/*.sock(N=:t:r)
        ${XDG_RUNTIME_DIR:-/nowhere}/towpath/*.sock(N=:t:r)
        /tmp/towpath-$UID/*.sock(N=:t:r)
    )
    _wanted devices expl device compadd -a names
}

