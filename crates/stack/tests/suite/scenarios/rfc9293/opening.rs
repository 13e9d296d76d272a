//! 3.5, 3.10.7.1 to 3.10.7.3: opening a connection, and segments without one.

scenarios! {
    /// 3.5: the peer opens the connection.
    passive_open: "
        listen
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1 <mss 1460>
        accept none
        +.1 < . 1:1(0) ack 1
        accept
        state established
        none 5
    ";
    /// 3.5: the stack opens the connection.
    active_open: "
        connect
        > S 0:0(0) win 1.. <mss 1460>
        state connecting
        peer notconnected
        send error wouldblock
        +.1 < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > . 1:1(0) ack 1
        state established
        peer known
        none 5
    ";
    /// 3.10.4: a close ends an attempt to connect.
    shutdown_while_connecting: "
        connect
        > S 0:0(0)
        shutdown write
        recv error reset
        recv eof
        send error closed
        shutdown write error notconnected
        none 5
        close
        sizes 0 0
    ";
    /// 3.5: the last segment of the handshake may have data.
    data_with_the_last_segment_of_the_handshake: "
        listen
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1
        +.1 < P. 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        accept
        recv 100
        recv none
    ";
    /// 3.10.7.2: data of a SYN is kept, or the peer sends it again.
    data_of_a_syn: "
        listen
        < S 0:100(100) win 65535 <mss 1460>
        > S. 0:0(0) ack 1..101
        +.1 < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        accept
        recv 100
        recv none
    ";
    /// 3.10.7.3, fifth: the peer repeats its SYN-ACK, since the acknowledgement was lost.
    syn_ack_twice: "
        active rtt .1 win 65535 <mss 1000>
        +1 < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > . 1:1(0) ack 1
        state established
    ";
    /// 3.10.7.4, first: the peer repeats its SYN; either answer tells it the same.
    syn_twice: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.5 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1 | . 1:1(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
    ";
    /// 3.5, figure 7 (MUST-10): both sides open at the same time.
    simultaneous_open: "
        connect
        > S 0:0(0)
        +.05 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        state connecting
        +.05 < S. 0:0(0) ack 1 win 65535 <mss 1000>
        ?> . 1:1(0) ack 1
        < . 1:1(0) ack 1
        state established
        send 1000
        > . 1:1001(1000) ack 1
        +.1 < . 1:101(100) ack 1001
        ack > . 1001:1001(0) ack 101
        recv 100
    ";
    /// 3.5: in a simultaneous open, the acknowledgement of the stack's SYN alone is enough.
    simultaneous_open_with_a_bare_acknowledgement: "
        connect
        > S 0:0(0)
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        state established
    ";
    /// 3.5, figure 8: a reset answers the SYN-ACK that an old SYN caused, and the listener forgets it.
    old_syn_before_the_new: "
        listen
        < S -500:-500(0) win 65535 <mss 1000>
        > S. 0:0(0) ack -499
        < R -499:-499(0)
        sizes 0 0
        +.1 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        accept
    ";
    /// 3.10.7.3, second: a reset that acknowledges the SYN refuses the connection.
    refused: "
        connect
        > S 0:0(0)
        +.1 < R. 0:0(0) ack 1
        recv error refused
        none 5
        sizes * 0
        close
        sizes 0 0
    ";
    /// 3.10.7.3, second: a reset without acknowledgement proves nothing before the handshake.
    reset_without_acknowledgement_in_syn_sent: "
        connect
        > S 0:0(0)
        +.1 < R 0:0(0)
        none .1
        state connecting
        error none
    ";
    /// 3.10.7.3, first: a reset that acknowledges something else is dropped.
    reset_with_another_acknowledgement_in_syn_sent: "
        connect
        > S 0:0(0)
        +.1 < R. 0:0(0) ack 77
        none .1
        state connecting
        < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > . 1:1(0) ack 1
    ";
    /// 3.10.7.3, first: an acknowledgement of something else gets a reset. The first one brings the SYN forward.
    another_acknowledgement_in_syn_sent: "
        connect
        > S 0:0(0)
        +.1 < . 5:5(0) ack 77
        > R 77:77(0)
        > S 0:0(0)
        state connecting
        < S. 0:0(0) ack 77 win 65535 <mss 1000>
        > R 77:77(0)
        state connecting
        < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > . 1:1(0) ack 1
        state established
    ";
    /// 3.10.7.3, first: the stack's SYN is not acknowledged by its own number.
    acknowledgement_of_nothing_in_syn_sent: "
        connect
        > S 0:0(0)
        +.1 < S. 0:0(0) ack 0 win 65535 <mss 1000>
        > R 0:0(0)
        > S 0:0(0)
        state connecting
    ";
    /// 3.10.7.3, fifth: a segment with neither SYN nor RST is dropped.
    nothing_useful_in_syn_sent: "
        connect
        > S 0:0(0)
        +.1 < . 1:101(100) ack 1
        none .1
        state connecting
        < F. 1:1(0) ack 1
        none .1
        state connecting
    ";
    /// 3.10.7.4, fifth: an acknowledgement of something else gets a reset in SYN-RECEIVED.
    another_acknowledgement_in_syn_received: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 77
        > R 77:77(0)
        accept none
        +.1 < . 1:1(0) ack 1
        accept
    ";
    /// 3.10.7.4, second: a reset returns a passive open to LISTEN.
    reset_in_syn_received: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.1 < R 1:1(0)
        none 5
        sizes 0 0
        accept none
    ";
    /// 3.10.7.4, eighth: FIN in the last segment of the handshake.
    fin_in_syn_received: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.1 < F. 1:101(100) ack 1
        ack > . 1:1(0) ack 102
        accept
        state peerclosed
        recv 100
        recv eof
    ";
    /// 3.10.7.1: a segment without a connection gets a reset, and a reset nothing.
    no_connection: "
        < S 0:0(0) win 65535 <mss 1000>
        > R. 0:0(0) ack 1
        +1 < S 0:10(10)
        > R. 0:0(0) ack 11
        +1 < . 1:1(0) ack 77
        > R 77:77(0)
        +1 < F. 1:101(100) ack 99
        > R 99:99(0)
        +1 < S. 0:0(0) ack 55
        > R 55:55(0)
        +1 < R 5:5(0)
        none .1
        < R. 5:5(0) ack 7
        none .1
    ";
    /// 3.10.7.2: a listener ignores a reset, and resets an acknowledgement.
    listen_state: "
        listen
        < R 0:0(0)
        none .1
        < SR 0:0(0)
        none .1
        < . 1:1(0) ack 77
        > R 77:77(0)
        < S. 0:0(0) ack 55
        > R 55:55(0)
        sizes 0 0
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
    ";
    /// 3.10.7.2, fourth: a listener ignores segments that have no SYN and no acknowledgement.
    listen_state_without_syn: "
        listen
        < F 0:0(0)
        none .1
        < - 0:100(100)
        none .1
        < FPU 0:100(100) urg 3
        none .1
        sizes 0 0
    ";
    /// 3.4: the peer's sequence numbers wrap.
    peers_numbers_wrap: "
        isn 4294966795
        passive win 65535 <mss 1000>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001
        recv 1000
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1001
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 3001
        recv 2000
    ";
    /// 3.4: the peer's SYN has the last sequence number.
    peers_syn_wraps: "
        isn 4294967295
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        recv 100
        < F. 101:101(0) ack 1
        ack > . 1:1(0) ack 102
    ";
    /// 3.4: the stack's sequence numbers wrap.
    stacks_numbers_wrap: "
        listen
        wrap 5000
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 4001
        < . 1:1(0) ack 10001
        unsent 0
        send 1000
        > . 10001:11001(1000) ack 1
    ";
    /// 3.4: a retransmission where the stack's sequence numbers wrap.
    stacks_numbers_wrap_in_a_retransmission: "
        listen
        wrap 500
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 1000
        > . 1:1001(1000) ack 1
        +.3 > . 1:1001(1000) ack 1
        < . 1:1(0) ack 1001
        none 2
    ";
    /// 3.10.7.2, third: a SYN may have other flags and an urgent pointer.
    syn_with_other_flags: "
        listen
        < SPU 0:0(0) win 65535 urg 1 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        accept
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        recv 100
    ";
    /// 3.10.7.1: a closed port and a port with a connection of another peer.
    other_peers_segments: "
        passive win 65535 <mss 1000>
        @1 < . 1:1(0) ack 500
        > R 500:500(0)
        @1 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        @1 < R 1:1(0)
        @0 state established
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
    ";
}
