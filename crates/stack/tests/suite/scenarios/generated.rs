//! Scenarios whose scripts are too long to write: many holes, many segments, many rounds.

use std::fmt::Write;

/// RFC 2018, 3: sixty holes, filled from the last to the first.
fn many_holes() -> String {
    let mut script = String::from("passive win 65535 <mss 1460,sackOK>\n");
    for index in 1..=60 {
        let from = 1 + index * 200;
        let (to, second) = (from + 100, from + 200);
        writeln!(script, "< . {from}:{to}(100) ack 1\nuntil 0 . 1:1(0) ack 1").unwrap();
        assert!(second < 65_000);
    }
    for index in (1..=60).rev() {
        let from = 101 + index * 200;
        writeln!(script, "< . {from}:{}(100) ack 1\nuntil 0 . 1:1(0) ack 1", from + 100).unwrap();
    }
    script + "< . 1:201(200) ack 1\nuntil 0 . 1:1(0) ack 12201\nrecv 12200\nrecv none\n"
}

/// RFC 9293, 3.8.6: two hundred segments, each repeated, each in pairs of the wrong order.
fn pairs_in_the_wrong_order() -> String {
    let mut script = String::from("passive win 65535 <mss 1460,sackOK>\n");
    for pair in 0..100 {
        let (first, second, end) = (1 + pair * 200, 101 + pair * 200, 201 + pair * 200);
        writeln!(script, "< . {second}:{end}(100) ack 1\nignore 0").unwrap();
        writeln!(script, "< . {second}:{end}(100) ack 1\nignore 0").unwrap();
        writeln!(script, "< . {first}:{second}(100) ack 1\nuntil 0 . 1:1(0) ack {end}").unwrap();
        writeln!(script, "< . {first}:{second}(100) ack 1\nuntil 0 . 1:1(0) ack {end}").unwrap();
    }
    script + "recv 20000\nrecv none\n"
}

/// RFC 7323, 2: the window grows beyond 64 KiB while the application reads as fast as data arrives.
fn window_grows() -> String {
    let mut script = String::from("passive rtt .02 win 65535 <mss 1460,sackOK,TS,wscale 7>\n");
    let mut from = 1u32;
    for round in 0..20 {
        // The first rounds stay within the window that any receiver has.
        let count = if round < 3 { 20 } else { 120 };
        for _ in 0..count {
            writeln!(script, "<+ . {from}:{}(1448) ack 1 <TS>", from + 1448).unwrap();
            from += 1448;
        }
        writeln!(script, "ignore .01\nrecv {}\nignore .01", count * 1448).unwrap();
    }
    writeln!(script, "< P. {from}:{}(100) ack 1 <TS>", from + 100).unwrap();
    writeln!(script, "until .1 . 1:1(0) ack {} win 280000..", from + 100).unwrap();
    script
}

/// RFC 5681, 3.1: three thousand segments without a loss, acknowledged two at a time.
fn long_transfer() -> String {
    let mut script = String::from("passive rtt .02 win 65535 <mss 1000,sackOK,wscale 7>\n");
    let mut acknowledged = 1;
    for _ in 0..60 {
        writeln!(script, "send 20000\nignore .02").unwrap();
        for _ in 0..10 {
            acknowledged += 2000;
            writeln!(script, "< . 1:1(0) ack {acknowledged}\nignore 0").unwrap();
        }
        // The first rounds need some more round trips than one.
        writeln!(script, "ignore 0").unwrap();
    }
    script + "unsent 0\nnone 5\n"
}

/// RFC 9293, 3.6.1: the next connection begins above what a fast one has sent.
fn fast_connection() -> String {
    let mut script = String::from("passive win 65535 <mss 1000,sackOK,wscale 7>\n");
    for round in 1..=40 {
        writeln!(script, "send 10000\nignore 0\n< . 1:1(0) ack {}\nignore 0", 1 + round * 10_000)
            .unwrap();
    }
    let end = 400_001;
    writeln!(script, "close\n> F. {end}:{end}(0) ack 1\n< F. 1:1(0) ack {}", end + 1).unwrap();
    writeln!(script, "ack > . {}:*(0) ack 2", end + 1).unwrap();
    script + "+.1 < S 5000:5000(0) win 65535 <mss 1000>\n> S. 0:0(0) ack 5001\n"
}

scenarios! {
    /// See the script.
    numbers_of_a_reused_port: &fast_connection();
    /// See the script.
    sixty_holes: &many_holes();
    /// See the script.
    two_hundred_segments_reordered: &pairs_in_the_wrong_order();
    /// See the script.
    receive_window_grows: &window_grows();
    /// See the script.
    sixty_rounds: &long_transfer();
}
