//! RFC 6298: the retransmission timer.

scenarios! {
    /// 2.1: the first timeout of a SYN is one second; 5.5: it doubles.
    syn_timeout: "
        connect
        > S 0:0(0)
        +1 > S 0:0(0)
        +2 > S 0:0(0)
        +4 > S 0:0(0)
        +8 > S 0:0(0)
        +16 > S 0:0(0)
        none 28.5
        state connecting
        none 2
        recv error timedout
    ";
    /// 2.1, 5.5: the same for a SYN-ACK.
    syn_ack_timeout: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +1 > S. 0:0(0) ack 1
        +2 > S. 0:0(0) ack 1
        +4 > S. 0:0(0) ack 1
        +5 < . 1:1(0) ack 1
        accept
        none 5
    ";
    /// 2.2: RTO = R + 4 * R/2 after the first measurement, that of the handshake.
    first_measurement_of_a_passive_open: "
        passive rtt .1 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        +.3 > . 1:1001(1000) ack 1
    ";
    /// 2.2: the same for an active open.
    first_measurement_of_an_active_open: "
        active rtt .2 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        +.6 > . 1:1001(1000) ack 1
    ";
    /// 2.3: the variance falls with a second measurement that equals the first.
    second_measurement: "
        passive rtt .4 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        +.4 < . 1:1(0) ack 1001
        send 1000
        > . 1001:2001(1000) ack 1
        +1.0~1.2 > . 1001:2001(1000) ack 1
    ";
    /// 2.3: a longer measurement raises the timeout: SRTT .45, RTTVAR .25, RTO 1.45.
    longer_measurement: "
        passive rtt .4 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        +.8 < . 1:1(0) ack 1001
        send 1000
        > . 1001:2001(1000) ack 1
        +1.45 > . 1001:2001(1000) ack 1
    ";
    /// 2.4: no timeout is below 200 ms.
    least_timeout: "
        passive rtt .001 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        +.2~.21 > . 1:1001(1000) ack 1
    ";
    /// 5.5, 2.5: the timeout doubles up to 60 seconds.
    doubling: "
        passive rtt .1 win 65535 <mss 500>
        send 500
        > . 1:501(500) ack 1
        +.3 > . 1:501(500) ack 1
        +.6 > . 1:501(500) ack 1
        +1.2 > . 1:501(500) ack 1
        +2.4 > . 1:501(500) ack 1
        +4.8 > . 1:501(500) ack 1
        +9.6 > . 1:501(500) ack 1
        +19.2 > . 1:501(500) ack 1
        +38.4 > . 1:501(500) ack 1
        +60 > . 1:501(500) ack 1
        +60 > . 1:501(500) ack 1
        +1 < . 1:1(0) ack 501
        unsent 0
        state established
    ";
    /// 5.2: no timer runs when all is acknowledged.
    no_timer_without_data_in_flight: "
        passive rtt .1 win 65535 <mss 1000>
        send 3000
        > . 1:3001(1000x3) ack 1
        +.1 < . 1:1(0) ack 3001
        none 1000
    ";
    /// 5.3: an acknowledgement of new data restarts the timer.
    timer_restarts: "
        passive rtt .1 win 65535 <mss 1000>
        send 2000
        > . 1:2001(1000x2) ack 1
        +.2 < . 1:1(0) ack 1001
        none .2
        +0~.3 > . 1001:2001(1000) ack 1
    ";
    /// 5.1: the timer counts from the first segment in flight; a later one does not restart it.
    timer_is_not_restarted_by_sending: "
        passive rtt .1 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        +.2 send 1000
        > . 1001:2001(1000) ack 1
        +.1 > . 1:1001(1000) ack 1
    ";
    /// 3 (Karn): the answer to a retransmission measures nothing, and a later one ends the backoff.
    karn: "
        passive rtt .1 win 65535 <mss 500>
        send 500
        > . 1:501(500) ack 1
        +.3 > . 1:501(500) ack 1
        +.6 > . 1:501(500) ack 1
        +1.2 > . 1:501(500) ack 1
        +.01 < . 1:1(0) ack 501
        send 500
        > . 501:1001(500) ack 1
        +.1 < . 1:1(0) ack 1001
        send 500
        > . 1001:1501(500) ack 1
        +.25~.3 > . 1001:1501(500) ack 1
    ";
    /// 3: a timestamp tells which of the two the peer answers.
    timestamps_measure_a_retransmission: "
        passive rtt .1 win 65535 <mss 1012,TS>
        send 1000
        > . 1:1001(1000) ack 1 <TS>
        +.3 > . 1:1001(1000) ack 1 <TS>
        +.1 < . 1:1(0) ack 1001 <TS>
        send 1000
        > . 1001:2001(1000) ack 1 <TS>
        +.25~.62 > . 1001:2001(1000) ack 1 <TS>
    ";
    /// 5.7: after a lost SYN the timeout of data begins at three seconds.
    lost_syn: "
        connect
        > S 0:0(0)
        +1 > S 0:0(0)
        +.1 < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > . 1:1(0) ack 1
        send 1000
        > . 1:1001(1000) ack 1
        +3 > . 1:1001(1000) ack 1
    ";
    /// 5.4: a timeout retransmits only the first segment.
    one_segment_per_timeout: "
        passive rtt .1 win 65535 <mss 1000>
        send 5000
        > . 1:5001(1000x5) ack 1
        +.3 > . 1:1001(1000) ack 1
        none .5
    ";
    /// 5.5: each segment of a window may time out.
    timeout_after_timeout: "
        passive rtt .1 win 65535 <mss 1000>
        send 2000
        > . 1:2001(1000x2) ack 1
        +.3 > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 1001
        +0~1 > . 1001:2001(1000) ack 1
        +.1 < . 1:1(0) ack 2001
        none 5
        unsent 0
    ";
    /// 5 and RFC 1122, 4.2.3.1 (Karn): the doubled timeout stays until a measurement, so that a path
    /// whose round trip has grown is measured at all.
    doubled_timeout_stays: "
        passive rtt .1 win 65535 <mss 500>
        send 500
        > . 1:501(500) ack 1
        +.3 > . 1:501(500) ack 1
        +.6 > . 1:501(500) ack 1
        # The answer to the first, after a second: the round trip is longer now.
        +.1 < . 1:1(0) ack 501
        send 500
        > . 501:1001(500) ack 1
        none .95
        +.05 < . 1:1(0) ack 1001
        send 500
        > . 1001:1501(500) ack 1
        none .95
        +.05 < . 1:1(0) ack 1501
    ";
    /// 5 and RFC 7323, 4: the same, where timestamps could measure the answer to the first.
    round_trip_grows_with_timestamps: "
        passive rtt .1 win 65535 <mss 512,TS>
        send 500
        > . 1:501(500) ack 1 <TS val $first ecr *>
        +.3 > . 1:501(500) ack 1 <TS>
        +.6 > . 1:501(500) ack 1 <TS>
        +.1 < . 1:1(0) ack 501 <TS val 6000000 ecr $first>
        send 500
        > . 501:1001(500) ack 1 <TS val $second ecr *>
        none .95
        +.05 < . 1:1(0) ack 1001 <TS val 6001000 ecr $second>
        unsent 0
    ";
}
