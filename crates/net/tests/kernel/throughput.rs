//! A rough measurement, no test: `cargo test -p towpath-net --release --test kernel -- throughput`.
//!
//! Measures one TCP flow between the kernel and a network across a TAP device, in each direction,
//! and one between two kernel stacks across a veth pair. Repeats them in turn, five times, and
//! prints the medians of the ratios.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use towpath_net::{TcpListener, TcpStream};
use towpath_testkit::{End, Namespace, connect};

use crate::{Bench, PLAIN, Setting};

const TIME: Duration = Duration::from_millis(700);
const WRITE: usize = 128 * 1024;

fn send(mut stream: impl Write) -> u64 {
    let (data, begin) = (vec![7; WRITE], Instant::now());
    let mut sent = 0;
    while begin.elapsed() < TIME {
        sent += stream.write(&data).unwrap() as u64;
    }
    sent
}

fn receive(mut stream: impl Read) -> u64 {
    let (mut buffer, mut got) = (vec![0; WRITE], 0);
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return got,
            len => got += len as u64,
        }
    }
}

/// Returns the gigabits per second through a pair of functions that make the two ends.
fn flow<A: Write + Send + 'static, B: Read>(
    accept: impl FnOnce() -> B,
    connect: impl FnOnce() -> A + Send + 'static,
) -> f64 {
    let begin = Instant::now();
    let sender = thread::spawn(move || send(connect()));
    let got = receive(accept());
    let time = begin.elapsed();
    assert_eq!(sender.join().unwrap(), got);
    got as f64 * 8.0 / time.as_secs_f64() / 1e9
}

/// Another kernel stack, at the other end of a veth pair: a thread in its own namespace, which
/// sends to the given addresses.
struct Peer {
    orders: mpsc::Sender<SocketAddr>,
    sent: mpsc::Receiver<u64>,
}

impl Peer {
    fn new() -> Peer {
        let (orders, addresses) = mpsc::channel::<SocketAddr>();
        let (results, sent) = mpsc::channel();
        let (here, far) = (Namespace::current().unwrap(), Namespace::create().unwrap());
        let [ours, theirs] = ["10.76.0.1/24", "10.76.0.2/24"].map(|one| one.parse().unwrap());
        connect(
            &End { namespace: &here, name: "tpveth0", addresses: &[ours] },
            &End { namespace: &far, name: "tpveth1", addresses: &[theirs] },
            None,
        )
        .unwrap();
        let sending = move || {
            while let Ok(address) = addresses.recv() {
                let sent = send(std::net::TcpStream::connect(address).unwrap());
                results.send(sent).unwrap();
            }
        };
        far.run(|| thread::spawn(sending)).unwrap();
        Peer { orders, sent }
    }

    fn flow(&self) -> f64 {
        let listener = std::net::TcpListener::bind("10.76.0.1:0").unwrap();
        self.orders.send(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        let begin = Instant::now();
        let got = receive(stream);
        assert_eq!(self.sent.recv().unwrap(), got);
        got as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e9
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub(crate) fn run() {
    let peer = Peer::new();
    for mtu in [1500, 9000] {
        let bench = Bench::new(Setting { mtu, ..PLAIN });
        let (mut base, mut to_us, mut from_us) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..5 {
            base.push(peer.flow());
            let at = SocketAddr::new(bench.ours[0], 80);
            let listener = TcpListener::bind(&bench.network, at).unwrap();
            to_us.push(flow(
                || listener.accept().unwrap().0,
                move || std::net::TcpStream::connect(at).unwrap(),
            ));
            let listener = std::net::TcpListener::bind((bench.kernel[0], 0)).unwrap();
            let (at, network) = (listener.local_addr().unwrap(), bench.network.clone());
            from_us.push(flow(
                || listener.accept().unwrap().0,
                move || TcpStream::connect(&network, at).unwrap(),
            ));
        }
        let ratio = |of: &[f64]| median(of.iter().zip(&base).map(|(a, b)| a / b).collect());
        println!("mtu {mtu}, Gbit/s: veth {base:.2?}");
        println!("  kernel to us {to_us:.2?}, {:.2} of veth", ratio(&to_us));
        println!("  us to kernel {from_us:.2?}, {:.2} of veth", ratio(&from_us));
        let counters = bench.network.counters();
        for (name, value) in counters.iter().filter(|(_, value)| *value != 0) {
            println!("  {name} {value}");
        }
    }
}
