//! RFC 7323: window scale, timestamps, PAWS.

scenarios! {
    /// 1.3, 2.2, 3.2: the stack's SYN offers both, and has no timestamp to echo.
    offers: "
        connect
        > S 0:0(0) <mss 1460,sackOK,wscale ..14,TS val * ecr 0>
    ";
    /// 3.2: the SYN-ACK echoes the SYN's timestamp.
    syn_ack_echoes: "
        listen
        < S 0:0(0) win 65535 <mss 1460,TS val 77 ecr 0>
        > S. 0:0(0) ack 1 <TS val * ecr 77,!wscale>
        < . 1:1(0) ack 1 <TS val 78 ecr 0>
        accept
    ";
    /// 3.2: without the peer's offer there are none.
    peer_without_timestamps: "
        connect
        > S 0:0(0) <TS>
        +.1 < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > . 1:1(0) ack 1 <!TS>
        send 1000
        > . 1:1001(1000) ack 1 <!TS>
    ";
    /// 3.2: after both offers each segment has them; the last of an active open too.
    active_open: "
        connect
        > S 0:0(0) <TS>
        +.1 < S. 0:0(0) ack 1 win 65535 <mss 1012,TS val 500 ecr 1>
        > . 1:1(0) ack 1 <TS val * ecr 500>
        send 1000
        > . 1:1001(1000) ack 1 <TS val * ecr 500>
    ";
    /// 4.1: the echo is the timestamp of the latest segment in order.
    echo: "
        passive win 65535 <mss 1460,TS>
        < . 1:101(100) ack 1 <TS val 6000000 ecr 1>
        ack > . 1:1(0) ack 101 <TS val * ecr 6000000>
        < . 101:201(100) ack 1 <TS val 6000005 ecr 1>
        ack > . 1:1(0) ack 201 <TS val * ecr 6000005>
    ";
    /// 4.3 (A): a delayed acknowledgement echoes the earliest segment that it covers.
    echo_of_a_delayed_acknowledgement: "
        passive win 65535 <mss 1472,TS>
        <+ . 1:1001(1000) ack 1 <TS val 6000000 ecr 1>
        < . 1001:2001(1000) ack 1 <TS val 6000005 ecr 1>
        ack > . 1:1(0) ack 1001 <TS val * ecr 6000000> | . 1:1(0) ack 2001 <TS val * ecr 6000000>
        ignore .05
    ";
    /// 4.3 (B): beyond a hole, the echo is that of the last segment in order.
    echo_beyond_a_hole: "
        passive win 65535 <mss 1460,TS>
        < . 1:101(100) ack 1 <TS val 6000000 ecr 1>
        ack > . 1:1(0) ack 101 <TS val * ecr 6000000>
        < . 201:301(100) ack 1 <TS val 6000005 ecr 1>
        > . 1:1(0) ack 101 <TS val * ecr 6000000>
        < . 301:401(100) ack 1 <TS val 6000006 ecr 1>
        > . 1:1(0) ack 101 <TS val * ecr 6000000>
        # 4.3 (C): the segment that fills the hole.
        < . 101:201(100) ack 1 <TS val 6000007 ecr 1>
        > . 1:1(0) ack 401 <TS val * ecr 6000007>
    ";
    /// 5.3, R1: an old timestamp drops the segment, and gets an acknowledgement (PAWS).
    paws: "
        passive win 65535 <mss 1460,TS>
        < . 1:101(100) ack 1 <TS val 6000000 ecr 1>
        ack > . 1:1(0) ack 101
        +1 < . 101:201(100) ack 1 <TS val 5999999 ecr 1>
        > . 1:1(0) ack 101 <TS val * ecr 6000000>
        recv 100
        recv none
        +1 < . 101:201(100) ack 1 <TS val 6000000 ecr 1>
        ack > . 1:1(0) ack 201
        recv 100
    ";
    /// 5.3: timestamps wrap.
    paws_wraps: "
        listen
        < S 0:0(0) win 65535 <mss 1460,TS val 4294967290 ecr 0>
        > S. 0:0(0) ack 1 <TS val * ecr 4294967290>
        < . 1:1(0) ack 1 <TS val 4294967295 ecr 1>
        accept
        < . 1:101(100) ack 1 <TS val 5 ecr 1>
        ack > . 1:1(0) ack 101 <TS val * ecr 5>
        recv 100
        +1 < . 101:201(100) ack 1 <TS val 4294967295 ecr 1>
        > . 1:1(0) ack 101
        recv none
    ";
    /// 5.2: a reset is never too old.
    paws_does_not_test_a_reset: "
        passive win 65535 <mss 1460,TS>
        < . 1:101(100) ack 1 <TS val 6000000 ecr 1>
        ack > . 1:1(0) ack 101
        < R 101:101(0) <TS val 5000 ecr 1>
        recv 100
        recv error reset
    ";
    /// 3.2: segments without timestamps after both sides agreed on them, from the handshake's last one to the FIN.
    segments_without_timestamps: "
        listen
        < S 0:0(0) win 65535 <mss 1460,TS val 77 ecr 0>
        > S. 0:0(0) ack 1 <TS val * ecr 77>
        < . 1:1(0) ack 1
        accept
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101 <TS val * ecr 77>
        recv 100
        send 100
        > P. 1:101(100) ack 101 <TS val * ecr 77>
        +.1 < . 101:101(0) ack 101
        < F. 101:101(0) ack 101
        ack > . 101:101(0) ack 102 <TS val * ecr 77>
        state peerclosed
    ";
    /// 5.3: the next segment with an older timestamp than the last one is old nevertheless.
    paws_after_a_segment_without_timestamps: "
        passive win 65535 <mss 1460,TS>
        < . 1:101(100) ack 1 <TS val 6000000 ecr 1>
        ack > . 1:1(0) ack 101
        < . 101:201(100) ack 1
        ack > . 1:1(0) ack 201 <TS val * ecr 6000000>
        +1 < . 201:301(100) ack 1 <TS val 5999999 ecr 1>
        > . 1:1(0) ack 201
        recv 200
        recv none
    ";
    /// 3.2: a reset needs no timestamps.
    reset_without_timestamps: "
        passive win 65535 <mss 1460,TS>
        < R 1:1(0)
        recv error reset
    ";
    /// 5.5: after 24 days without a segment, any timestamp is new.
    paws_after_24_days: "
        passive win 65535 <mss 1460,TS>
        < . 1:101(100) ack 1 <TS val 6000000 ecr 1>
        ack > . 1:1(0) ack 101
        none 2200000
        < . 101:201(100) ack 1 <TS val 5000000 ecr 1>
        ack > . 1:1(0) ack 201 <TS val * ecr 5000000>
        recv 200
    ";
    /// 5.4: the stack's timestamps grow with time.
    timestamps_grow: "
        passive win 65535 <mss 1012,TS>
        send 1000
        > . 1:1001(1000) ack 1 <TS val $a ecr *>
        < . 1:1(0) ack 1001 <TS>
        none 20
        send 1000
        > . 1001:2001(1000) ack 1 <TS val * ecr *>
        < . 1:1(0) ack 2001 <TS>
    ";
    /// 4.1: an acknowledgement that echoes nothing this side has sent does no harm.
    echo_that_lies: "
        passive rtt .1 win 65535 <mss 1012,TS>
        send 1000
        > . 1:1001(1000) ack 1 <TS>
        +.1 < . 1:1(0) ack 1001 <TS val 5001300 ecr 0>
        send 1000
        > . 1001:2001(1000) ack 1 <TS>
        +.2~1 > . 1001:2001(1000) ack 1 <TS>
        +.1 < . 1:1(0) ack 2001 <TS val 5001900 ecr 4000000000>
        send 1000
        > . 2001:3001(1000) ack 1 <TS>
        +.2~2 > . 2001:3001(1000) ack 1 <TS>
    ";
    /// 2.2: the peer's windows are scaled after the handshake.
    window_scale: "
        passive rtt .1 win 5 <mss 1000,wscale 10>
        send 10000
        > . 1:5001(1000x5) ack 1
        none .05
        +.05 < . 1:1(0) ack 5001 win 3
        > . 5001:8001(1000x3) ack 1
    ";
    /// 2.2: the window of a SYN-ACK is never scaled.
    window_of_a_syn_ack: "
        connect
        > S 0:0(0) <wscale *>
        +.1 < S. 0:0(0) ack 1 win 3000 <mss 1000,wscale 10>
        > . 1:1(0) ack 1
        send 10000
        > . 1:3001(1000x3) ack 1
        none .05
        +.05 < . 1:1(0) ack 3001 win 4
        > . 3001:7001(1000x4) ack 1
    ";
    /// 2.3: a scale above 14 is 14: the harness checks that the window of 16 384 bytes holds.
    window_scale_above_14: "
        passive rtt .1 win 1 <mss 1460,wscale 15>
        send 60000
        > . 1:14601(1460x10) ack 1
        < . 1:1(0) ack 2921
        ignore 0
        < . 1:1(0) ack 5841
        ignore 0
        < . 1:1(0) ack 8761
        ignore 0
        < . 1:1(0) ack 14601
        sends 1 10 .05
    ";
    /// 2.2: without the peer's offer, no window is scaled.
    peer_without_window_scale: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1 win 1..65535 <!wscale>
        < . 1:1(0) ack 1 win 3000
        accept
        send 10000
        > . 1:3001(1000x3) ack 1 win 1..65535
    ";
    /// 2.2: the stack's answer to an offer.
    peer_with_window_scale: "
        listen
        < S 0:0(0) win 65535 <mss 1000,wscale 0>
        > S. 0:0(0) ack 1 <wscale ..14>
        < . 1:1(0) ack 1 win 3000
        ?> . 1:1(0) ack 1
        accept
        send 10000
        > . 1:3001(1000x3) ack 1
    ";
    /// 3.2: zero is a timestamp like others.
    timestamp_of_zero: "
        listen
        < S 0:0(0) win 65535 <mss 1012,TS val 0 ecr 0>
        > S. 0:0(0) ack 1 <TS val * ecr 0>
        < . 1:1(0) ack 1 <TS val 0 ecr 0>
        accept
        < . 1:101(100) ack 1 <TS val 0 ecr 0>
        ack > . 1:1(0) ack 101 <TS val * ecr 0>
        send 1000
        > . 1:1001(1000) ack 101 <TS>
    ";
    /// 5.3, R2 and R3: a segment beside the window does not change what counts as old.
    paws_after_a_forged_segment: "
        passive win 65535 <mss 1460,TS>
        < . 1:101(100) ack 1 <TS val 6000000 ecr 1>
        ack > . 1:1(0) ack 101 <TS val * ecr 6000000>
        +1 < . 80001:80101(100) ack 1 <TS val 8000000 ecr 1>
        > . 1:1(0) ack 101 <TS val * ecr 6000000>
        +1 < . -80000:-79900(100) ack 1 <TS val 8000000 ecr 1>
        > . 1:1(0) ack 101 <TS val * ecr 6000000>
        < . 101:201(100) ack 1 <TS val 6000001 ecr 1>
        ack > . 1:1(0) ack 201 <TS val * ecr 6000001>
        recv 200
    ";
}
