//! RFC 5681: congestion control; RFC 6928: the initial window; RFC 6582: NewReno.

scenarios! {
    /// RFC 6928, 2: ten segments.
    initial_window: "
        passive rtt .1 win 65535 <mss 1000>
        send 20000
        > . 1:10001(1000x10) ack 1
        none .05
    ";
    /// RFC 6928, 2: ten segments of the largest size of an Ethernet.
    initial_window_of_full_segments: "
        active rtt .1 win 65535 <mss 1460>
        send 40000
        > . 1:14601(1460x10) ack 1
        none .05
    ";
    /// RFC 6928, 2: the same with segmentation offload.
    initial_window_with_offload: "
        config tso
        active rtt .1 win 65535 <mss 1460>
        send 40000
        > . 1:14601(1460x10) ack 1
        none .05
    ";
    /// RFC 6928, 2: the same with timestamps, which leave less room for data.
    initial_window_with_timestamps: "
        config tso
        passive rtt .1 win 65535 <mss 1460,sackOK,TS,wscale 7>
        send 40000
        > . 1:14481(1448x10) ack 1 <TS>
        sends 0 1 .05
    ";
    /// 3.1: slow start: a segment more for each one that is acknowledged.
    slow_start: "
        passive rtt .1 win 65535 <mss 1000>
        send 40000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1001
        > . 10001:12001(1000x2) ack 1
        < . 1:1(0) ack 2001
        > . 12001:14001(1000x2) ack 1
        < . 1:1(0) ack 4001
        > . 14001:17001(1000x3) ack 1
        ?> . 17001:18001(1000) ack 1
        none .02
    ";
    /// 3.1: acknowledgements of single bytes do not open the window faster.
    divided_acknowledgements: "
        passive rtt .1 win 65535 <mss 1000>
        send 40000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 101
        ?> . 10001:11001(1000) ack 1
        <+ . 1:1(0) ack 201
        <+ . 1:1(0) ack 301
        < . 1:1(0) ack 401
        sends 0 1 0
    ";
    /// 3.1: after a timeout the window is one segment, and slow start begins anew.
    timeout: "
        config reno
        passive rtt .1 win 65535 <mss 1000>
        send 5000
        > . 1:5001(1000x5) ack 1
        +.3 > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 1001
        > . 1001:3001(1000x2) ack 1
        +.1 < . 1:1(0) ack 3001
        > . 3001:5001(1000x2) ack 1
        +.1 < . 1:1(0) ack 5001
        none 5
        unsent 0
    ";
    /// 3.1: after a timeout, beyond half of the data in flight, congestion avoidance.
    congestion_avoidance: "
        config reno
        passive rtt .1 win 65535 <mss 1000>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.3 > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        ignore 2
        send 60000
        sends 1 6 0
        < . 1:1(0) ack 11001
        ignore 0
        < . 1:1(0) ack 12001
        ignore 0
        < . 1:1(0) ack 13001
        ignore 0
        < . 1:1(0) ack 14001
        ignore 0
        # The window is five segments or a little more: ssthresh is half of ten.
        < . 1:1(0) ack 15001
        sends 1 2 0
        < . 1:1(0) ack 16001
        sends 1 2 0
        < . 1:1(0) ack 17001
        sends 1 2 0
        < . 1:1(0) ack 18001
        sends 1 2 0
    ";
    /// 3.2: three duplicates of an acknowledgement are a loss.
    fast_retransmit: "
        passive rtt .1 win 65535 <mss 1000>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        none .01
        < . 1:1(0) ack 1
        > . 1:1001(1000) ack 1
        < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        none .05
        +.05 < . 1:1(0) ack 10001
        unsent 0
        none 5
    ";
    /// 3.2: two duplicates are none.
    two_duplicates: "
        passive rtt .1 win 65535 <mss 1000>
        send 5000
        > . 1:5001(1000x5) ack 1
        +.1 < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        none .1
        < . 1:1(0) ack 5001
        none 5
    ";
    /// 2: an acknowledgement with another window is no duplicate.
    window_updates_are_no_duplicates: "
        passive rtt .1 win 65535 <mss 1000>
        send 5000
        > . 1:5001(1000x5) ack 1
        +.1 < . 1:1(0) ack 1 win 60001
        < . 1:1(0) ack 1 win 60002
        < . 1:1(0) ack 1 win 60003
        < . 1:1(0) ack 1 win 60004
        none .1
        < . 1:1(0) ack 5001
        unsent 0
    ";
    /// 2: segments with data are no duplicates.
    data_is_no_duplicate: "
        passive rtt .1 win 65535 <mss 1000>
        send 5000
        > . 1:5001(1000x5) ack 1
        +.1 < . 1:101(100) ack 1
        < . 101:201(100) ack 1
        < . 201:301(100) ack 1
        < . 301:401(100) ack 1
        ignore .02
        < . 401:401(0) ack 1
        none .05
        < . 401:401(0) ack 5001
        unsent 0
    ";
    /// 2: acknowledgements are no duplicates if nothing is in flight.
    duplicates_without_data_in_flight: "
        passive rtt .1 win 65535 <mss 1000>
        < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        none .1
        send 1000
        > . 1:1001(1000) ack 1
        none .1
    ";
    /// 3.2 and RFC 3042: the first two duplicates may each send a new segment, and no more.
    limited_transmit: "
        passive rtt .1 win 65535 <mss 1000>
        send 20000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1
        ?> . 10001:11001(1000) ack 1
        < . 1:1(0) ack 1
        ?> . 11001:12001(1000) ack 1
        < . 1:1(0) ack 1
        > . 1:1001(1000) ack 1
        sends 0 1 .05
    ";
    /// 3.2: the window after a loss is half of the data that was in flight (CUBIC: seven tenths).
    window_after_a_loss: "
        config reno
        passive rtt .1 win 65535 <mss 1000>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        send 20000
        sends 2 6 .05
    ";
    /// RFC 6582, 3.2, step 3: a partial acknowledgement retransmits the next lost segment.
    partial_acknowledgements: "
        passive rtt .1 win 65535 <mss 1000>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        > . 1:1001(1000) ack 1
        < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        +.1 < . 1:1(0) ack 4001
        > . 4001:5001(1000) ack 1
        +.1 < . 1:1(0) ack 7001
        > . 7001:8001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        none 5
        unsent 0
    ";
    /// RFC 6582, 3.2, step 2: duplicates of data from before a timeout are no new loss.
    duplicates_after_a_timeout: "
        passive rtt .1 win 65535 <mss 1000>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.3 > . 1:1001(1000) ack 1
        # The window is one segment, and only acknowledgements of new data let it grow (RFC 5681, 3.1).
        # One segment for each that has left the network does no harm.
        +.1 < . 1:1(0) ack 1
        sends 0 1 0
        < . 1:1(0) ack 1
        sends 0 1 0
        < . 1:1(0) ack 1
        sends 0 1 0
        < . 1:1(0) ack 1
        sends 0 1 .1
    ";
    /// 4.1: after a pause the window is at most the initial one.
    restart_after_idle: "
        passive rtt .1 win 65535 <mss 1000>
        send 20000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 5001
        ignore 0
        < . 1:1(0) ack 10001
        ignore 0
        +.1 < . 1:1(0) ack 15001
        ignore 0
        < . 1:1(0) ack 20001
        unsent 0
        none 30
        send 40000
        sends 2 10 .05
    ";
    /// 3.1, equation 4: the threshold is half of what was in flight, and not half of the window.
    loss_with_little_in_flight: "
        config reno
        passive rtt .1 win 65535 <mss 1000,wscale 7>
        send 30000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 2001
        ignore 0
        < . 1:1(0) ack 4001
        ignore 0
        < . 1:1(0) ack 6001
        ignore 0
        < . 1:1(0) ack 8001
        ignore 0
        < . 1:1(0) ack 10001
        ignore 0
        +.1 < . 1:1(0) ack 20001
        ignore 0
        < . 1:1(0) ack 30001
        unsent 0
        send 4000
        > . 30001:34001(1000x4) ack 1
        +.1 < . 1:1(0) ack 30001
        < . 1:1(0) ack 30001
        < . 1:1(0) ack 30001
        > . 30001:31001(1000) ack 1
        +.1 < . 1:1(0) ack 34001
        send 30000
        sends 2 6 .05
    ";
    /// RFC 5681, 3.2, step 6: the acknowledgement that ends a recovery leaves the window at the
    /// threshold, although it covers all that was reported before.
    window_after_recovery: "
        config reno
        passive rtt .1 win 65535 <mss 1000,sackOK,wscale 7>
        send 40000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:10001>
        > . 1:1001(1000) ack 1
        ignore 0
        +.1 < . 1:1(0) ack 14001
        sends 5 5 0
    ";
}
