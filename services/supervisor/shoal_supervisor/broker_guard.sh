#!/bin/sh
# Ends a server that does not watch its parent's pipe: when standard input closes, so does the server.
#
#   sh broker_guard.sh COMMAND [ARGUMENT…]
#
# The command takes this shell's place, so its pid, signals and exit status are its own; the guard is its child.
exec 3<&0
server=$$

is_alive() {
    # Only while it is still the parent: its pid may be another's by then.
    read -r _ _ _ parent _ </proc/self/stat && [ "$parent" = "$server" ]
}

guard() {
    while read -r _; do :; done
    is_alive && kill -TERM "$server"
    tries=0
    while is_alive; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || kill -KILL "$server"
        sleep 0.05
    done
}

guard <&3 3<&- >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
