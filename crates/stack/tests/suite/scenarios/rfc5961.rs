//! RFC 5961: segments that an attacker forges blindly.

scenarios! {
    /// 3.2: a reset in the window, but not at the next number, gets a challenge.
    reset_in_the_window: "
        passive win 65535 <mss 1000>
        < R 2:2(0)
        > . 1:1(0) ack 1
        state established
        +1 < R 60000:60000(0)
        > . 1:1(0) ack 1
        +1 < R. 100:100(0) ack 1
        > . 1:1(0) ack 1
        state established
    ";
    /// 3.2: a reset outside of the window is dropped.
    reset_outside_of_the_window: "
        passive win 65535 <mss 1000>
        < R 0:0(0)
        none .1
        < R 70000:70000(0)
        none .1
        < R. -5000:-5000(0) ack 1
        none .1
        state established
    ";
    /// 3.2: after a challenge, the reset at the right number.
    reset_after_a_challenge: "
        passive win 65535 <mss 1000>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001
        < R 1:1(0)
        none .1
        < R 1501:1501(0)
        > . 1:1(0) ack 1001
        < R 1001:1001(0)
        recv 1000
        recv error reset
    ";
    /// 3.2: a reset at the number after data beyond a hole is not at the next number.
    reset_beyond_a_hole: "
        passive win 65535 <mss 1000>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1
        +1 < R 2001:2001(0)
        > . 1:1(0) ack 1
        state established
    ";
    /// 4.2: a SYN gets a challenge, wherever its number is.
    syn: "
        passive win 65535 <mss 1000>
        < S 1:1(0)
        > . 1:1(0) ack 1
        +1 < S 100:100(0)
        > . 1:1(0) ack 1
        +1 < S 900000:900000(0)
        > . 1:1(0) ack 1
        +1 < S. 1:1(0) ack 1
        > . 1:1(0) ack 1
        +1 < S. 0:0(0) ack 1
        > . 1:1(0) ack 1
        state established
    ";
    /// 4.2: a peer that has restarted answers the challenge with the right reset.
    restarted_peer: "
        passive win 65535 <mss 1000>
        < S 500000:500000(0) win 65535 <mss 1000>
        > . 1:1(0) ack 1
        < R 1:1(0)
        recv error reset
        +1 < S 500000:500000(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 500001
    ";
    /// 4.2: a peer challenges our SYN, since it has an older connection of the same tuple. Our reset ends that one,
    /// and our SYN goes again at once, and its retransmission timer starts anew.
    challenged_syn: "
        connect
        > S 0:0(0)
        +.3 < . 90000:90000(0) ack 70000
        > R 70000:70000(0)
        > S 0:0(0)
        +.1 < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > . 1:1(0) ack 1
        state established
    ";
    /// 4.2: further challenges bring resets, and no SYN before its time.
    challenged_syn_again: "
        connect
        > S 0:0(0)
        +.3 < . 90000:90000(0) ack 70000
        > R 70000:70000(0)
        > S 0:0(0)
        +.1 < . 90000:90000(0) ack 70000
        > R 70000:70000(0)
        +.1 < . 90000:90000(0) ack 70000
        > R 70000:70000(0)
        none .5
        +.3~.5 > S 0:0(0)
        +.1 < . 90000:90000(0) ack 70000
        > R 70000:70000(0)
        none 1
    ";
    /// 4.2: a SYN in the states after a close.
    syn_in_fin_wait: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        +1 < S 100:100(0)
        > . 2:2(0) ack 1
        state closed
    ";
    /// 4.2: a SYN in CLOSE-WAIT.
    syn_in_close_wait: "
        passive win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        +1 < S 100:100(0)
        > . 1:1(0) ack 2
        state peerclosed
    ";
    /// 5.2: an acknowledgement of what was never sent gets an acknowledgement, and its data is dropped.
    acknowledgement_beyond_what_was_sent: "
        passive win 65535 <mss 1000>
        < . 1:1(0) ack 2
        > . 1:1(0) ack 1
        +1 < . 1:101(100) ack 60000
        > . 1:1(0) ack 1
        recv none
        state established
    ";
    /// 5.2: an acknowledgement older than the largest window drops the data.
    acknowledgement_that_is_too_old: "
        passive win 10000 <mss 1000>
        < . 1:101(100) ack -10000
        > . 1:1(0) ack 1
        recv none
        +1 < . 1:101(100) ack -1000000
        > . 1:1(0) ack 1
        recv none
        state established
    ";
    /// 5.2: an acknowledgement within the largest window is merely old.
    acknowledgement_that_is_old: "
        passive win 10000 <mss 1000>
        send 3000
        > . 1:3001(1000x3) ack 1
        < . 1:1(0) ack 3001
        < . 1:101(100) ack 1001
        ack > . 3001:3001(0) ack 101
        recv 100
    ";
    /// 3.2: the same reset test in SYN-RECEIVED.
    reset_in_syn_received: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.1 < R 100:100(0)
        ?> . 1:1(0) ack 1
        +.1 < R 900000:900000(0)
        none .1
        < . 1:1(0) ack 1
        accept
    ";
    /// 7: challenges are limited in number.
    challenges_are_limited: "
        passive win 65535 <mss 1000>
        repeat 5000 R 2:2(0)
        limit 1000
        state established
        +5 < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
    ";
    /// 7: so are those in answer to SYNs.
    challenges_to_syns_are_limited: "
        passive win 65535 <mss 1000>
        repeat 5000 S 100:100(0)
        limit 1000
        state established
        +5 < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
    ";
    /// 3.2: the limit does not protect a connection from its own peer's reset.
    reset_after_the_limit: "
        passive win 65535 <mss 1000>
        repeat 5000 R 2:2(0)
        limit 1000
        < R 1:1(0)
        recv error reset
    ";
    /// RFC 9293, 3.10.7.1: resets for closed ports are limited too.
    resets_are_limited: "
        repeat 5000 S 0:0(0)
        limit 1000
        +5 < S 0:0(0)
        > R. 0:0(0) ack 1
    ";
}
