//! Prints the cost of parsing headers and of summing on this machine, in nanoseconds: context for
//! the benchmarks, no claim. `cargo run --release -p towpath-packet --example nanoseconds`

use std::hint::black_box;
use std::time::Instant;

use towpath_packet::build::{Flow, Tcp};
use towpath_packet::segment::segment_into;
use towpath_packet::{Headers, Sum};

/// Returns the best of several rounds, so that other work of the machine counts least.
fn best(mut what: impl FnMut()) -> f64 {
    const TURNS: u32 = 50_000;
    (0..30)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..TURNS {
                what();
            }
            start.elapsed().as_nanos() as f64 / f64::from(TURNS)
        })
        .fold(f64::INFINITY, f64::min)
}

fn main() {
    println!("{:<28} {:>10}", "Headers::parse", "ns");
    let bytes = [0_u8; 60];
    let ns = best(|| {
        let _ = black_box(black_box(&bytes[..]).len() + black_box(60));
    });
    println!("{:<28} {ns:>10.2}", "(the measuring itself)");
    for (name, frame) in [
        ("UDP over IPv4", Flow::v4().udp(&[0; 18])),
        ("UDP over IPv4, VLAN", Flow::v4().vlan(7).udp(&[0; 18])),
        ("TCP over IPv4", Flow::v4().tcp(&Tcp::default(), &[0; 1400])),
        ("UDP over IPv6", Flow::v6().udp(&[0; 18])),
        ("TCP over IPv6", Flow::v6().tcp(&Tcp::default(), &[0; 1400])),
        ("ARP", Flow::v4().who_has()),
    ] {
        let prefix = &frame[..frame.len().min(256)];
        let ns = best(|| {
            let headers = Headers::parse(black_box(prefix), black_box(frame.len()));
            let _ = black_box(&headers);
        });
        println!("{name:<28} {ns:>10.2}");
    }
    println!("\n{:<28} {:>10} {:>10}", "Sum::add", "ns", "GB/s");
    for len in [20, 64, 128, 256, 576, 1460, 9000, 65_536] {
        let bytes = vec![0x5a; len];
        let ns = best(|| {
            let mut sum = Sum::default();
            sum.add(black_box(&bytes));
            black_box(sum.folded());
        });
        println!("{len:>10} bytes             {ns:>10.2} {:>10.1}", len as f64 / ns);
    }

    println!("\n{:<28} {:>10} {:>10}", "segment_into", "ns/segment", "GB/s");
    for (name, flow) in [("64 KB, TCP over IPv4", Flow::v4()), ("64 KB, TCP over IPv6", Flow::v6())]
    {
        let (packet, meta) = flow.tcp_large(&Tcp::default(), &[0x5a; 45 * 1440], 1440);
        let mut scratch = Vec::new();
        let turns = 100;
        let ns = (0..30)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..turns {
                    let made = segment_into(black_box(&packet), &meta, &mut scratch, |frame| {
                        black_box(frame);
                    });
                    assert_eq!(made, Ok(45));
                }
                start.elapsed().as_nanos() as f64 / f64::from(turns)
            })
            .fold(f64::INFINITY, f64::min);
        println!("{name:<28} {:>10.2} {:>10.1}", ns / 45.0, packet.len() as f64 / ns);
    }
}
