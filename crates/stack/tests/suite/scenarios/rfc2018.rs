//! RFC 2018: the receiver's selective acknowledgements; RFC 2883: duplicates (D-SACK).

scenarios! {
    /// 2: SYN and SYN-ACK permit them.
    negotiated: "
        listen
        < S 0:0(0) win 65535 <mss 1460,sackOK>
        > S. 0:0(0) ack 1 <sackOK>
        @1 connect
        @1 > S 0:0(0) <sackOK>
    ";
    /// 2: without permission there are none.
    not_negotiated: "
        listen
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1 <!sackOK>
        < . 1:1(0) ack 1
        accept
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <!sack>
    ";
    /// 3: in order, there is nothing to report.
    nothing_to_report: "
        passive win 65535 <mss 1460,sackOK>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001 <!sack>
    ";
    /// 4: the newest block comes first, then those reported most recently, at most four.
    newest_first: "
        passive win 65535 <mss 1460,sackOK>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:2001>
        < . 3001:4001(1000) ack 1
        > . 1:1(0) ack 1 <sack 3001:4001 1001:2001>
        < . 5001:6001(1000) ack 1
        > . 1:1(0) ack 1 <sack 5001:6001 3001:4001 1001:2001>
        < . 7001:8001(1000) ack 1
        > . 1:1(0) ack 1 <sack 7001:8001 5001:6001 3001:4001 1001:2001>
        < . 9001:10001(1000) ack 1
        > . 1:1(0) ack 1 <sack 9001:10001 7001:8001 5001:6001 3001:4001>
    ";
    /// 3: with timestamps there is room for three.
    three_with_timestamps: "
        passive win 65535 <mss 1460,sackOK,TS>
        < . 1001:2001(1000) ack 1 <TS>
        > . 1:1(0) ack 1 <TS,sack 1001:2001>
        < . 3001:4001(1000) ack 1 <TS>
        > . 1:1(0) ack 1 <TS,sack 3001:4001 1001:2001>
        < . 5001:6001(1000) ack 1 <TS>
        > . 1:1(0) ack 1 <TS,sack 5001:6001 3001:4001 1001:2001>
        < . 7001:8001(1000) ack 1 <TS>
        > . 1:1(0) ack 1 <TS,sack 7001:8001 5001:6001 3001:4001>
    ";
    /// 4: blocks that meet are one.
    blocks_grow: "
        passive win 65535 <mss 1460,sackOK>
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1 <sack 2001:3001>
        < . 3001:4001(1000) ack 1
        > . 1:1(0) ack 1 <sack 2001:4001>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:4001>
    ";
    /// 4: a segment between two blocks joins them, and the result comes first.
    blocks_join: "
        passive win 65535 <mss 1460,sackOK>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:2001>
        < . 3001:4001(1000) ack 1
        > . 1:1(0) ack 1 <sack 3001:4001 1001:2001>
        < . 5001:6001(1000) ack 1
        > . 1:1(0) ack 1 <sack 5001:6001 3001:4001 1001:2001>
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:4001 5001:6001>
    ";
    /// 4: an older block that grows comes first.
    older_block_grows: "
        passive win 65535 <mss 1460,sackOK>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:2001>
        < . 5001:6001(1000) ack 1
        > . 1:1(0) ack 1 <sack 5001:6001 1001:2001>
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:3001 5001:6001>
    ";
    /// 4: the acknowledgement that fills a hole reports what lies beyond.
    hole_filled: "
        passive win 65535 <mss 1460,sackOK>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:2001>
        < . 3001:4001(1000) ack 1
        > . 1:1(0) ack 1 <sack 3001:4001 1001:2001>
        < . 1:1001(1000) ack 1
        > . 1:1(0) ack 2001 <sack 3001:4001>
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 4001 <!sack>
        recv 4000
    ";
    /// 4, example: every second of eight segments is lost.
    every_second_segment_is_lost: "
        passive win 65535 <mss 1460,sackOK>
        < . 1:501(500) ack 1
        ack > . 1:1(0) ack 501
        < . 1001:1501(500) ack 1
        > . 1:1(0) ack 501 <sack 1001:1501>
        < . 2001:2501(500) ack 1
        > . 1:1(0) ack 501 <sack 2001:2501 1001:1501>
        < . 3001:3501(500) ack 1
        > . 1:1(0) ack 501 <sack 3001:3501 2001:2501 1001:1501>
        # The fourth lost segment arrives late.
        < . 1501:2001(500) ack 1
        > . 1:1(0) ack 501 <sack 1001:2501 3001:3501>
        # The second arrives.
        < . 501:1001(500) ack 1
        > . 1:1(0) ack 2501 <sack 3001:3501>
    ";
    /// 3: numbers of blocks wrap as all numbers do.
    blocks_wrap: "
        isn 4294965795
        passive win 65535 <mss 1460,sackOK>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:2001>
        < . 3001:4001(1000) ack 1
        > . 1:1(0) ack 1 <sack 3001:4001 1001:2001>
        < . 1:1001(1000) ack 1
        > . 1:1(0) ack 2001 <sack 3001:4001>
    ";
    /// 4: segments with data report blocks too.
    data_carries_blocks: "
        passive win 65535 <mss 1460,sackOK>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:2001>
        send 100
        > P. 1:101(100) ack 1
        +.01 < . 2001:3001(1000) ack 101
        > . 101:101(0) ack 1 <sack 1001:3001>
    ";
    /// RFC 2883, 4.1.1: a segment below the acknowledgement is a duplicate.
    duplicate_of_acknowledged_data: "
        passive win 65535 <mss 1460,sackOK>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001
        +1 < . 1:1001(1000) ack 1
        > . 1:1(0) ack 1001 <sack 1:1001>
    ";
    /// RFC 2883, 4.1.2: a duplicate comes before the other blocks.
    duplicate_and_a_hole: "
        passive win 65535 <mss 1460,sackOK>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1001 <sack 2001:3001>
        +1 < . 1:1001(1000) ack 1
        > . 1:1(0) ack 1001 <sack 1:1001 2001:3001>
    ";
    /// RFC 2883, 4.1.3: a duplicate within a block, then the block.
    duplicate_beyond_a_hole: "
        passive win 65535 <mss 1460,sackOK>
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:2001>
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:3001>
        +1 < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1 <sack 1001:2001 1001:3001>
    ";
    /// RFC 2883, 4: each duplicate is reported once.
    duplicate_is_reported_once: "
        passive win 65535 <mss 1460,sackOK>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001
        +1 < . 1:1001(1000) ack 1
        > . 1:1(0) ack 1001 <sack 1:1001>
        +1 < . 1001:2001(1000) ack 1
        ack > . 1:1(0) ack 2001 <!sack>
        +1 < . 3001:4001(1000) ack 1
        > . 1:1(0) ack 2001 <sack 3001:4001>
    ";
    /// RFC 2883, 4.2.1: only the old part of a segment is a duplicate.
    partial_duplicate: "
        passive win 65535 <mss 1460,sackOK>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001
        +1 < . 501:1501(1000) ack 1
        ack > . 1:1(0) ack 1501 <sack 501:1001>
        recv 1500
    ";
    /// RFC 2883, 4: without permission a duplicate is only acknowledged.
    duplicate_without_permission: "
        passive win 65535 <mss 1460>
        < . 1:1001(1000) ack 1
        ack > . 1:1(0) ack 1001
        +1 < . 1:1001(1000) ack 1
        > . 1:1(0) ack 1001 <!sack>
    ";
}
