//! 3.10.7.4: the reaction of each synchronized state to segments that do not fit it.

scenarios! {
    /// 3.10.7.4: SYN-RECEIVED and segments beside the handshake.
    syn_received: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        # Beside the window.
        < . 70001:70001(0) ack 1
        > . 1:1(0) ack 1
        # Without an acknowledgement.
        < - 1:101(100)
        none .1
        < F 1:1(0)
        none .1
        accept none
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        accept
        recv 100
    ";
    /// 3.10.7.4, fourth: another SYN in SYN-RECEIVED, of a peer that has restarted.
    restarted_peer_in_syn_received: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.1 < S 5000:5000(0) win 65535 <mss 1000>
        ignore .1
        # The peer answers an acknowledgement of the old connection.
        < R 1:1(0)
        ignore .1
        sizes ..1 0
        +.7 < S 5000:5000(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 5001
        < . 5001:5001(0) ack 1
        accept
    ";
    /// 3.10.7.4: FIN-WAIT-1.
    fin_wait_1: "
        passive rtt .1 win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < . 70001:70101(100) ack 1
        > . 2:2(0) ack 1
        < - 1:101(100)
        none .01
        # An acknowledgement of more than the FIN.
        < . 1:1(0) ack 3
        > . 2:2(0) ack 1
        < . 1:101(100) ack 3
        ?> . 2:2(0) ack 1
        none .01
        state closed
        < . 1:101(100) ack 2
        ack > . 2:2(0) ack 101
        recv 100
        none 2
    ";
    /// 3.10.7.4: FIN-WAIT-2.
    fin_wait_2: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        < . 1:1(0) ack 2
        < . 1:1(0) ack 1
        none .1
        < . 70001:70101(100) ack 2
        > . 2:2(0) ack 1
        < . 101:201(100) ack 2
        > . 2:2(0) ack 1
        < . 1:101(100) ack 2
        ack > . 2:2(0) ack 201
        recv 200
        < F. 201:201(0) ack 2
        ack > . 2:2(0) ack 202
        recv eof
        close
        sizes 0 1
    ";
    /// 3.10.7.4: CLOSE-WAIT.
    close_wait: "
        passive rtt .1 win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        < . 2:2(0) ack 1
        none .1
        < . 2:2(0) ack 9
        > . 1:1(0) ack 2
        send 100
        > P. 1:101(100) ack 2
        +.1 < . 2:2(0) ack 101
        unsent 0
        # The sequence number that the FIN had.
        < . 1:1(0) ack 101
        ?> . 101:101(0) ack 2
        none .1
        state peerclosed
    ";
    /// 3.10.7.4: CLOSING.
    closing: "
        passive rtt .1 win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 1
        ack > . 2:2(0) ack 2
        < F. 1:1(0) ack 1
        ack > . 2:2(0) ack 2
        < . 2:102(100) ack 1
        ?> . 2:2(0) ack 2
        none .05
        state over
        < . 2:2(0) ack 2
        none 2
        close
        sizes 0 1
    ";
    /// 3.10.7.4: LAST-ACK.
    last_ack: "
        passive rtt .1 win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        close
        > F. 1:1(0) ack 2
        # The peer repeats its FIN, since the acknowledgement was lost.
        +.05 < F. 1:1(0) ack 1
        ack > . 2:2(0) ack 2
        < . 2:2(0) ack 1
        none .05
        sizes 1 0
        < . 2:2(0) ack 2
        sizes 0 0
        none 2
    ";
    /// 3.6: both close at the same time, with data in flight.
    simultaneous_close_with_data: "
        passive rtt .1 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        shutdown write
        > F. 1001:1001(0) ack 1
        < F. 1:501(500) ack 1
        ack > . 1002:1002(0) ack 502
        recv 500
        recv eof
        +.05 < . 502:502(0) ack 1002
        close
        sizes 0 1
        none 5
    ";
    /// 3.10.7.4: the peer's FIN arrives while data is in flight.
    fin_with_data_in_flight: "
        passive rtt .1 win 65535 <mss 1000>
        send 3000
        > . 1:3001(1000x3) ack 1
        < F. 1:1(0) ack 1001
        ack > . 3001:3001(0) ack 2
        +.1 < . 2:2(0) ack 3001
        close
        > F. 3001:3001(0) ack 2
        < . 2:2(0) ack 3002
        sizes 0 0
    ";
    /// 3.10.7.4, fifth: the window falls to zero beneath data in flight, for long.
    window_closes_beneath_data_in_flight: "
        passive rtt .1 win 5000 <mss 500>
        send 2500
        > . 1:2501(500x5) ack 1
        +.1 < . 1:1(0) ack 501 win 0
        answer 3000 . 1:1(0) ack 501 win 0
        state established
        error none
        < . 1:1(0) ack 501 win 5000
        until 1 . 501:1001(500) ack 1
        ignore 0
        < . 1:1(0) ack 2501 win 5000
        unsent 0
        none 5
    ";
    /// 3.8.1: small segments may be sent again in one.
    small_segments_again: "
        passive rtt .1 win 65535 <mss 1000>
        nodelay
        send 100
        > . 1:101(100) ack 1
        send 100
        > . 101:201(100) ack 1
        send 100
        > . 201:301(100) ack 1
        +.3 > . 1:*(100..300) ack 1
        +.1 < . 1:1(0) ack 301
        none 5
        unsent 0
    ";
    /// 3.10.7.4, second: data of a reset means nothing.
    reset_with_data: "
        passive win 65535 <mss 1000>
        < R 1:11(10)
        recv error reset
        none 5
    ";
    /// 3.10.7.4: sequence numbers half of the space away are old.
    numbers_far_away: "
        passive win 65535 <mss 1000>
        < . 2147483648:2147483748(100) ack 1
        > . 1:1(0) ack 1
        +1 < . -2000000000:-1999999900(100) ack 1
        > . 1:1(0) ack 1
        +1 < . 1:101(100) ack 2147483000
        > . 1:1(0) ack 1
        state established
        recv none
    ";
    /// 3.10.7.4: a segment that begins before the window and ends beyond it.
    segment_larger_than_the_window: "
        config receive_buffer 4096
        passive win 65535 <mss 1000>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001
        <+ . 1001:2401(1400) ack 1
        <+ . 2401:3801(1400) ack 1
        < . 3701:5101(1400) ack 1
        ignore .05
        recv 3800
        ignore .05
        < . 4097:5497(1400) ack 1
        ignore .05
        recv 1696
        recv none
    ";
    /// 3.8.4: a connection of two hosts that both wait costs nothing.
    idle: "
        active win 65535 <mss 1000,sackOK,TS,wscale 7>
        none 1000000
        state established
        send 100
        > P. 1:101(100) ack 1 <TS>
    ";
    /// 3.10.7.4, eighth: two FINs that contradict each other do no harm.
    two_fins: "
        passive win 65535 <mss 1000>
        < F. 101:101(0) ack 1
        ignore .02
        < . 101:201(100) ack 1
        ignore .02
        < . 1:101(100) ack 1
        ignore .02
        < F. 201:201(0) ack 1
        ignore .02
        recv 100
        @1 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
    ";
    /// 3.10.5: an abort in CLOSE-WAIT.
    abort_in_close_wait: "
        passive win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        abort
        > R. 1:1(0) ack 2 | R 1:1(0)
        close
        sizes 0 0
    ";
    /// 3.10.5: an abort in FIN-WAIT-2.
    abort_in_fin_wait_2: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        abort
        > R. 2:2(0) ack 1 | R 2:2(0)
        close
        sizes 0 0
    ";
    /// 3.10.5: an abort in SYN-SENT sends nothing.
    abort_in_syn_sent: "
        connect
        > S 0:0(0)
        abort
        none 5
        close
        sizes 0 0
    ";
    /// 3.10.5: an abort in TIME-WAIT sends nothing, and the state stays.
    abort_in_time_wait: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        abort
        none 5
        close
        sizes 0 ..1
    ";
    /// 3.8.4: keep-alive in a half-closed connection.
    keep_alive_in_fin_wait_2: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        keepalive 10
        +10 > . 1:1(0) ack 1 | . 1:2(1) ack 1 | F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        +10 > . 1:1(0) ack 1 | . 1:2(1) ack 1 | F. 1:1(0) ack 1
        < R 1:1(0)
        recv error reset
    ";
    /// 3.10.7.3, fifth: a SYN-ACK with data; the peer sends it again unless it is acknowledged.
    syn_ack_with_data: "
        connect
        > S 0:0(0)
        < S. 0:100(100) ack 1 win 65535 <mss 1000>
        > . 1:1(0) ack 1..101
        ignore .05
        state established
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        recv 100
    ";
}
