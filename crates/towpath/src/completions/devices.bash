
# Devices that are served, where the subcommands look for their sockets. Names with other characters
# than these would have to be quoted.
_towpath_devices() {
    local own directory path name
    local -a directories=(/run/towpath)
    if ((EUID != 0)); then
        own=/tmp/towpath-$EUID
        [[ -z $XDG_RUNTIME_DIR ]] || own=$XDG_RUNTIME_DIR/towpath
        # Below /tmp any user may have made a directory of that name.
        if [[ -d $own && ! -L $own ]] &&
            [[ -O $own || $(stat -c %u -- "$own" 2>/dev/null) == 0 ]]; then
            directories+=("$own")
        fi
    fi
    for directory in "${directories[@]}"; do
        for path in "$directory"/*.sock; do
            name=${path##*/}
            name=${name%.sock}
            if [[ -S $path && $name == "$1"* && $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]; then
                COMPREPLY+=("$name")
            fi
        done
    done
}

_towpath_words() {
    local words=("${COMP_WORDS[@]}") at=$COMP_CWORD cur=$2 prev=$3 key=''
    # Bash takes NAME=VALUE for three words, and replaces the last of them alone.
    if [[ ${words[at]} == = ]]; then
        ((at -= 1))
        cur=''
    elif ((at > 1)) && [[ ${words[at - 1]} == = ]]; then
        ((at -= 2))
    fi
    if ((at < COMP_CWORD && at > 1)); then
        key=${words[at]} prev=${words[at - 1]}
        # The setting of --set=SETTING=VALUE.
        if [[ $prev == = ]]; then
            prev=${words[at - 2]}
        fi
    fi
    if [[ $key == -* ]]; then
        prev=$key key=''
    fi
    if [[ $prev == --device ]] ||
        [[ $COMP_CWORD -eq 2 && $cur != -* && " ${_towpath_of_device[*]} " == *" ${words[1]} "* ]]; then
        COMPREPLY=()
        _towpath_devices "$cur"
    elif [[ -n $key ]]; then
        _towpath "$1" "$key=$cur" "$prev"
        COMPREPLY=("${COMPREPLY[@]#"$key="}")
    else
        _towpath "$1" "$cur" "$prev"
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}

complete -F _towpath_words -o bashdefault -o default towpath
