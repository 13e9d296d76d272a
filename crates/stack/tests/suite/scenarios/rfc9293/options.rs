//! 3.1, 3.2, 3.7.1: options, and the maximum segment size.

scenarios! {
    /// 3.7.1 (MUST-15): without the option the peer's segments have at most 536 bytes.
    without_mss: "
        passive win 65535
        send 1072
        > . 1:1073(536x2) ack 1
    ";
    /// 3.7.1: the same for the peer's SYN-ACK.
    without_mss_in_the_syn_ack: "
        active win 65535
        send 1072
        > . 1:1073(536x2) ack 1
    ";
    /// 3.7.1: the least segment size that a peer may state with reason.
    mss_of_48: "
        passive win 65535 <mss 48>
        send 480
        > . 1:481(48x10) ack 1
        +.1 < . 1:1(0) ack 481
        send 48
        > . 481:529(48) ack 1
    ";
    /// 3.7.1: a small segment size.
    mss_of_87: "
        passive win 65535 <mss 87>
        send 870
        > . 1:871(87x10) ack 1
        +.1 < . 1:1(0) ack 871
    ";
    /// 3.7.1: a small segment size, with segmentation offload.
    mss_of_48_with_offload: "
        config tso
        passive win 65535 <mss 48>
        send 480
        > . 1:481(48x10) ack 1
        +.1 < . 1:1(0) ack 481
    ";
    /// 3.7.1: a small segment size, and timestamps.
    mss_of_87_and_timestamps: "
        passive win 65535 <mss 87,TS>
        send 150
        > . 1:151(75x2) ack 1 <TS>
        +.1 < . 1:1(0) ack 151 <TS>
    ";
    /// 3.7.1: the stack states what its link carries, whatever the peer states.
    own_mss: "
        config mtu 1280
        listen
        < S 0:0(0) win 65535 <mss 536>
        > S. 0:0(0) ack 1 <mss 1240>
        @1 connect
        @1 > S 0:0(0) <mss 1240>
    ";
    /// 3.7.1: a segment size beyond the link's.
    mss_beyond_the_link: "
        passive win 65535 <mss 9000>
        send 2920
        > . 1:2921(1460x2) ack 1
    ";
    /// 3.7.1: the options of a segment count as data of the segment size.
    mss_includes_options: "
        passive win 65535 <mss 1460,TS>
        send 2896
        > . 1:2897(1448x2) ack 1 <TS>
    ";
    /// 3.7.1: MSS is an option of SYNs only.
    mss_in_another_segment: "
        passive win 65535 <mss 1000>
        < . 1:1(0) ack 1 <mss 100>
        send 2000
        > . 1:2001(1000x2) ack 1
    ";
    /// 3.7.1: a segment size of zero is no reason to send nothing.
    mss_of_zero: "
        passive win 65535 <mss 0>
        send 2000
        sends 1 10 .05
    ";
    /// 3.1 (MUST-6): an unknown option of right length.
    unknown_option: "
        listen
        < S 0:0(0) win 65535 <raw fd 04 aa bb,mss 1000>
        > S. 0:0(0) ack 1
        +.1 < . 1:101(100) ack 1 <raw fe 06 01 02 03 04>
        ack > . 1:1(0) ack 101
        accept
        recv 100
        send 2000
        > . 1:2001(1000x2) ack 101
    ";
    /// 3.1: options need no alignment, and no order.
    options_in_another_order: "
        listen
        < S 0:0(0) win 65535 <wscale 7,sackOK,TS val 9 ecr 0,mss 1012>
        > S. 0:0(0) ack 1 <TS val * ecr 9,sackOK,wscale *>
        +.1 < . 1:1(0) ack 1 <TS>
        ?> . 1:1(0) ack 1 <TS>
        accept
        send 2000
        > . 1:2001(1000x2) ack 1 <TS>
    ";
    /// 3.2: bytes after the end of the option list are no options.
    options_after_the_end: "
        listen
        < S 0:0(0) win 65535 <raw 00 02 04 03 e8 01 01 01>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 1072
        > . 1:1073(536x2) ack 1
    ";
    /// 3.1 (MUST-7): an option of length 0 harms no other connection.
    option_of_length_zero: "
        listen
        < S 0:0(0) win 65535 <raw fd 00 01 01,mss 1000>
        ignore .05
        @1 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        ignore 1
        < . 1:101(100) ack 1 <raw fd 00 01 01>
        ignore .05
        @2 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
    ";
    /// 3.1 (MUST-7): an option of length 1.
    option_of_length_one: "
        listen
        < S 0:0(0) win 65535 <raw 02 01 03 e8>
        ignore .05
        @1 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
    ";
    /// 3.1 (MUST-7): an option that ends beyond the header.
    option_beyond_the_header: "
        listen
        < S 0:0(0) win 65535 <raw 08 0a 00 00>
        ignore .05
        < S 0:0(0) win 65535 <raw 01 01 01 02>
        ignore .05
        @1 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        < . 1:101(100) ack 1 <raw 05 22 00 00>
        ignore .05
        @2 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
    ";
    /// 3.1 (MUST-7): known options of wrong lengths.
    known_options_of_wrong_lengths: "
        listen
        < S 0:0(0) win 65535 <raw 02 03 05 01 03 04 01 01 04 04 00 00 08 04 00 00>
        ignore .05
        @1 < S 0:0(0) win 65535 <mss 1000,sackOK,TS>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1 <TS>
        accept
        < . 1:101(100) ack 1 <TS,raw 05 05 01 02 03 01 01 01>
        ignore .05
        < . 1:1(0) ack 1 <TS,raw 05 02 01 01>
        ignore .05
        @2 < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
    ";
    /// 3.1: a header full of options.
    forty_bytes_of_options: "
        passive win 65535 <mss 1000>
        < . 1:101(100) ack 1 <raw 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01>
        ack > . 1:1(0) ack 101
        recv 100
    ";
}
