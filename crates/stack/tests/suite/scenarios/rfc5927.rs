//! RFC 5927: ICMP errors; RFC 1191: path MTU discovery; RFC 4821: paths that lose large packets silently.

scenarios! {
    /// RFC 1191, 6.5: a report lowers the segment size, and the lost data goes again in smaller segments.
    fragmentation_needed: "
        passive rtt .1 win 65535 <mss 1460>
        send 1460
        > . 1:1461(1460) ack 1
        +.05 < icmp 3 4 mtu 1000 quote . 1:1461(1460)
        +0~.35 > . 1:961(960) ack 1
        ignore .05
        < . 1:1(0) ack 1461
        ignore .05
        send 2880
        > . 1461:4341(960x3) ack 1
    ";
    /// RFC 1191, 6.5: with timestamps the size of the options counts.
    fragmentation_needed_with_timestamps: "
        passive rtt .1 win 65535 <mss 1460,TS>
        send 1448
        > . 1:1449(1448) ack 1 <TS>
        +.05 < icmp 3 4 mtu 1000 quote . 1:1449(1448)
        +0~.35 > . 1:949(948) ack 1 <TS>
        ignore .05
        < . 1:1(0) ack 1449 <TS>
        ignore .05
        send 2844
        > . 1449:4293(948x3) ack 1 <TS>
    ";
    /// RFC 1191, 6.5: with segmentation offload.
    fragmentation_needed_with_offload: "
        config tso
        passive rtt .1 win 65535 <mss 1460,sackOK>
        send 5840
        > . 1:5841(1460x4) ack 1
        +.05 < icmp 3 4 mtu 1000 quote . 1461:2921(1460)
        ignore .01
        +.04 < . 1:1(0) ack 5841
        ignore .05
        send 2880
        > . 5841:8721(960x3) ack 1
    ";
    /// RFC 1191, 6.5: other connections to the peer learn the same.
    path_mtu_of_a_later_connection: "
        passive rtt .1 win 65535 <mss 1460>
        send 1460
        > . 1:1461(1460) ack 1
        < icmp 3 4 mtu 1000 quote . 1:1461(1460)
        ignore .5
        < . 1:1(0) ack 1461
        ignore .5
        @1 < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        accept
        send 2880
        > . 1:2881(960x3) ack 1
    ";
    /// RFC 5927, 4.1: a report about data that is not in flight is forged.
    report_about_other_data: "
        passive rtt .1 win 65535 <mss 1460>
        send 1460
        > . 1:1461(1460) ack 1
        < icmp 3 4 mtu 1000 quote . 50001:51461(1460)
        < icmp 3 4 mtu 1000 quote . -50000:-48540(1460)
        none .05
        < . 1:1(0) ack 1461
        < icmp 3 4 mtu 1000 quote . 1:1461(1460)
        send 2920
        > . 1461:4381(1460x2) ack 1
    ";
    /// RFC 5927, 7.2: a report that contradicts the quoted packet is forged.
    report_of_a_larger_mtu: "
        passive rtt .1 win 65535 <mss 1460>
        send 500
        > . 1:501(500) ack 1
        < icmp 3 4 mtu 1000 quote . 1:501(500)
        < icmp 3 4 mtu 9000 quote . 1:501(500)
        none .05
        < . 1:1(0) ack 501
        send 2920
        > . 501:3421(1460x2) ack 1
    ";
    /// RFC 1191, 5: an old router does not report the MTU.
    report_without_mtu: "
        passive rtt .1 win 65535 <mss 1460>
        send 1460
        > . 1:1461(1460) ack 1
        < icmp 3 4 quote . 1:1461(1460)
        until .35 . 1:*(28..1459) ack 1
        ignore 0
    ";
    /// RFC 1191, 3: no report makes segments tiny.
    report_of_a_tiny_mtu: "
        passive rtt .1 win 65535 <mss 1460>
        send 1460
        > . 1:1461(1460) ack 1
        < icmp 3 4 mtu 1 quote . 1:1461(1460)
        until .35 . 1:*(28..1459) ack 1
        ignore 0
    ";
    /// RFC 1191, 6.4: a report does not shrink the congestion window to a segment.
    report_is_no_congestion: "
        passive rtt .1 win 65535 <mss 1460>
        send 14600
        > . 1:14601(1460x10) ack 1
        < icmp 3 4 mtu 1400 quote . 1:1461(1460)
        ignore .05
        +.05 < . 1:1(0) ack 14601
        ignore .05
        send 30000
        sends 5 22 .05
    ";
    /// RFC 5927, 5.2 and RFC 1122, 4.2.3.9: errors do not end an established connection.
    errors_on_an_established_connection: "
        passive rtt .1 win 65535 <mss 1000>
        send 1000
        > . 1:1001(1000) ack 1
        < icmp 3 0 quote . 1:1001(1000)
        < icmp 3 1 quote . 1:1001(1000)
        < icmp 3 2 quote . 1:1001(1000)
        < icmp 3 3 quote . 1:1001(1000)
        < icmp 3 5 quote . 1:1001(1000)
        < icmp 3 13 quote . 1:1001(1000)
        < icmp 11 0 quote . 1:1001(1000)
        < icmp 12 0 quote . 1:1001(1000)
        none .05
        state established
        error none
        < . 1:1(0) ack 1001
        unsent 0
    ";
    /// RFC 6633: source quench means nothing.
    source_quench: "
        passive rtt .1 win 65535 <mss 1000>
        send 20000
        > . 1:10001(1000x10) ack 1
        < icmp 4 0 quote . 1:1001(1000)
        none .05
        +.05 < . 1:1(0) ack 1001
        > . 10001:12001(1000x2) ack 1
    ";
    /// RFC 1122, 4.2.3.9: a closed port, reported about the SYN, refuses the connection.
    refused_by_icmp: "
        connect
        > S 0:0(0)
        +.1 < icmp 3 3 quote S 0:0(0)
        recv error refused
        none 5
    ";
    /// RFC 5927, 4.1: a report about another SYN does not.
    forged_refusal: "
        connect
        > S 0:0(0)
        +.1 < icmp 3 3 quote S 77:77(0)
        < icmp 3 3 quote S -1:-1(0)
        none .1
        state connecting
        error none
        < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > . 1:1(0) ack 1
    ";
    /// RFC 1122, 4.2.3.9: TTL and parameter problems do not end an attempt to connect.
    soft_errors_of_a_connect: "
        connect
        > S 0:0(0)
        +.1 < icmp 11 0 quote S 0:0(0)
        < icmp 12 0 quote S 0:0(0)
        none .1
        state connecting
        error none
    ";
    /// RFC 4821, 7.7: full segments vanish without a report; after some timeouts smaller ones get through.
    black_hole: "
        passive rtt .1 win 65535 <mss 1460>
        send 2920
        > . 1:2921(1460x2) ack 1
        until 60 . 1:*(..1240) ack 1
        ignore 0
        +.1 < . 1:1(0) ack 513
        until 60 . 513:*(..1240) ack 1
        ignore 0
        +.1 < . 1:1(0) ack 2921
        ignore .5
        send 2920
        until .1 . 2921:*(..1240) ack 1
        ignore 0
    ";
    /// RFC 4821, 7.7: the same with selective acknowledgements and timestamps.
    black_hole_with_options: "
        passive rtt .1 win 65535 <mss 1460,sackOK,TS,wscale 7>
        send 2896
        > . 1:2897(1448x2) ack 1 <TS>
        until 60 . 1:*(..1228) ack 1 <TS>
        ignore 0
    ";
    /// RFC 4821, 7.7: the same with segmentation offload.
    black_hole_with_offload: "
        config tso
        passive rtt .1 win 65535 <mss 1460,sackOK>
        send 14600
        > . 1:14601(1460x10) ack 1
        until 60 . 1:*(..1240) ack 1
        ignore 0
    ";
    /// RFC 4821, 7.7: a size above the peer's own limit is not worth a try.
    black_hole_below_a_small_offer: "
        passive rtt .1 win 65535 <mss 1100>
        send 2200
        > . 1:2201(1100x2) ack 1
        until 3 . 1:*(..1024) ack 1
        ignore 0
    ";
    /// RFC 4821, 7.7: one timeout is an ordinary loss, and changes no segment size.
    single_timeout_is_no_black_hole: "
        passive rtt .1 win 65535 <mss 1460>
        send 2920
        > . 1:2921(1460x2) ack 1
        +.3 > . 1:1461(1460) ack 1
        +.1 < . 1:1(0) ack 2921
        ignore .05
        send 2920
        > . 2921:4381(1460) ack 1
        ignore .05
    ";
    /// RFC 1122, 4.2.3.9: errors about a SYN-ACK do not end the half-open connection.
    errors_about_a_syn_ack: "
        listen
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        < icmp 3 1 quote S. 0:0(0)
        < icmp 11 0 quote S. 0:0(0)
        none .1
        < . 1:1(0) ack 1
        accept
    ";
    /// RFC 1191, 6.5: a report in a recovery.
    fragmentation_needed_in_recovery: "
        passive rtt .1 win 65535 <mss 1460,sackOK>
        send 14600
        > . 1:14601(1460x10) ack 1
        +.1 < . 1:1(0) ack 1 <sack 1461:14601>
        > . 1:1461(1460) ack 1
        < icmp 3 4 mtu 1000 quote . 1:1461(1460)
        until .35 . 1:961(960) ack 1
        ignore .05
        < . 1:1(0) ack 14601
        none 5
        unsent 0
    ";
}
