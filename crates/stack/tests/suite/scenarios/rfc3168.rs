//! RFC 3168: explicit congestion notification, accepted from the peer.

scenarios! {
    /// 6.1.1: a SYN that offers ECN gets a SYN-ACK that accepts it.
    accepted: "
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > nonect SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 1000
        > ect0 . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 1001
    ";
    /// 6.1.1: one flag is no offer.
    one_flag_is_no_offer: "
        listen
        < SE 0:0(0) win 65535 <mss 1000>
        > nonect S. 0:0(0) ack 1
        @1 < SC 0:0(0) win 65535 <mss 1000>
        > nonect S. 0:0(0) ack 1
    ";
    /// 6.1.1: the stack does not offer ECN itself.
    no_offer: "
        connect
        > nonect S 0:0(0)
        +.1 < SE. 0:0(0) ack 1 win 65535 <mss 1000>
        > nonect . 1:1(0) ack 1
        send 1000
        > nonect . 1:1001(1000) ack 1
    ";
    /// 6.1.4: acknowledgements are not ECT.
    acknowledgements: "
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        < ect0 . 1:101(100) ack 1
        ack > nonect . 1:1(0) ack 101
        < ect0 F. 101:101(0) ack 1
        ack > nonect . 1:1(0) ack 102
    ";
    /// 6.1.5: retransmissions are not ECT.
    retransmissions: "
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 1000
        > ect0 . 1:1001(1000) ack 1
        +.3 > nonect . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 1001
    ";
    /// 6.1.3: a mark is echoed until the peer says that it has reduced its window.
    echo: "
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        < ect0 . 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        < ce . 101:201(100) ack 1
        ack > E. 1:1(0) ack 201
        < ect0 . 201:301(100) ack 1
        ack > E. 1:1(0) ack 301
        < ect0 . 301:401(100) ack 1
        ack > E. 1:1(0) ack 401
        < ect0 C. 401:501(100) ack 1
        ack > . 1:1(0) ack 501
        < ect0 . 501:601(100) ack 1
        ack > . 1:1(0) ack 601
        recv 600
    ";
    /// 6.1.3: a mark on the segment with CWR is echoed anew.
    mark_with_cwr: "
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        < ce . 1:101(100) ack 1
        ack > E. 1:1(0) ack 101
        < ce C. 101:201(100) ack 1
        ack > E. 1:1(0) ack 201
    ";
    /// 6.1.3: data carries the echo too.
    echo_on_data: "
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        < ce . 1:101(100) ack 1
        ack > E. 1:1(0) ack 101
        send 100
        > ect0 E. 1:101(100) ack 101
    ";
    /// 6.1.2: an echo halves the window once, and the next new data says so.
    reaction: "
        config reno
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 10000
        > ect0 . 1:10001(1000x10) ack 1
        +.1 < E. 1:1(0) ack 1001
        < E. 1:1(0) ack 2001
        < E. 1:1(0) ack 3001
        < . 1:1(0) ack 10001
        send 20000
        > ect0 C. 10001:11001(1000) ack 1
        > ect0 . 11001:12001(1000) ack 1
        sends 1 4 .05
    ";
    /// 6.1.2: with segmentation offload, only the first segment says so.
    reaction_with_offload: "
        config reno
        config tso
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 10000
        > ect0 . 1:10001(1000x10) ack 1
        +.1 < E. 1:1(0) ack 10001
        send 20000
        > ect0 C. 10001:11001(1000) ack 1
        > ect0 . 11001:12001(1000) ack 1
        ignore .05
    ";
    /// 6.1.2: a further echo, after a window of data, reduces the window again.
    second_reaction: "
        config reno
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 10000
        > ect0 . 1:10001(1000x10) ack 1
        +.1 < E. 1:1(0) ack 10001
        send 3000
        > ect0 C. 10001:11001(1000) ack 1
        > ect0 . 11001:13001(1000x2) ack 1
        +.1 < E. 1:1(0) ack 13001
        send 20000
        > ect0 C. 13001:14001(1000) ack 1
        sends 1 4 .05
    ";
    /// 6.1.1: without negotiation the flags mean nothing.
    flags_without_negotiation: "
        passive rtt .1 win 65535 <mss 1000>
        send 20000
        > nonect . 1:10001(1000x10) ack 1
        +.1 < E. 1:1(0) ack 1001
        > nonect . 10001:12001(1000x2) ack 1
        < ce C. 1:101(100) ack 1001
        ack > . 12001:12001(0) ack 101
    ";
    /// 6.1.1: a stack that is told to offers ECN in its SYN.
    offer: "
        config ecn
        connect
        > nonect SEC 0:0(0)
        +.1 < SE. 0:0(0) ack 1 win 65535 <mss 1000>
        > nonect . 1:1(0) ack 1
        send 1000
        > ect0 . 1:1001(1000) ack 1
    ";
    /// 6.1.1: a peer that does not accept the offer.
    offer_refused: "
        config ecn
        connect
        > SEC 0:0(0)
        +.1 < S. 0:0(0) ack 1 win 65535 <mss 1000>
        > nonect . 1:1(0) ack 1
        send 1000
        > nonect . 1:1001(1000) ack 1
    ";
    /// 6.1.1: a peer that only reflects the flags does not accept.
    offer_reflected: "
        config ecn
        connect
        > SEC 0:0(0)
        +.1 < SEC. 0:0(0) ack 1 win 65535 <mss 1000>
        > nonect . 1:1(0) ack 1
        send 1000
        > nonect . 1:1001(1000) ack 1
    ";
    /// 6.1.1.1: a SYN that is lost may be repeated without the offer.
    offer_repeated: "
        config ecn
        connect
        > SEC 0:0(0)
        +1 > S 0:0(0) | SEC 0:0(0)
        +2 > S 0:0(0) | SEC 0:0(0)
    ";
    /// 6.1.2: new data after a loss has CWR too: it says that the window is smaller, for any reason.
    loss_sets_cwr: "
        config reno
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 10000
        > ect0 . 1:10001(1000x10) ack 1
        +.1 < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        > nonect . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 10001
        send 2000
        > ect0 C. 10001:11001(1000) ack 1
        > ect0 . 11001:12001(1000) ack 1
    ";
    /// 6.1.2: new data after a timeout has CWR too.
    timeout_sets_cwr: "
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 1000
        > ect0 . 1:1001(1000) ack 1
        +.3 > nonect . 1:1001(1000) ack 1
        +.1 < . 1:1(0) ack 1001
        send 1000
        > ect0 C. 1001:2001(1000) ack 1
    ";
    /// 6.1.6: a probe of a closed window is not ECT.
    window_probe: "
        listen
        < SEC 0:0(0) win 65535 <mss 1000>
        > SE. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 100
        > ect0 P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 0
        send 1000
        +.2~.5 > nonect . 101:102(1) ack 1 | nonect . 100:100(0) ack 1
        ignore .1
    ";
}
