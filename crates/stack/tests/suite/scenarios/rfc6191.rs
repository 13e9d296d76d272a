//! TIME-WAIT: RFC 9293, 3.6.1; RFC 1337: resets; RFC 6191: a SYN may end it.

scenarios! {
    /// RFC 9293, 3.10.7.4, eighth: a repeated FIN is acknowledged again.
    fin_again: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        sizes 0 1
        +10 < F. 1:1(0) ack 2
        > . 2:2(0) ack 2
        +10 < F. 1:1(0) ack 2
        > . 2:2(0) ack 2
        sizes 0 1
    ";
    /// RFC 9293, 3.6.1: it ends after the configured time.
    end: "
        config time_wait 5
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        +4.5 < . 2:2(0) ack 2
        ?> . 2:2(0) ack 2
        +6 < . 2:2(0) ack 2
        > R 2:2(0)
    ";
    /// RFC 9293, 3.10.7.4, eighth: a repeated FIN restarts the time.
    fin_restarts_the_time: "
        config time_wait 5
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        +4 < F. 1:1(0) ack 2
        > . 2:2(0) ack 2
        +4 < F. 1:1(0) ack 2
        > . 2:2(0) ack 2
        +6 < F. 1:1(0) ack 2
        > R 2:2(0)
    ";
    /// RFC 1337, 3 (F1) ignores a reset, and RFC 9293, 3.10.7.4, second, lets it end the state.
    reset_at_the_next_number: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        +1 < R 2:2(0)
        none .1
        sizes 0 ..1
        +1 < F. 1:1(0) ack 2
        > . 2:2(0) ack 2 | R 2:2(0)
    ";
    /// RFC 1337, 2 and RFC 5961, 3.2: a reset at another number does not end it.
    reset_at_another_number: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        +1 < R 1:1(0)
        ?> . 2:2(0) ack 2
        none .1
        +1 < R 5:5(0)
        ?> . 2:2(0) ack 2
        none .1
        sizes 0 1
        +1 < F. 1:1(0) ack 2
        > . 2:2(0) ack 2
    ";
    /// RFC 1337, 2: an old segment gets an acknowledgement.
    old_data: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        recv 100
        close
        > F. 1:1(0) ack 101
        < F. 101:101(0) ack 2
        ack > . 2:2(0) ack 102
        +1 < . 1:101(100) ack 1
        > . 2:2(0) ack 102
        sizes 0 1
    ";
    /// RFC 9293, 3.6.1: a SYN with a higher sequence number opens a new connection.
    newer_syn: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        +1 < S 5000:5000(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 5001
        +.1 < . 5001:5101(100) ack 1
        ack > . 1:1(0) ack 5101
        accept
        recv 100
        sizes 1 0
        send 1000
        > . 1:1001(1000) ack 5101
    ";
    /// RFC 9293, 3.6.1: one with a lower number does not.
    older_syn: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        +1 < S -5000:-5000(0) win 65535 <mss 1000>
        ?> . 2:2(0) ack 2
        none .1
        sizes 0 1
    ";
    /// RFC 9293, 3.6.1: a SYN that is as old as the connection does not.
    same_syn: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        +1 < S 0:0(0) win 65535 <mss 1000>
        ?> . 2:2(0) ack 2
        none .1
        sizes 0 1
    ";
    /// RFC 6191, 2: a newer timestamp is enough.
    newer_timestamp: "
        passive win 65535 <mss 1012,TS>
        close
        > F. 1:1(0) ack 1 <TS>
        < F. 1:1(0) ack 2 <TS>
        ack > . 2:2(0) ack 2 <TS>
        +1 < S -5000:-5000(0) win 65535 <mss 1012,TS>
        > S. 0:0(0) ack -4999 <TS>
        +.1 < . -4999:-4999(0) ack 1 <TS>
        accept
        sizes 1 0
    ";
    /// RFC 6191, 2: with an equal timestamp, the sequence number decides.
    equal_timestamp: "
        passive win 65535 <mss 1012,TS>
        close
        > F. 1:1(0) ack 1 <TS>
        < F. 1:1(0) ack 2 <TS val 7000000 ecr 1>
        ack > . 2:2(0) ack 2 <TS>
        +1 < S -5000:-5000(0) win 65535 <mss 1012,TS val 7000000 ecr 0>
        ?> . 2:2(0) ack 2 <TS>
        none .1
        sizes 0 1
        +1 < S 5000:5000(0) win 65535 <mss 1012,TS val 7000000 ecr 0>
        > S. 0:0(0) ack 5001 <TS>
    ";
    /// RFC 6191, 2: an older timestamp with a lower sequence number is an old SYN.
    older_timestamp: "
        passive win 65535 <mss 1012,TS>
        close
        > F. 1:1(0) ack 1 <TS>
        < F. 1:1(0) ack 2 <TS val 7000000 ecr 1>
        ack > . 2:2(0) ack 2 <TS>
        +1 < S -5000:-5000(0) win 65535 <mss 1012,TS val 6000000 ecr 0>
        ?> . 2:2(0) ack 2 <TS>
        none .1
        sizes 0 1
    ";
    /// RFC 9293, 3.6: the side that closes last has no TIME-WAIT.
    none_after_a_passive_close: "
        passive win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        close
        > F. 1:1(0) ack 2
        < . 2:2(0) ack 2
        sizes 0 0
        # The port is free for the next connection.
        +1 < S -5000:-5000(0) win 65535 <mss 1000>
        > S. 0:0(0) ack -4999
    ";
    /// RFC 9293, 3.6.1: the application still reads what arrived before.
    data_is_read_in_time_wait: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < F. 1:101(100) ack 2
        ack > . 2:2(0) ack 102
        +100 recv 100
        recv eof
        close
        none 5
    ";
}
