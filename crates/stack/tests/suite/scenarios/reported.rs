//! Scenarios of what the model test found.

scenarios! {
    /// RFC 1122, 4.2.2.13: new data after the application's close is answered with a reset, also if a
    /// FIN comes with it.
    data_and_fin_after_close: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        < F. 1:101(100) ack 2
        > R 2:2(0) | R. 2:2(0)
        sizes 0 0
    ";
    /// The same with the FIN ahead of a gap.
    fin_and_data_after_close: "
        passive win 65535 <mss 1000>
        close
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        < F. 101:101(0) ack 2
        > . 2:2(0) ack 1
        < . 1:101(100) ack 2
        > R 2:2(0) | R. 2:2(0)
        sizes 0 0
    ";
    /// RFC 5961, 3.2: in SYN-RECEIVED too, the number after the window is outside of it.
    reset_after_the_window_in_syn_received: "
        config receive_buffer 8192
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1 win 8192
        < R 8193:8193(0)
        none .1
    ";
    /// RFC 7323, 5.3: an old timestamp in SYN-RECEIVED is answered, and opens nothing.
    old_timestamp_in_syn_received: "
        listen
        < S 0:0(0) win 65535 <mss 1000,TS val 5000 ecr 0>
        > S. 0:0(0) ack 1 <TS>
        +.1 < . 1:1(0) ack 1 <TS val 4000 ecr 0>
        ?> . 1:1(0) ack 1 <TS>
        accept none
    ";
    /// RFC 5961, 5.2: the window of the peer's SYN counts for MAX.SND.WND.
    old_acknowledgement_after_a_closed_window: "
        listen
        < S 0:0(0) win 8000 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 0
        accept
        < . 1:101(100) ack 0 win 8000
        ack > . 1:1(0) ack 101
        recv 100
    ";
}
