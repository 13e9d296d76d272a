# Devices that are served, where the subcommands look for their sockets.
function __towpath_devices
    set -l directories /run/towpath
    set -l uid (id -u)
    if test $uid != 0
        set -l own /tmp/towpath-$uid
        if test -n "$XDG_RUNTIME_DIR"
            set own $XDG_RUNTIME_DIR/towpath
        end
        # Below /tmp any user may have made a directory of that name.
        if test -d $own; and not test -L $own
            if test -O $own; or test (stat -c %u -- $own) = 0
                set -a directories $own
            end
        end
    end
    for path in $directories/*.sock
        if test -S $path
            string replace -r '.*/(.*)\.sock$' '$1' -- $path
        end
    end
end
