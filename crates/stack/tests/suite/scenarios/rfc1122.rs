//! RFC 1122, 4.2.3.2, 4.2.3.6: delayed acknowledgements, and keep-alive.

scenarios! {
    /// 4.2.3.2: the acknowledgement of a small segment waits for a bounded time.
    small_segment: "
        passive win 65535 <mss 1460>
        < P. 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        none 1
    ";
    /// 4.2.3.2: the time is the configured one at most.
    configured_delay: "
        config ack_delay .2
        passive win 65535 <mss 1460>
        < P. 1:101(100) ack 1
        +0~.2 > . 1:1(0) ack 101
        none 1
    ";
    /// An application may have all data acknowledged at once (`TCP_QUICKACK`), also data that waits for it.
    acknowledged_at_once: "
        config ack_delay .2
        passive win 65535 <mss 1460>
        < P. 1:101(100) ack 1
        quickack on
        +0~.01 > . 1:1(0) ack 101
        < P. 101:201(100) ack 1
        +0~.01 > . 1:1(0) ack 201
        < P. 201:301(100) ack 1
        +0~.01 > . 1:1(0) ack 301
        quickack off
        recv 300
        < P. 301:401(100) ack 1
        none .02
        +0~.2 > . 1:1(0) ack 401
    ";
    /// 4.2.3.2: every second full segment is acknowledged at once.
    every_second_segment: "
        config ack_delay .2
        passive win 65535 <mss 1460>
        < . 1:1461(1460) ack 1
        ?> . 1:1(0) ack 1461
        < . 1461:2921(1460) ack 1
        > . 1:1(0) ack 2921
        < . 2921:4381(1460) ack 1
        ?> . 1:1(0) ack 4381
        < . 4381:5841(1460) ack 1
        > . 1:1(0) ack 5841
        recv 5840
    ";
    /// 4.2.3.2: a single full segment is acknowledged within the delay.
    single_full_segment: "
        passive win 65535 <mss 1460>
        < . 1:1461(1460) ack 1
        ack > . 1:1(0) ack 1461
        none 1
    ";
    /// 4.2.3.2: several segments between two polls, and at least one acknowledgement for two.
    burst: "
        config ack_delay .2
        passive win 65535 <mss 1460>
        <+ . 1:1461(1460) ack 1
        <+ . 1461:2921(1460) ack 1
        <+ . 2921:4381(1460) ack 1
        < . 4381:5841(1460) ack 1
        until 0 . 1:1(0) ack 5841
        recv 5840
    ";
    /// 4.2.3.2: an acknowledgement rides on data.
    data_carries_the_acknowledgement: "
        passive win 65535 <mss 1460>
        < P. 1:101(100) ack 1
        recv 100
        send 50
        > P. 1:51(50) ack 101
        none .1
    ";
    /// RFC 5681, 4.2: data beyond a hole is acknowledged at once, and so is data that fills it.
    hole: "
        config ack_delay .2
        passive win 65535 <mss 1460>
        < . 101:201(100) ack 1
        > . 1:1(0) ack 1
        < . 201:301(100) ack 1
        > . 1:1(0) ack 1
        < . 301:401(100) ack 1
        > . 1:1(0) ack 1
        < . 1:101(100) ack 1
        > . 1:1(0) ack 401
    ";
    /// RFC 5681, 4.2: data that fills part of a hole is acknowledged at once too.
    part_of_a_hole: "
        config ack_delay .2
        passive win 65535 <mss 1460>
        < . 201:301(100) ack 1
        > . 1:1(0) ack 1
        < . 1:101(100) ack 1
        > . 1:1(0) ack 101
        < . 101:201(100) ack 1
        > . 1:1(0) ack 301
    ";
    /// 4.2.3.2: a duplicate is acknowledged at once.
    duplicate: "
        config ack_delay .2
        passive win 65535 <mss 1460>
        < . 1:101(100) ack 1
        +0~.2 > . 1:1(0) ack 101
        < . 1:101(100) ack 1
        > . 1:1(0) ack 101
    ";
    /// 4.2.3.6: a probe after the interval, with a sequence number that the peer has acknowledged.
    keep_alive: "
        passive win 65535 <mss 1000>
        keepalive 10
        +10 > . 0:0(0) ack 1 | . 0:1(1) ack 1
        +.1 < . 1:1(0) ack 1
        +9.8~10.1 > . 0:0(0) ack 1 | . 0:1(1) ack 1
        +.1 < . 1:1(0) ack 1
        +9.8~10.1 > . 0:0(0) ack 1 | . 0:1(1) ack 1
        state established
    ";
    /// 4.2.3.6: a peer that does not answer ten probes is gone.
    keep_alive_without_answer: "
        passive win 65535 <mss 1000>
        keepalive 1
        ignore 9.5
        state established
        ignore 3
        recv error timedout
        none 60
    ";
    /// 4.2.3.6: one answer is enough.
    keep_alive_answered_late: "
        passive win 65535 <mss 1000>
        keepalive 1
        ignore 9.5
        < . 1:1(0) ack 1
        ignore 9.5
        < . 1:1(0) ack 1
        state established
        error none
    ";
    /// 4.2.3.6: segments of the peer postpone the probe.
    keep_alive_after_data: "
        passive win 65535 <mss 1000>
        keepalive 10
        +6 < P. 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        +9.9~10.1 > . 0:0(0) ack 101 | . 0:1(1) ack 101
    ";
    /// 4.2.3.6 (default off): without it an idle connection sends nothing.
    no_keep_alive: "
        passive win 65535 <mss 1000>
        none 100000
        state established
        < P. 1:101(100) ack 1
        ack > . 1:1(0) ack 101
    ";
    /// 4.2.3.6: a reset answers the probe of a peer that has restarted.
    keep_alive_of_a_restarted_peer: "
        passive win 65535 <mss 1000>
        keepalive 1
        +1 > . 0:0(0) ack 1 | . 0:1(1) ack 1
        < R 1:1(0)
        recv error reset
        none 60
    ";
    /// 4.2.2.13: the application is told of a connection that the peer has reset.
    write_after_a_reset: "
        passive win 65535 <mss 1000>
        < R. 1:1(0) ack 1
        send error reset
        none 10
    ";
}
