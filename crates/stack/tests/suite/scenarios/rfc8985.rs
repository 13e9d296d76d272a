//! Recovery with a peer that acknowledges selectively: RFC 6675, RFC 6937 (PRR), RFC 8985 (RACK, TLP).

scenarios! {
    /// RFC 6675, 4 and RFC 8985, 6.2: three segments above a hole show a loss.
    three_segments_above_a_hole: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:2001>
        < . 1:1(0) ack 1 <sack 1001:3001>
        < . 1:1(0) ack 1 <sack 1001:4001>
        > . 1:1001(1000) ack 1
        < . 1:1(0) ack 1 <sack 1001:5001>
        < . 1:1(0) ack 1 <sack 1001:10001>
        none .05
        +.05 < . 1:1(0) ack 10001
        none 5
        unsent 0
    ";
    /// RFC 6675, 4: one acknowledgement may report them all.
    one_acknowledgement_for_three: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:10001>
        > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        none 5
    ";
    /// RFC 6675, 5: each hole with enough above it is retransmitted, and nothing else.
    several_holes: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 6001:10001 3001:5001 1001:2001>
        > . 1:1001(1000) ack 1
        > . 2001:3001(1000) ack 1
        > . 5001:6001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        none 5
        unsent 0
    ";
    /// RFC 6675, 5: with segmentation offload, only the holes are retransmitted.
    several_holes_with_offload: "
        config tso
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 6001:10001 4001:5001 1001:2001>
        > . 1:1001(1000) ack 1
        > . 2001:4001(1000x2) ack 1
        > . 5001:6001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        none 5
    ";
    /// RFC 8985, 6.2: a single segment above a hole shows a loss after a quarter of the round trip.
    reordering_timer: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 2000
        > . 1:2001(1000x2) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:2001>
        +.02~.035 > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 2001
        none 5
    ";
    /// RFC 8985, 6.2: a segment that arrives a little late is not lost.
    reordering_is_tolerated: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 3000
        > . 1:3001(1000x3) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:2001>
        < . 1:1(0) ack 1 <sack 1001:3001>
        none .01
        < . 1:1(0) ack 3001
        none 5
        unsent 0
    ";
    /// RFC 6937, 3: during recovery about half of what arrives may be sent, and at the end as much as
    /// the new window.
    proportional_rate: "
        config reno
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 40000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:2001>
        ?> . 10001:11001(1000) ack 1
        < . 1:1(0) ack 1 <sack 1001:3001>
        ?> . 11001:12001(1000) ack 1
        < . 1:1(0) ack 1 <sack 1001:4001>
        > . 1:1001(1000) ack 1
        <+ . 1:1(0) ack 1 <sack 1001:5001>
        <+ . 1:1(0) ack 1 <sack 1001:6001>
        <+ . 1:1(0) ack 1 <sack 1001:7001>
        <+ . 1:1(0) ack 1 <sack 1001:8001>
        <+ . 1:1(0) ack 1 <sack 1001:9001>
        < . 1:1(0) ack 1 <sack 1001:10001>
        sends 0 5 .05
    ";
    /// RFC 6675, 5: after recovery the window is half of what was in flight (reno).
    window_after_recovery: "
        config reno
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:10001>
        > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        send 20000
        sends 1 6 .05
    ";
    /// RFC 8985, 6.2: a retransmission is lost too, as data sent after it shows.
    lost_retransmission: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:4001>
        > . 1:1001(1000) ack 1
        < . 1:1(0) ack 1 <sack 1001:10001>
        +.002 send 2000
        > . 10001:12001(1000x2) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:12001>
        +0~.035 > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 12001
        none 5
        unsent 0
    ";
    /// RFC 6675, 5: a partial acknowledgement in recovery, and the next hole.
    partial_acknowledgement: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:4001>
        > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 4001 <sack 5001:10001>
        +0~.035 > . 4001:5001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        none 5
    ";
    /// RFC 2018, 8: blocks outside of the data in flight mean nothing.
    blocks_that_lie: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 5000
        > . 1:5001(1000x5) ack 1
        +.1 < . 1:1(0) ack 1 <sack 50001:60001>
        < . 1:1(0) ack 1 <sack 4001:50001>
        < . 1:1(0) ack 1 <sack 3001:2001>
        < . 1:1(0) ack 1 <sack -5000:-4000>
        ignore .02
        state established
        < . 1:1(0) ack 5001
        none 5
        unsent 0
    ";
    /// RFC 2018, 8: a block that ends at the wrong side of the acknowledgement.
    block_across_the_acknowledgement: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 5000
        > . 1:5001(1000x5) ack 1
        +.1 < . 1:1(0) ack 2001 <sack 1001:3001>
        ignore .15
        < . 1:1(0) ack 5001
        ignore 0
        none 5
        unsent 0
    ";
    /// RFC 2883, 4: a report of a duplicate is no loss.
    report_of_a_duplicate: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 5000
        > . 1:5001(1000x5) ack 1
        +.1 < . 1:1(0) ack 2001
        < . 1:1(0) ack 2001 <sack 1:1001>
        < . 1:1(0) ack 2001 <sack 1001:2001>
        < . 1:1(0) ack 2001 <sack 1:1001>
        < . 1:1(0) ack 2001 <sack 1:1001>
        none .05
        < . 1:1(0) ack 5001
        none 5
    ";
    /// RFC 2018, 8: a receiver may discard what it has acknowledged selectively.
    reneging: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 3000
        > . 1:3001(1000x3) ack 1
        +.1 < . 1:1(0) ack 1 <sack 2001:3001>
        +0~.5 > . 1:1001(1000) ack 1
        ?> . 1001:2001(1000) ack 1
        +.1 < . 1:1(0) ack 1001 <sack 2001:3001>
        ignore 0
        +.1 < . 1:1(0) ack 2001
        # RFC 2018, 8: a timeout retransmits the first segment, whatever was reported of it.
        +0~.7 > . 2001:3001(1000) ack 1
        < . 1:1(0) ack 3001
        none 5
    ";
    /// RFC 8985, 7.2: a probe of the last segment after two round trips.
    tail_loss_probe: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 2000
        > . 1:2001(1000x2) ack 1
        +.2~.21 > . 1001:2001(1000) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:2001>
        +0~.035 > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 2001
        none 5
    ";
    /// RFC 8985, 7.2: a probe does not wait for longer than the retransmission timer.
    probe_of_a_single_segment: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 1000
        > . 1:1001(1000) ack 1
        +.2~.3 > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 1001 <sack 1:1001>
        none 5
    ";
    /// RFC 8985, 7.3: a probe with new data, if there is any.
    probe_with_new_data: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 12000
        > . 1:10001(1000x10) ack 1
        +.2~.21 > . 10001:11001(1000) ack 1
        +.1 < . 1:1(0) ack 1 <sack 10001:11001>
        +0~.035 > . 1:1001(1000) ack 1
    ";
    /// RFC 8985, 7.3: one probe, then the retransmission timer.
    timeout_after_a_probe: "
        passive rtt .1 win 65535 <mss 500,sackOK>
        send 1000
        > . 1:1001(500x2) ack 1
        +.2~.21 > . 501:1001(500) ack 1
        +.08~.32 > . 1:501(500) ack 1
        +.5~1.3 > . 1:501(500) ack 1
    ";
    /// RFC 8985, 7.2: no probe without data in flight.
    no_probe_when_all_is_acknowledged: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 2000
        > . 1:2001(1000x2) ack 1
        +.1 < . 1:1(0) ack 2001
        none 10
    ";
    /// RFC 6675, 5.1: after a timeout only segments without report are retransmitted.
    timeout_with_reports: "
        config reno
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 2000
        > . 1:2001(1000x2) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:2001>
        +.02~.035 > . 1:1001(1000) ack 1
        # The retransmission is lost as well.
        until 2 . 1:1001(1000) ack 1
        +.05 < . 1:1(0) ack 2001
        none 5
    ";
    /// RFC 6675, 5: a FIN beyond the holes.
    holes_before_a_fin: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 5000
        > . 1:5001(1000x5) ack 1
        shutdown write
        > F. 5001:5001(0) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:5002>
        > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 5002
        none 5
    ";
    /// RFC 2018, 3: a report of a part of a segment; the rest is lost.
    report_of_a_part: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1501:10001>
        > . 1:1001(1000) ack 1
        > . 1001:1501(500) ack 1
        +.1 < . 1:1(0) ack 10001
        none 5
    ";
    /// RFC 8985, 7.2: sending more does not put the probe off for ever.
    probe_while_sending: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        nodelay
        send 100
        > . 1:101(100) ack 1
        +.1 send 100
        > . 101:201(100) ack 1
        +.1 send 100
        > . 201:301(100) ack 1
        +0~.21 > . *:301(100..300) ack 1
        ignore .05
        < . 1:1(0) ack 301
        none 5
    ";
    /// RFC 6298 and RFC 6675: a timeout in recovery.
    timeout_in_recovery: "
        passive rtt .1 win 65535 <mss 500,sackOK>
        send 5000
        > . 1:5001(500x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 501:5001>
        > . 1:501(500) ack 1
        +.25~.35 > . 1:501(500) ack 1
        +.1 < . 1:1(0) ack 5001
        none 5
        unsent 0
    ";
    /// RFC 6675, 5: new data after recovery, and a second recovery.
    two_recoveries: "
        passive rtt .1 win 65535 <mss 1000,sackOK>
        send 10000
        > . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1001:10001>
        > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        send 5000
        > . 10001:15001(1000x5) ack 1
        +.1 < . 1:1(0) ack 10001 <sack 11001:15001>
        > . 10001:11001(1000) ack 1
        +.1 < . 1:1(0) ack 15001
        none 5
        unsent 0
    ";
    /// RFC 8985, 7.2: if the retransmission timer is earlier, the probe goes at its time instead.
    probe_at_the_time_of_the_timeout: "
        passive rtt .4 win 65535 <mss 1000,sackOK>
        send 1000
        > . 1:1001(1000) ack 1
        +.4 < . 1:1(0) ack 1001
        send 1000
        > . 1001:2001(1000) ack 1
        +.4 < . 1:1(0) ack 2001
        send 1000
        > . 2001:3001(1000) ack 1
        +.4 < . 1:1(0) ack 3001
        send 1000
        > . 3001:4001(1000) ack 1
        +.4 < . 1:1(0) ack 4001
        send 1000
        > . 4001:5001(1000) ack 1
        +.4 < . 1:1(0) ack 5001
        # SRTT is .4, and RTO .6: less than the .8 after which a probe is due.
        send 2000
        > . 5001:7001(1000x2) ack 1
        +.55~.81 > . 6001:7001(1000) ack 1
        +.4 < . 1:1(0) ack 7001 <sack 6001:7001>
        none 5
    ";
}
