# Settings with a value, and those whose value is a number, to be gone on with behind the `=`.
_towpath_settings() {
    local expl ret=1
    local -a numbers words
    numbers=(${(M)@:#*=})
    words=(${@:#*=})
    _wanted settings expl setting compadd -S '' -a numbers && ret=0
    _wanted settings expl setting compadd -a words && ret=0
    return ret
}

