//! TCP between the kernel and an application over a wire that loses, duplicates, reorders and
//! damages frames: every byte arrives, in both directions, and no stream stalls.
//!
//! `TOWPATH_FAULT_MIB` sets the amount in each direction, 16 by default; `TOWPATH_FAULT_SEED`
//! selects other faults. The full test:
//!
//! ```text
//! TOWPATH_FAULT_MIB=256 cargo test --release -p towpath-examples --test suite faults:: -- --test-threads=1
//! ```

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown};
use std::time::{Duration, Instant};

use crate::network::{Served, possible};
use sha2::{Digest, Sha256};
use towpath_device_testing::fault::{FaultDevice, Spec};
use towpath_net::{Network, TcpListener};
use towpath_testkit::isolated;

/// The maximum time without received bytes. Each loss of the same segment doubles the wait, from
/// 200 ms on. With these faults four losses in a row are practically impossible; the rest of the
/// time allows for a busy machine.
const STALL: Duration = Duration::from_secs(10);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The bytes of one direction, generated in chunks, and their hash.
struct Stream {
    left: u64,
    random: fastrand::Rng,
    hash: Sha256,
}

impl Stream {
    fn new(bytes: u64, seed: u64) -> Stream {
        Stream { left: bytes, random: fastrand::Rng::with_seed(seed), hash: Sha256::new() }
    }

    fn next(&mut self, chunk: &mut [u8]) -> usize {
        let count = self.left.min(chunk.len() as u64) as usize;
        self.random.fill(chunk);
        self.hash.update(&chunk[..count]);
        self.left -= count as u64;
        count
    }
}

fn send(mut to: impl Write, bytes: u64, seed: u64) -> Vec<u8> {
    let mut stream = Stream::new(bytes, seed);
    let mut chunk = vec![0; 64 << 10];
    while stream.left > 0 {
        let count = stream.next(&mut chunk);
        to.write_all(&chunk[..count]).unwrap_or_else(|error| {
            panic!("{error}, with {} bytes to send", stream.left + count as u64)
        });
    }
    stream.hash.finalize().to_vec()
}

/// Reads to the end. Returns the hash, and the longest time without a byte.
fn receive(mut from: impl Read, bytes: u64) -> (Vec<u8>, Duration) {
    let (mut hash, mut done, mut longest) = (Sha256::new(), 0, Duration::ZERO);
    let mut chunk = vec![0; 64 << 10];
    loop {
        let start = Instant::now();
        let count = from
            .read(&mut chunk)
            .unwrap_or_else(|error| panic!("{error} after {done} of {bytes} bytes"));
        longest = longest.max(start.elapsed());
        if count == 0 {
            assert_eq!(done, bytes, "the stream ended early");
            return (hash.finalize().to_vec(), longest);
        }
        hash.update(&chunk[..count]);
        done += count as u64;
    }
}

fn exchange(network: &Network, to: IpAddr, bytes: u64, seed: u64) {
    let listener = TcpListener::bind(network, (to, 9)).unwrap();
    let start = Instant::now();
    let (up, down, hashes) = std::thread::scope(|scope| {
        let application = scope.spawn(|| {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(STALL)).unwrap();
            stream.set_write_timeout(Some(STALL)).unwrap();
            let writer = stream.try_clone().unwrap();
            let sent = scope.spawn(move || {
                let hash = send(&writer, bytes, seed);
                writer.shutdown(Shutdown::Write).unwrap();
                hash
            });
            (receive(&stream, bytes), sent.join().unwrap())
        });
        let kernel = std::net::TcpStream::connect((to, 9)).unwrap();
        kernel.set_read_timeout(Some(STALL)).unwrap();
        kernel.set_write_timeout(Some(STALL)).unwrap();
        let writer = kernel.try_clone().unwrap();
        let sent = scope.spawn(move || {
            let hash = send(&writer, bytes, !seed);
            writer.shutdown(Shutdown::Write).unwrap();
            hash
        });
        let down = receive(&kernel, bytes);
        let up_sent = sent.join().unwrap();
        let (up, down_sent) = application.join().unwrap();
        (up, down, (up_sent, down_sent))
    });
    println!(
        "{} MiB each way with {to} in {:.2?}; longest pause: {:.2?} there, {:.2?} back",
        bytes >> 20,
        start.elapsed(),
        up.1,
        down.1
    );
    assert_eq!(up.0, hashes.0, "to the application");
    assert_eq!(down.0, hashes.1, "from the application");
}

fn over_a_bad_wire(to: IpAddr) {
    let seed = number("TOWPATH_FAULT_SEED").unwrap_or(42);
    let bytes = number("TOWPATH_FAULT_MIB").unwrap_or(16) << 20;
    let text = format!("drop=0.01,dup=0.01,reorder=0.01,flip=0.001,seed={seed}");
    println!("faults: {text}");
    let spec: Spec = text.parse().unwrap();
    let mut faults = None;
    let served = Served::start(1500, |device| {
        let device = FaultDevice::new(Box::new(device), &spec);
        faults = Some(device.fault_counters());
        Box::new(device)
    });
    let network = Network::attach(served.socket()).unwrap();
    exchange(&network, to, bytes, seed);
    let faults = faults.unwrap();
    for (what, injected) in [("received", faults.rx()), ("sent", faults.tx())] {
        println!("{what}: {injected:?}");
        let all = [injected.dropped, injected.duplicated, injected.reordered, injected.flipped];
        assert!(all.iter().all(|&count| count > 0), "a kind of fault is missing");
    }
    println!("{:?}", network.counters());
    drop(network);
    served.server.stop().unwrap();
}

#[test]
fn every_byte_arrives_over_ipv4() {
    if possible("every_byte_arrives_over_ipv4", &[]) {
        isolated!(|| over_a_bad_wire(Ipv4Addr::new(10, 77, 0, 2).into()));
    }
}

#[test]
fn every_byte_arrives_over_ipv6() {
    if possible("every_byte_arrives_over_ipv6", &[]) {
        isolated!(|| over_a_bad_wire(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2).into()));
    }
}
