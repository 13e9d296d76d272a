# Devices that are served, where the subcommands look for their sockets.
_towpath_devices() {
    local expl own=/tmp/towpath-$EUID
    local -a directories names
    directories=(/run/towpath)
    if ((EUID != 0)); then
        [[ -z $XDG_RUNTIME_DIR ]] || own=$XDG_RUNTIME_DIR/towpath
        # Below /tmp any user may have made a directory of that name.
        if [[ -d $own && ! -L $own ]] &&
            [[ -O $own || $(stat -c %u -- $own 2>/dev/null) == 0 ]]; then
            directories+=($own)
        fi
    fi
    names=(${^directories}/*.sock(N=:t:r))
    _wanted devices expl device compadd -a names
}

