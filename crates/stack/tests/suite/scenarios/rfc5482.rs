//! RFC 9293, 3.8.3 and RFC 5482: timeouts; RFC 2525: known problems of implementations.

scenarios! {
    /// RFC 9293, 3.8.3: a peer that acknowledges nothing is given up after the user timeout.
    user_timeout: "
        config user_timeout 10
        passive rtt .1 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        ignore 9.5
        state established
        error none
        ignore 1
        send error timedout
        none 100
    ";
    /// RFC 9293, 3.8.3: a peer that goes on but acknowledges nothing new is given up, too.
    user_timeout_without_progress: "
        config user_timeout 10
        passive rtt .1 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        ignore 4
        < . 1:11(10) ack 1
        ignore 4
        < . 11:21(10) ack 1
        ignore 3
        send error timedout
        none 100
    ";
    /// RFC 9293, 3.8.3: an acknowledgement in time keeps the connection.
    acknowledged_in_time: "
        config user_timeout 10
        passive rtt .1 win 65535 <mss 1000>
        send 500
        > P. 1:501(500) ack 1
        ignore 9
        < . 1:1(0) ack 501
        none 100
        send 500
        > P. 501:1001(500) ack 1
        ignore 9
        < . 1:1(0) ack 1001
        state established
        error none
    ";
    /// RFC 9293, 3.8.6.1: a peer that answers probes is not given up.
    closed_window_of_a_living_peer: "
        config user_timeout 10
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        send 1000
        answer 200 . 1:1(0) ack 101 win 0
        state established
        error none
    ";
    /// RFC 9293, 3.8.6.1: one that does not answer is.
    closed_window_of_a_dead_peer: "
        config user_timeout 10
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        send 1000
        ignore 9.5
        error none
        ignore 20
        send error timedout
    ";
    /// RFC 9293, 3.8.3: an attempt to connect ends after its own timeout.
    connect_timeout: "
        config connect_timeout 5
        connect
        > S 0:0(0)
        ignore 4.5
        state connecting
        ignore 1
        send error timedout
        none 100
    ";
    /// RFC 4987, 3.4: a half-open connection ends after its own timeout.
    syn_received_timeout: "
        config syn_received_timeout 5
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        ignore 10
        sizes 0 0
        < . 1:1(0) ack 1
        > R 1:1(0)
    ";
    /// RFC 9293, 3.6: a connection that the application has dropped ends although the peer is silent.
    orphan_with_data: "
        config orphan_timeout 5
        passive rtt .1 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        close
        ignore 4.5
        sizes 1 0
        ignore 2
        sizes 0 0
        none 100
    ";
    /// RFC 9293, 3.6: an orphan in FIN-WAIT-2 does not wait for ever.
    orphan_in_fin_wait_2: "
        config orphan_timeout 5
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        ignore 7
        sizes 0 ..1
        none 100
    ";
    /// RFC 9293, 3.6: the data of an orphan still goes out.
    orphan_sends: "
        passive rtt .1 win 2000 <mss 1000>
        send 4000
        > . 1:2001(1000x2) ack 1
        close
        +.1 < . 1:1(0) ack 2001 win 65535
        > . 2001:3001(1000) ack 1
        > F. 3001:4001(1000) ack 1
        +.1 < F. 1:1(0) ack 4002
        ack > . 4002:4002(0) ack 2
        sizes 0 1
    ";
    /// RFC 2525, 2.17: a close with unread data resets the connection.
    close_with_unread_data: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        close
        > R. 1:1(0) ack 101 | R 1:1(0)
        sizes 0 0
        none 5
    ";
    /// RFC 2525, 2.17: a close with data that arrived beyond a hole loses nothing that was acknowledged.
    close_with_data_beyond_a_hole: "
        passive win 65535 <mss 1000>
        < . 1001:1101(100) ack 1
        > . 1:1(0) ack 1
        close
        > F. 1:1(0) ack 1 | R. 1:1(0) ack 1 | R 1:1(0)
    ";
    /// RFC 2525, 2.17: a close after all is read ends with a FIN.
    close_after_reading: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        recv 100
        close
        > F. 1:1(0) ack 101
    ";
    /// RFC 2525, 2.16: data for a dropped connection gets a reset.
    data_after_a_close: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        < . 1:101(100) ack 2
        > R. 2:2(0) | R 2:2(0)
        sizes 0 0
        none 5
    ";
    /// RFC 9293, 3.9.1: data after the reader has shut its direction is discarded, and acknowledged.
    data_after_a_shutdown_of_reading: "
        passive win 65535 <mss 1000>
        shutdown read
        recv eof
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        recv eof
        send 100
        > P. 1:101(100) ack 101
    ";
    /// RFC 2525, 2.5: data beyond a hole is kept.
    data_beyond_a_hole_is_kept: "
        passive win 65535 <mss 1000>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1
        < . 3001:4001(1000) ack 1
        > . 1:1(0) ack 1
        < . 5001:6001(1000) ack 1
        > . 1:1(0) ack 1
        < . 1:1001(1000) ack 1
        > . 1:1(0) ack 4001
        < . 4001:5001(1000) ack 1
        > . 1:1(0) ack 6001
        recv 6000
    ";
    /// RFC 2525, 2.15: a FIN of the peer is reported at once.
    fin_is_reported: "
        passive win 65535 <mss 1000>
        < F. 1:1(0) ack 1
        ack > . 1:1(0) ack 2
        recv eof
    ";
    /// RFC 9293, 3.10.4: a listener that stops resets its connections that were not accepted.
    listener_stops: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        unlisten
        > R. 1:1(0) ack 1 | R 1:1(0)
        < . 1:1(0) ack 1
        > R 1:1(0)
    ";
    /// RFC 9293, 3.9.1: a full backlog delays the next connection, and does not refuse it.
    backlog: "
        listen 1
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        @1 < S 0:0(0) win 65535 <mss 1000>
        ?> S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        ignore .5
        @0 accept
        +1 @1 < S 0:0(0) win 65535 <mss 1000>
        ignore 0
        < . 1:1(0) ack 1
        ignore 0
        accept
    ";
    /// RFC 9293, 3.8.3: the user timeout of a FIN.
    user_timeout_of_a_fin: "
        config user_timeout 10
        passive rtt .1 win 65535 <mss 1000>
        shutdown write
        > F. 1:1(0) ack 1
        ignore 9.5
        error none
        ignore 1
        recv error timedout
    ";
    /// RFC 9293, 3.8.3: a peer that acknowledges ever the same is not silent, and yet gets no data.
    peer_that_repeats_itself: "
        config user_timeout 100
        passive rtt .1 win 65535 <mss 500>
        send 500
        > P. 1:501(500) ack 1
        answer 50 . 1:1(0) ack 1
        state established
        < . 1:1(0) ack 501
        unsent 0
        none 100
    ";
}
