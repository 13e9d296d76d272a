//! 3.7.4, 3.8.6: windows, probes, small segments.

scenarios! {
    /// 3.8.6: the stack sends no more than the window.
    peers_window: "
        passive rtt .1 win 3000 <mss 1000>
        send 10000
        > . 1:3001(1000x3) ack 1
        +.1 < . 1:1(0) ack 1001
        > . 3001:4001(1000) ack 1
        < . 1:1(0) ack 4001 win 5000
        > . 4001:9001(1000x5) ack 1
    ";
    /// 3.8.6 (MUST-34): a window that shrinks holds the stack back, and does no harm.
    window_shrinks: "
        passive rtt .1 win 5000 <mss 1000>
        send 10000
        > . 1:5001(1000x5) ack 1
        +.1 < . 1:1(0) ack 1001 win 1000
        none .1
        < . 1:1(0) ack 5001 win 5000
        > . 5001:10001(1000x5) ack 1
        +.1 < . 1:1(0) ack 10001 win 5000
        unsent 0
    ";
    /// 3.8.6 (MUST-34): the stack retransmits below the end of a window that has shrunk.
    retransmission_in_a_shrunk_window: "
        passive rtt .1 win 5000 <mss 1000>
        send 5000
        > . 1:5001(1000x5) ack 1
        +.1 < . 1:1(0) ack 1001 win 1000
        +.15~.7 > . 1001:2001(1000) ack 1
        < . 1:1(0) ack 5001 win 5000
        unsent 0
    ";
    /// 3.8.6.1 (MUST-36, SHLD-29, SHLD-30): probes of a closed window, at intervals that double.
    zero_window_probes: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        send 1000
        +.2~.5 > . 101:102(1) ack 1 | . 100:100(0) ack 1
        +.05 < . 1:1(0) ack 101 win 0
        +.3~1 > . 101:102(1) ack 1 | . 100:100(0) ack 1
        +.05 < . 1:1(0) ack 101 win 0
        +.7~2 > . 101:102(1) ack 1 | . 100:100(0) ack 1
        +.05 < . 1:1(0) ack 101 win 0
        +1.5~4 > . 101:102(1) ack 1 | . 100:100(0) ack 1
        +.05 < . 1:1(0) ack 101 win 65535
        until 1 . 101..102:*(1..1000) ack 1
        ignore 0
        +.05 < . 1:1(0) ack 102
        ignore .5
        < . 1:1(0) ack 1101
        unsent 0
        none 5
    ";
    /// 3.8.6.1: a window that opens at once.
    window_opens: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        send 2000
        +.1 < . 1:1(0) ack 101 win 65535
        > . 101:2101(1000x2) ack 1
    ";
    /// 3.8.6.1: the peer takes the byte of a probe.
    probe_is_acknowledged: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        send 1000
        +.2~.5 > . 101:102(1) ack 1 | . 100:100(0) ack 1
        +.05 < . 1:1(0) ack 101 win 0
        ignore 5
        < . 1:1(0) ack 101 win 65535
        until 1 . 101..102:*(1..1000) ack 1
        ignore 0
        +.05 < . 1:1(0) ack 102
        ignore .5
        < . 1:1(0) ack 1101
        unsent 0
        none 5
    ";
    /// 3.8.6.1 (MUST-37): a peer may keep its window closed for ever.
    zero_window_for_ever: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        send 1000
        answer 4000 . 1:1(0) ack 101 win 0
        state established
        error none
        until 61 . 100..101:*(0..1) ack 1
        < . 1:1(0) ack 101 win 0
        +58~61 > . 101:102(1) ack 1 | . 100:100(0) ack 1
        < . 1:1(0) ack 101 win 65535
        until 1 . 101..102:*(1..1000) ack 1
        ignore 0
        +.05 < . 1:1(0) ack 102
        ignore .5
        < . 1:1(0) ack 1101
        unsent 0
        none 5
    ";
    /// 3.8.6.1: a window closed with data in flight beyond it.
    window_closes_with_data_in_flight: "
        passive rtt .1 win 3000 <mss 1000>
        send 5000
        > . 1:3001(1000x3) ack 1
        +.1 < . 1:1(0) ack 3001 win 0
        +.2~.6 > . 3001:3002(1) ack 1 | . 3000:3000(0) ack 1
        < . 1:1(0) ack 3001 win 3000
        ?> . 3001:3002(1) ack 1
        +0~1 > . 3001..3002:*(999..1000) ack 1
        ignore .05
    ";
    /// 3.10.4: a FIN waits for the window as data does.
    fin_behind_a_closed_window: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        send 500
        close
        none .1
        < . 1:1(0) ack 101 win 1000
        > F. 101:601(500) ack 1
        +.1 < . 1:1(0) ack 602
        none 5
    ";
    /// 3.8.6.2.1 (MUST-38): the stack does not fill a small window at once, but in the end.
    senders_silly_window: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        send 3000
        < . 1:1(0) ack 101 win 100
        none .09
        +.01~2 > . 101:*(1..100) ack 1
    ";
    /// 3.8.6.2.1: a window of half the largest is worth a segment.
    half_of_the_largest_window: "
        passive rtt .1 win 600 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 600
        send 3000
        > . 101:*(300..600) ack 1
        ignore .05
    ";
    /// 3.8.6.2.2 (MUST-39): the stack opens its window only by much.
    receivers_silly_window: "
        config receive_buffer 4096
        passive win 65535 <mss 1000>
        <+ . 1:1025(1024) ack 1
        <+ . 1025:2049(1024) ack 1
        <+ . 2049:3073(1024) ack 1
        < . 3073:4097(1024) ack 1
        until .1 . 1:1(0) ack 4097 win 0
        recv 100
        none .1
        recv 100
        none .1
        +1 < . 4097:4098(1) ack 1
        > . 1:1(0) ack 4097..4098 win 0
        recv 3896
        > . 1:1(0) ack 4097..4098 win 1460..
    ";
    /// 3.8.6.1 (MUST-35): the stack answers probes of its closed window.
    closed_window_answers_probes: "
        config receive_buffer 4096
        passive win 65535 <mss 1000>
        <+ . 1:1025(1024) ack 1
        <+ . 1025:2049(1024) ack 1
        <+ . 2049:3073(1024) ack 1
        < . 3073:4097(1024) ack 1
        until .1 . 1:1(0) ack 4097 win 0
        +1 < . 4097:4098(1) ack 1
        > . 1:1(0) ack 4097 win 0
        +2 < . 4096:4096(0) ack 1
        > . 1:1(0) ack 4097 win 0
        send 1000
        > . 1:1001(1000) ack 4097
        +.1 < . 4097:4097(0) ack 1001
        unsent 0
        recv 4096
        > . 1001:1001(0) ack 4097 win 1460..
        < . 4097:5097(1000) ack 1001
        ack > . 1001:1001(0) ack 5097
    ";
    /// 3.10.7.4, first: a closed window still takes acknowledgements and resets.
    closed_window_takes_a_reset: "
        config receive_buffer 4096
        passive win 65535 <mss 1000>
        <+ . 1:1025(1024) ack 1
        <+ . 1025:2049(1024) ack 1
        <+ . 2049:3073(1024) ack 1
        < . 3073:4097(1024) ack 1
        until .1 . 1:1(0) ack 4097 win 0
        < R 4097:4097(0)
        recv 4096
        recv error reset
    ";
    /// 3.10.7.4, fifth: a window is taken from a newer segment only (SND.WL1, SND.WL2).
    window_of_an_old_segment: "
        passive rtt .1 win 5000 <mss 1000>
        < . 1:101(100) ack 1 win 5000
        ack > . 1:1(0) ack 101
        +1 < . 1:1(0) ack 1 win 10
        > . 1:1(0) ack 101
        < . 101:101(0) ack 1 win 5000
        send 3000
        > . 1:3001(1000x3) ack 101
        +.1 < . 101:101(0) ack 3001 win 5000
        < . 101:101(0) ack 2001 win 10
        send 3000
        > . 3001:6001(1000x3) ack 101
    ";
    /// 3.7.4 (SHLD-7): a small segment waits while data is in flight (Nagle).
    nagle: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        send 100
        send 100
        none .05
        +.05 < . 1:1(0) ack 101
        > P. 101:301(200) ack 1
        +.1 < . 1:1(0) ack 301
        unsent 0
    ";
    /// 3.7.4: a full segment does not wait.
    nagle_sends_full_segments: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        send 1500
        > . 101:1101(1000) ack 1
        none .05
        +.05 < . 1:1(0) ack 1101
        > P. 1101:1601(500) ack 1
    ";
    /// 3.7.4 (MUST-17): an application may turn it off.
    nodelay: "
        passive rtt .1 win 65535 <mss 1000>
        nodelay
        send 100
        > P. 1:101(100) ack 1
        send 100
        > P. 101:201(100) ack 1
        send 1500
        > . 201:1201(1000) ack 1
        > P. 1201:1701(500) ack 1
    ";
    /// 3.7.4: turning it off sends what waits.
    nodelay_sends_what_waits: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        send 100
        none .05
        nodelay
        > P. 101:201(100) ack 1
    ";
    /// A cork (`TCP_CORK`) holds a small segment back, also while nothing is in flight. Full segments pass.
    cork: "
        passive rtt .1 win 65535 <mss 1000>
        cork on
        send 100
        none .1
        send 1400
        > . 1:1001(1000) ack 1
        none .05
        cork off
        > P. 1001:1501(500) ack 1
    ";
    /// A cork gives way after 200 ms, as on Linux, each time, and to a connection without delay too.
    a_cork_gives_way_in_time: "
        passive rtt .1 win 65535 <mss 1000>
        nodelay
        cork on
        send 100
        none .15
        send 100
        +.05 > P. 1:201(200) ack 1
        +.1 < . 1:1(0) ack 201
        send 100
        none .15
        +.05 > P. 201:301(100) ack 1
    ";
    /// Each segment that leaves begins the time of a cork anew: a steady writer sends full segments only.
    a_cork_under_a_steady_writer: "
        passive rtt .1 win 65535 <mss 1000>
        cork on
        send 900
        none .12
        send 900
        > . 1:1001(1000) ack 1
        none .12
        send 900
        > . 1001:2001(1000) ack 1
        none .12
        send 300
        > . 2001:3001(1000) ack 1
        +.01 < . 1:1(0) ack 3001
        send 100
        none .15
        cork off
        > P. 3001:3101(100) ack 1
    ";
    /// Urgent data, and an end of the delay, pull a cork once.
    a_cork_gives_way_to_urgent_data: "
        passive rtt .1 win 65535 <mss 1000>
        cork on
        urgent 100
        > PU. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101
        send 100
        none .05
        nodelay
        > P. 101:201(100) ack 1
        send 100
        none .1
    ";
    /// A window that has room for what a cork holds back is not probed.
    a_cork_in_a_small_window: "
        passive rtt .1 win 500 <mss 1000>
        none 3
        cork on
        send 100
        none .15
        +.05 > P. 1:101(100) ack 1
    ";
    /// A cork holds back neither the last data nor what was written before it.
    a_cork_holds_no_end_back: "
        passive rtt .1 win 65535 <mss 1000>
        cork on
        send 100
        none .05
        shutdown write
        > FP. 1:101(100) ack 1
    ";
    /// 3.8.6: a window of one byte is still a window.
    window_of_one_byte: "
        passive rtt .1 win 1 <mss 1000>
        send 2
        +0~2 > . 1:2(1) ack 1
        +.1 < . 1:1(0) ack 2
        +0~2 > P. 2:3(1) ack 1
    ";
    /// 3.8.6: a window that is always smaller than a segment.
    window_below_a_segment: "
        passive rtt .1 win 500 <mss 1000>
        send 1500
        > . 1:*(250..500) ack 1
        ignore .05
        +.05 < . 1:1(0) ack 501
        > . 501:*(250..500) ack 1
        ignore .05
        +.05 < . 1:1(0) ack 1001
        > . 1001:*(250..500) ack 1
        ignore .05
        +.05 < . 1:1(0) ack 1501
        unsent 0
    ";
    /// 3.8.6.1: a FIN behind a closed window, without data.
    fin_alone_behind_a_closed_window: "
        passive rtt .1 win 65535 <mss 1000>
        send 100
        > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        shutdown write
        answer 100 . 1:1(0) ack 101 win 0
        < . 1:1(0) ack 101 win 1000
        until 1 F. 101:101(0) ack 1
        ignore 0
        < . 1:1(0) ack 102
        none 5
        state closed
    ";
    /// 3.8.6: a window that opens by less than a segment, and then by more.
    window_opens_in_steps: "
        passive rtt .1 win 2000 <mss 1000>
        send 5000
        > . 1:2001(1000x2) ack 1
        +.1 < . 1:1(0) ack 2001 win 1000
        > . 2001:3001(1000) ack 1
        +.1 < . 1:1(0) ack 3001 win 200
        none .05
        < . 1:1(0) ack 3001 win 2000
        > . 3001:5001(1000x2) ack 1
        +.1 < . 1:1(0) ack 5001
        none 5
    ";
}
