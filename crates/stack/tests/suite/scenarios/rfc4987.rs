//! RFC 4987: floods of SYNs, and SYN cookies.

scenarios! {
    /// 3.6: beyond the bound of half-open connections, a SYN gets a cookie; its answer opens the connection.
    cookie: "
        config half_open 4
        listen 1000
        flood 300
        sizes ..4 0
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1 <mss 1460>
        sizes ..4 0
        +.1 < . 1:1(0) ack 1
        accept
        state established
        send 2000
        > . 1:*(536..1460) ack 1
        ignore .1
    ";
    /// 3.6: data with the answer.
    cookie_and_data: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1
        +.1 < P. 1:101(100) ack 1
        ack > . 1:1(0) ack 101
        accept
        recv 100
    ";
    /// 3.6: with timestamps the options of the SYN are kept.
    cookie_keeps_options: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 1460,sackOK,TS,wscale 7>
        > S. 0:0(0) ack 1 <sackOK,TS,wscale *>
        +.1 < . 1:1(0) ack 1 win 100 <TS>
        ?> . 1:1(0) ack 1 <TS>
        accept
        < . 1001:2001(1000) ack 1 <TS>
        > . 1:1(0) ack 1 <TS,sack 1001:2001>
        # A window of 100 is 12800 bytes.
        send 6000
        > . 1:*(524..1448) ack 1 <TS>
        sends 2 10 .05
    ";
    /// 3.6: without timestamps no option but the segment size is kept, so none may be agreed.
    cookie_without_timestamps: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 1460,sackOK,wscale 7>
        > S. 0:0(0) ack 1 <!TS>
        +.1 < . 1:1(0) ack 1 win 5000
        accept
        send 1000
        > . 1:*(536..1460) ack 1
        ignore .1
    ";
    /// 3.6: a wrong cookie gets a reset.
    wrong_cookie: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 2
        > R 2:2(0)
        < . 1:1(0) ack 100000
        > R 100000:100000(0)
        accept none
        # The cookie is right, and the sequence number is not.
        < . 2:2(0) ack 1
        > R 1:1(0)
        accept none
        < . 1:1(0) ack 1
        accept
    ";
    /// 3.6: a cookie of another port is wrong.
    cookie_of_another_port: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1 
        @1 < . 1:1(0) ack 5
        > R 5:5(0)
        accept none
    ";
    /// 3.6: a cookie ends after some minutes.
    old_cookie: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1
        ignore 1000
        < . 1:1(0) ack 1
        > R 1:1(0)
        accept none
    ";
    /// 3.6: without a flood no cookie is valid.
    no_flood: "
        listen 1000
        < . 1:1(0) ack 12345
        > R 12345:12345(0)
        accept none
    ";
    /// 3.4: half-open connections end, and the listener keeps no state of the flood.
    flood_ends: "
        config half_open 4
        listen 1000
        flood 300
        ignore 60
        sizes 0 0
        < S 0:0(0) win 65535 <mss 1000>
        > S. 0:0(0) ack 1
        +1 > S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        accept
        send 2000
        > . 1:2001(1000x2) ack 1
    ";
    /// 3.6: a reset of a peer that did not ask does no harm.
    reset_of_a_cookie: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1
        < R 1:1(0)
        none .1
        accept none
    ";
    /// 3.6: a cookie keeps no larger segment size than the peer's.
    cookie_of_a_small_segment_size: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 100>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 1000
        sends 1 10 .05
    ";
    /// 3.6: a peer that states no segment size has 536.
    cookie_without_segment_size: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        send 5000
        sends 9 10 .05
    ";
    /// RFC 3168 and 3.6: an agreement on ECN that a cookie makes holds, or there is none.
    cookie_and_ecn: "
        config half_open 4
        listen 1000
        flood 300
        < SEC 0:0(0) win 65535 <mss 1460,sackOK,TS,wscale 7>
        > SE. 0:0(0) ack 1 <TS> | S. 0:0(0) ack 1 <TS>
        +.1 < . 1:1(0) ack 1 win 1000 <TS>
        ?> . 1:1(0) ack 1 <TS>
        accept
        send 3000
        sends 2 10 .05
    ";
    /// 3.6: the peer repeats its SYN, and answers the first or the second cookie.
    repeated_syn: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1
        +1 ignore 0
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        accept
        state established
    ";
    /// RFC 9293, 3.10.7.1: after the handshake, the answer to a cookie is an ordinary acknowledgement.
    answer_twice: "
        config half_open 4
        listen 1000
        flood 300
        < S 0:0(0) win 65535 <mss 1460>
        > S. 0:0(0) ack 1
        +.1 < . 1:1(0) ack 1
        < . 1:1(0) ack 1
        none .1
        accept
        accept none
    ";
}
