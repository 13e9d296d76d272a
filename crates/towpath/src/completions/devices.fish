# Devices that are served, where the verbs look for their sockets.
function __towpath_devices
    for path in /run/towpath/*.sock $XDG_RUNTIME_DIR/towpath/*.sock /tmp/towpath-(id -u)/*.sock
        if test -S $path
            string replace -r '.*/(.*)\.sock$' '$1' -- $path
        end
    end
end
