//! RFC 3522, RFC 4015: recoveries that nothing was lost for; RFC 2883 and 8985: reordering.

scenarios! {
    /// RFC 4015, 3: after a timeout without a loss the window is as before.
    timeout_without_a_loss: "
        config reno
        passive rtt .1 win 65535 <mss 1012,sackOK,TS,wscale 7>
        send 10000
        > . 1:1001(1000) ack 1 <TS val $first ecr *>
        > . 1001:10001(1000x9) ack 1 <TS>
        # A probe of the tail, then the timeout.
        until 2 . 1:1001(1000) ack 1
        ignore 0
        # The acknowledgement is about the first copy.
        +.05 < . 1:1(0) ack 10001 <TS val 6000000 ecr $first>
        ignore 0
        send 40000
        sends 8 22 0
    ";
    /// RFC 5681, 3.1: after a timeout with a loss it is not.
    timeout_with_a_loss: "
        config reno
        passive rtt .1 win 65535 <mss 1012,sackOK,TS,wscale 7>
        send 10000
        > . 1:10001(1000x10) ack 1 <TS>
        until 2 . 1:1001(1000) ack 1
        ignore 0
        +.05 < . 1:1(0) ack 1001 <TS>
        sends 1 2 0
    ";
    /// RFC 4015, 3: after a fast retransmit without a loss, the window is as before.
    fast_retransmit_without_a_loss: "
        config reno
        passive rtt .1 win 65535 <mss 1012,sackOK,TS,wscale 7>
        send 10000
        > . 1:1001(1000) ack 1 <TS val $first ecr *>
        > . 1001:10001(1000x9) ack 1 <TS>
        +.1 < . 1:1(0) ack 1 <TS,sack 1001:4001>
        > . 1:1001(1000) ack 1 <TS>
        # The first segment was only late.
        +.01 < . 1:1(0) ack 4001 <TS val 6000000 ecr $first>
        ignore 0
        < . 1:1(0) ack 10001 <TS val 6000001 ecr $first>
        ignore 0
        send 40000
        sends 8 22 0
    ";
    /// RFC 3522, 3.2: only the first retransmission is judged. The echo of one that was sent before
    /// the last one does not mean that nothing was lost.
    later_echoes_are_not_judged: "
        config reno
        passive rtt .1 win 65535 <mss 1012,sackOK,TS,wscale 7>
        send 10000
        > . 1:10001(1000x10) ack 1 <TS>
        +.1 < . 1:1(0) ack 1 <TS,sack 1001:2001 3001:7001>
        > . 1:1001(1000) ack 1 <TS val $first ecr *>
        > . 2001:3001(1000) ack 1 <TS val $second ecr *>
        +.1 < . 1:1(0) ack 2001 <TS val 6000000 ecr $first,sack 9001:10001 3001:7001>
        > . 7001:9001(1000x2) ack 1 <TS>
        ignore 0
        +.05 < . 1:1(0) ack 7001 <TS val 6000001 ecr $second,sack 9001:10001>
        ignore 0
        # The window is five segments, two of which are in flight.
        send 40000
        sends 2 4 0
    ";
    /// RFC 8985, 6.2, step 4: once the peer has reported a duplicate, the sender waits for longer.
    reordering_is_learned: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 2000
        > . 1:2001(1000x2) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:2001>
        +.02~.035 > . 1:1001(1000) ack 1
        # The first copy, then the second.
        +.005 < . 1:1(0) ack 2001
        +.095 < . 1:1(0) ack 2001 <sack 1:1001>
        send 2000
        > . 2001:4001(1000x2) ack 1
        +.1 < . 1:1(0) ack 2001 <sack 3001:4001>
        # Not before half of the round trip, or a little less if it was measured shorter.
        none .03
        +0~.1 > . 2001:3001(1000) ack 1
        +.1 < . 1:1(0) ack 4001
        none 5
    ";
    /// RFC 8985, 6.2: reordering that was seen widens the window from the start.
    three_segments_late: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        # The second arrives before the first, which arrives a little later: the path reorders.
        +.1 < . 1:1(0) ack 1 <sack 1001:2001>
        +.005 < . 1:1(0) ack 2001
        < . 1:1(0) ack 2001 <sack 3001:4001>
        < . 1:1(0) ack 2001 <sack 3001:5001>
        < . 1:1(0) ack 2001 <sack 3001:6001>
        < . 1:1(0) ack 2001 <sack 3001:7001>
        # Four segments beyond the gap, and still it may be late.
        none .01
        < . 1:1(0) ack 10001
        none 5
    ";
    /// RFC 6675, 5 and RFC 6298: everything is lost, and goes again.
    whole_window_is_lost: "
        passive rtt .1 win 65535 <mss 500,sackOK>
        send 5000
        > . 1:5001(500x10) ack 1
        until 2 . 1:501(500) ack 1
        ignore 0
        +.1 < . 1:1(0) ack 501
        until .5 . 501:1001(500) ack 1
        ignore 0
        +.1 < . 1:1(0) ack 1501
        ignore 0
        +.1 < . 1:1(0) ack 3001
        ignore 0
        +.1 < . 1:1(0) ack 5001
        none 5
        unsent 0
    ";
    /// RFC 6675: losses at a wrap of the stack's sequence numbers.
    losses_where_the_numbers_wrap: "
        listen
        wrap 5000
        < S 0:0(0) win 65535 <mss 1000,sackOK>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 6001:10001 3001:4001 1001:2001>
        > . 1:1001(1000) ack 1
        > . 2001:3001(1000) ack 1
        > . 4001:6001(1000x2) ack 1
        +.1 < . 1:1(0) ack 10001
        none 5
        unsent 0
    ";
    /// RFC 6675: the last segments are lost, and the FIN with them.
    lost_tail_with_fin: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 3000
        > . 1:3001(1000x3) ack 1
        close
        > F. 3001:3001(0) ack 1
        +.1 < . 1:1(0) ack 1001
        # A probe of the tail has the FIN.
        +.15~.35 > F. *:3001(0..1000) ack 1
        +.1 < . 1:1(0) ack 1001 <sack 2001:3002>
        +0~.3 > . 1001:2001(1000) ack 1
        ignore 0
        +.1 < . 1:1(0) ack 3002
        none 5
    ";
    /// RFC 8985, 7: the FIN alone is lost.
    lost_fin: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        shutdown write
        > F. 1:1(0) ack 1
        +.15~.32 > F. 1:1(0) ack 1
        +.1 < . 1:1(0) ack 2
        none 5
    ";
    /// RFC 6675 and RFC 3168: a mark during recovery reduces nothing once more.
    mark_during_recovery: "
        config reno
        listen
        < SEC 0:0(0) win 65535 <mss 1000,sackOK>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 10000
        > ect0 . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:10001>
        > nonect . 1:1001(1000) ack 1
        +.05 < E. 1:1(0) ack 1 <sack 1001:10001>
        ignore 0
        +.05 < . 1:1(0) ack 10001
        send 20000
        sends 4 6 .05
    ";
}
