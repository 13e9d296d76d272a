//! 3.10.7.4: segments of an established connection.

scenarios! {
    /// 3.10.7.4, seventh: data in order.
    data_in_order: "
        passive win 65535 <mss 1000>
        < P. 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        < P. 101:301(200) ack 1
        ack > . 1:1(0) ack 301
        recv 300
        recv none
        none 5
    ";
    /// 3.8: data in both directions.
    data_both_ways: "
        passive win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        < . 1:1001(1000) ack 1001
        ack > . 1001:1001(0) ack 1001
        recv 1000
        send 2000
        > . 1001:3001(1000x2) ack 1001
        +.1 < . 1001:1001(0) ack 3001
        unsent 0
        none 5
    ";
    /// 3.10.7.4, first: old data gets an acknowledgement.
    old_data: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        +1 < . 1:101(100) ack 1
        > . 1:1(0) ack 101
        recv 100
        recv none
    ";
    /// 3.10.7.4, first: the new part of a segment counts.
    partly_old_data: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        < . 51:151(100) ack 1
        ack > . 1:1(0) ack 151
        recv 150
        recv none
    ";
    /// 3.10.7.4, first: data beyond the window gets an acknowledgement.
    data_beyond_the_window: "
        passive win 65535 <mss 1000>
        < . 70001:70101(100) ack 1
        > . 1:1(0) ack 1
        +1 < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        recv 100
        recv none
    ";
    /// 3.10.7.4, first: an empty segment beside the window, such as a probe, gets an acknowledgement.
    empty_segment_beside_the_window: "
        passive win 65535 <mss 1000>
        < . 0:0(0) ack 1
        > . 1:1(0) ack 1
        +1 < . 0:1(1) ack 1
        > . 1:1(0) ack 1
        +1 < . 70001:70001(0) ack 1
        > . 1:1(0) ack 1
        recv none
    ";
    /// 3.10.7.4: an acknowledgement is never acknowledged.
    no_answer_to_an_acknowledgement: "
        passive win 65535 <mss 1000>
        < . 1:1(0) ack 1
        none .1
        < . 1:1(0) ack 1 win 60000
        none .1
        < . 500:500(0) ack 1
        none .1
    ";
    /// 3.10.7.4, seventh: data beyond a hole waits for it.
    hole_filled: "
        passive win 65535 <mss 1000>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1
        recv none
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1
        < . 1:1001(1000) ack 1
        > . 1:1(0) ack 3001
        recv 3000
        recv none
    ";
    /// 3.10.7.4, seventh: segments that overlap in every way.
    overlaps: "
        passive win 65535 <mss 1460>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1
        < . 3001:4001(1000) ack 1
        > . 1:1(0) ack 1
        < . 1501:2501(1000) ack 1
        > . 1:1(0) ack 1
        < . 2701:2801(100) ack 1
        > . 1:1(0) ack 1
        < . 2401:3101(700) ack 1
        > . 1:1(0) ack 1
        < . 1201:1301(100) ack 1
        > . 1:1(0) ack 1
        < . 1:1401(1400) ack 1
        > . 1:1(0) ack 4001
        recv 4000
        recv none
    ";
    /// 3.10.7.4, seventh: data is kept up to the end of the window.
    data_across_the_end_of_the_window: "
        config receive_buffer 4096
        passive win 65535 <mss 1000>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001
        <+ . 1001:2001(1000) ack 1
        <+ . 2001:3001(1000) ack 1
        <+ . 3001:4001(1000) ack 1
        < . 4001:5001(1000) ack 1
        ignore .05
        recv 4000
        ignore .05
        +1 < . 4001:5001(1000) ack 1
        ack > . 1:1(0) ack 5001
        recv 1000
    ";
    /// 3.10.7.4, fifth: a segment without ACK is dropped.
    segment_without_acknowledgement: "
        passive win 65535 <mss 1000>
        < - 1:101(100)
        none .1
        < F 1:1(0)
        none .1
        < P 1:101(100)
        none .1
        recv none
        state established
    ";
    /// 3.10.7.4, fifth: flags that belong to no segment do no harm.
    flags_that_no_peer_sends: "
        passive win 65535 <mss 1000>
        < FPU 1:101(100) urg 1
        none .1
        < SF 1:1(0)
        ?> . 1:1(0) ack 1
        none .1
        +1 < SF. 1:1(0) ack 1
        ?> . 1:1(0) ack 1
        none .1
        state established
        +1 < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        recv 100
    ";
    /// 3.8.5: urgent data is data in its place.
    urgent_data: "
        passive win 65535 <mss 1000>
        < U. 1:11(10) ack 1 urg 5
        ack > . 1:1(0) ack 11
        recv 10
        < U. 11:21(10) ack 1 urg 10
        ack > . 1:1(0) ack 21
        < U. 21:31(10) ack 1 urg 60000
        ack > . 1:1(0) ack 31
        < U. 31:41(10) ack 1 urg 0
        ack > . 1:1(0) ack 41
        recv 30
        recv none
    ";
    /// 3.8.5: the pointer of a segment without URG means nothing.
    pointer_without_urg: "
        passive win 65535 <mss 1000>
        < . 1:11(10) ack 1 urg 5
        ack > . 1:1(0) ack 11
        recv 10
    ";
    /// 3.9.1.2 (MUST-61): the last of the written data has PSH.
    push_on_the_last_segment: "
        passive win 65535 <mss 1000>
        send 2000
        > . 1:1001(1000) ack 1
        > P. 1001:2001(1000) ack 1
        +.1 < . 1:1(0) ack 2001
        send 10
        > P. 2001:2011(10) ack 1
    ";
    /// 3.9.1.2: PSH of the peer does not matter.
    push_of_the_peer: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1
        recv 100
        ack > . 1:1(0) ack 101
        < P. 101:201(100) ack 1
        recv 100
        ack > . 1:1(0) ack 201
    ";
    /// 3.1 (MUST-3): a wrong checksum drops the segment.
    wrong_checksum: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1 corrupt
        none .1
        recv none
        < R 1:1(0) corrupt
        none .1
        state established
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
    ";
    /// 3.1: a data offset below five, or beyond the segment.
    wrong_data_offset: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1 doff 4
        none .1
        < . 1:101(100) ack 1 doff 0
        none .1
        < . 1:11(10) ack 1 doff 15
        none .1
        recv none
        state established
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
    ";
    /// 3.10.7.4, second: a reset at the next sequence number ends the connection.
    reset: "
        passive win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        < R 1:1(0)
        recv error reset
        none 10
        close
        sizes 0 0
    ";
    /// 3.10.7.4, second: data from before the reset stays readable.
    reset_after_data: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        < R. 101:101(0) ack 1
        recv 100
        recv error reset
        none 5
    ";
    /// 3.8.1: an acknowledgement of part of a segment.
    part_of_a_segment_is_acknowledged: "
        passive rtt .1 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 501
        unsent 500
        +.15~.5 > . 501:1001(500) ack 1 | . 1:1001(1000) ack 1
        < . 1:1(0) ack 1001
        unsent 0
        none 2
    ";
    /// 3.4: an acknowledgement that is older than the latest means nothing.
    old_acknowledgement: "
        passive rtt .1 win 65535 <mss 1000>
        send 3000
        > . 1:3001(1000x3) ack 1
        +.1 < . 1:1(0) ack 3001
        < . 1:1(0) ack 1001
        unsent 0
        none 2
    ";
    /// 3.8.5 and RFC 6093, 3.1: the pointer of the stack's urgent data is to the byte after it.
    urgent_data_of_the_stack: "
        passive rtt .1 win 65535 <mss 1000>
        nodelay
        send 100
        > . 1:101(100) ack 1
        urgent 10
        > U. 101:111(10) ack 1 urg 10
        +.1 < . 1:1(0) ack 111
        send 100
        > . 111:211(100) ack 1
    ";
    /// 3.8.5: a retransmission points to the end of the urgent data too.
    urgent_data_is_retransmitted: "
        passive rtt .1 win 65535 <mss 500>
        nodelay
        urgent 10
        > U. 1:11(10) ack 1 urg 10
        +.3 > U. 1:11(10) ack 1 urg 10
        +.1 < . 1:1(0) ack 11
        none 2
    ";
}
