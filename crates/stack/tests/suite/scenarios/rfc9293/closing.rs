//! 3.6, 3.10.7.4: closing a connection, and segments in the states that follow.

scenarios! {
    /// 3.6, figure 12: the stack closes first, and the peer later.
    active_close: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        state closed
        +.1 < . 1:1(0) ack 2
        state closed
        send error closed
        peer known
        +1 < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        state over
        recv eof
        shutdown write error notconnected
        peer notconnected
        close
        sizes 0 1
    ";
    /// 3.6: the peer acknowledges the FIN with its own.
    active_close_with_one_answer: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        +.1 < F. 1:1(0) ack 2
        ack > . 2:2(0) ack 2
        close
        sizes 0 1
        none 10
    ";
    /// 3.6, figure 13: both sides close at the same time (CLOSING).
    simultaneous_close: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        +.05 < F. 1:1(0) ack 1
        ack > . 2:2(0) ack 2
        state over
        +.05 < . 2:2(0) ack 2
        close
        sizes 0 1
        none 10
    ";
    /// 3.10.7.4, eighth: in CLOSING the stack repeats its FIN until it is acknowledged.
    closing_repeats_the_fin: "
        passive rtt .1 win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        +.1 < F. 1:1(0) ack 1
        ack > . 2:2(0) ack 2
        +.1~.3 > F. 1:1(0) ack 2
        +.1 < . 2:2(0) ack 2
        close
        sizes 0 1
    ";
    /// 3.6: the peer closes first, then the stack (CLOSE-WAIT, LAST-ACK).
    passive_close: "
        passive win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        state peerclosed
        recv eof
        shutdown write
        > F. 1:1(0) ack 2
        state over
        +.1 < . 2:2(0) ack 2
        close
        sizes 0 0
        < . 2:2(0) ack 2
        > R 2:2(0)
    ";
    /// 3.6: data and FIN in one segment.
    data_and_fin: "
        passive win 65535 <mss 1000>
        < F. 1:501(500) ack 1
        ack > . 1:1(0) ack 502
        recv 500
        recv eof
        state peerclosed
    ";
    /// 3.10.4: a FIN follows written data, alone or in the last segment.
    fin_follows_written_data: "
        passive win 65535 <mss 1000>
        send 2500
        > . 1:2001(1000x2) ack 1
        ?> P. 2001:2501(500) ack 1
        shutdown write
        ignore .05
        +.05 < . 1:1(0) ack 2001
        ignore 0
        +.1 < . 1:1(0) ack 2502
        none .5
        state closed
    ";
    /// 3.10.4: a FIN with the last data.
    fin_with_data: "
        passive win 65535 <mss 1000>
        nodelay
        send 500
        > P. 1:501(500) ack 1
        shutdown write
        > F. 501:501(0) ack 1
        +.1 < . 1:1(0) ack 502
        none .5
    ";
    /// 3.6 (MUST-15): the other direction stays open after a close of one (half-close).
    half_close_by_the_stack: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        +.1 < . 1:1(0) ack 2
        +100 < . 1:1001(1000) ack 2
        ack > . 2:2(0) ack 1001
        recv 1000
        +100 < . 1001:2001(1000) ack 2
        ack > . 2:2(0) ack 2001
        recv 1000
        < F. 2001:2001(0) ack 2
        ack > . 2:2(0) ack 2002
        recv eof
    ";
    /// 3.6: the stack sends on after the peer's FIN.
    half_close_by_the_peer: "
        passive win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        +10 send 3000
        > . 1:3001(1000x3) ack 2
        +.1 < . 2:2(0) ack 3001
        send 1000
        > . 3001:4001(1000) ack 2
        +.1 < . 2:2(0) ack 4001
        close
        > F. 4001:4001(0) ack 2
        +.1 < . 2:2(0) ack 4002
        sizes 0 0
    ";
    /// 3.10.7.4, seventh: data in FIN-WAIT-1, before the FIN is acknowledged.
    data_in_fin_wait_1: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        +.05 < . 1:1001(1000) ack 1
        ack > . 2:2(0) ack 1001
        recv 1000
        < F. 1001:1001(0) ack 2
        ack > . 2:2(0) ack 1002
    ";
    /// 3.10.7.4, eighth: the stack acknowledges a repeated FIN in CLOSE-WAIT.
    fin_twice: "
        passive win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        +1 < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        state peerclosed
    ";
    /// 3.10.7.4, seventh: data after the peer's FIN is no data.
    data_after_the_fin: "
        passive win 65535 <mss 1000>
        < F. 1:101(100) ack 1
        ack > . 1:1(0) ack 102
        +1 < . 102:202(100) ack 1
        ?> . 1:1(0) ack 102
        none .1
        recv 100
        recv eof
    ";
    /// 3.10.7.4, eighth: a FIN beyond a hole counts only once the hole is filled.
    fin_beyond_a_hole: "
        passive win 65535 <mss 1000>
        < F. 1001:1501(500) ack 1
        > . 1:1(0) ack 1
        state established
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1501..1502
        +1 < F. 1501:1501(0) ack 1
        ack > . 1:1(0) ack 1502
        state peerclosed
        recv 1500
        recv eof
    ";
    /// 3.10.7.4, eighth: a bare FIN beyond a hole.
    bare_fin_beyond_a_hole: "
        passive win 65535 <mss 1000>
        < F. 1001:1001(0) ack 1
        ack > . 1:1(0) ack 1
        state established
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001..1002
        +1 < F. 1001:1001(0) ack 1
        ack > . 1:1(0) ack 1002
        recv 1000
        recv eof
    ";
    /// 3.8.1: the stack repeats a lost FIN, with the timeout of data.
    fin_is_repeated: "
        passive rtt .1 win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        +.3 > F. 1:1(0) ack 1
        +.6 > F. 1:1(0) ack 1
        +1.2 > F. 1:1(0) ack 1
        +.1 < . 1:1(0) ack 2
        none 10
        state closed
    ";
    /// 3.8.1: the stack repeats the FIN of LAST-ACK.
    last_ack_repeats_the_fin: "
        passive rtt .1 win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        close
        > F. 1:1(0) ack 2
        +.3 > F. 1:1(0) ack 2
        +.6 > F. 1:1(0) ack 2
        +.1 < . 2:2(0) ack 2
        sizes 0 0
        none 10
    ";
    /// 3.10.7.4, fifth: data is acknowledged, and the FIN is not.
    fin_lost_after_data: "
        passive rtt .1 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        shutdown write
        > F. 1001:1001(0) ack 1
        +.1 < . 1:1(0) ack 1001
        +.2~.4 > F. 1001:1001(0) ack 1
        +.1 < . 1:1(0) ack 1002
        none 5
    ";
    /// 3.10.7.4, second: a reset ends the connection in each state that has closed a direction.
    reset_in_fin_wait_1: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < R 1:1(0)
        recv error reset
        none 5
        close
        sizes 0 0
    ";
    /// 3.10.7.4, second.
    reset_in_fin_wait_2: "
        passive win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        < R 1:1(0)
        recv error reset
        none 5
        close
        sizes 0 0
    ";
    /// 3.10.7.4, second. As on Linux, the end of the stream stays what reads return, and a write says that the peer takes no
    /// more data.
    reset_in_close_wait: "
        passive win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        < R 2:2(0)
        recv eof
        send error broken
        recv eof
        send error closed
        none 5
        close
        sizes 0 0
    ";
    /// 3.10.7.4, second: also a side that reads no more hears of the reset.
    reset_after_a_shutdown_of_reading: "
        passive win 65535 <mss 1000>
        shutdown read
        recv eof
        < R 1:1(0)
        recv error reset
        recv eof
        close
        sizes 0 0
    ";
    /// 3.10.7.4, second.
    reset_in_last_ack: "
        passive win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        close
        > F. 1:1(0) ack 2
        < R 2:2(0)
        none 5
        sizes 0 0
    ";
    /// 3.10.7.4, second.
    reset_in_closing: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 1
        ack > . 2:2(0) ack 2
        < R 2:2(0)
        none 5
        sizes 0 ..1
    ";
    /// 3.10.5: an abort resets the connection.
    abort: "
        passive win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        abort
        > R. 1001:1001(0) ack 1 | R 1001:1001(0)
        send error aborted
        none 5
        close
        sizes 0 0
        < . 1:1(0) ack 1001
        > R 1001:1001(0)
    ";
    /// 3.10.4: a close before the handshake ends sends nothing more.
    close_in_syn_sent: "
        connect
        > S 0:0(0)
        close
        none 10
        sizes 0 0
        < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > R 1:1(0)
    ";
}
