//! A rough measure, no test: `cargo test -p towpath-net --release --test kernel -- throughput`.
//!
//! One TCP flow between the kernel and a network across a TAP, in each direction, and between two
//! of the kernel's own stacks across a veth pair: in turn, five times, and the ratios' medians.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use towpath_net::{TcpListener, TcpStream};

use crate::{Bench, PLAIN, Setting, namespace};

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

/// Gigabits a second through a pair of functions that make the two ends.
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

/// Between two of the kernel's stacks: the other end of the pair is in a namespace of its own.
fn kernel_to_kernel(address: SocketAddr) -> f64 {
    let listener = std::net::TcpListener::bind(address).unwrap();
    flow(
        move || listener.accept().unwrap().0,
        move || {
            // A thread has a namespace of its own, and its sockets keep it.
            // SAFETY: no memory is involved.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            let id = rustix::thread::gettid();
            namespace::ip(&format!("link set tpveth1 netns /proc/self/task/{id}/ns/net"))
                .or_else(|_| {
                    namespace::ip(&format!("-n /proc/{id} link"))
                })
                .unwrap();
            std::net::TcpStream::connect(address).unwrap()
        },
    )
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub(crate) fn run() {
    let _ = kernel_to_kernel;
    for mtu in [1500, 9000] {
        let bench = Bench::new(Setting { mtu, ..PLAIN });
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let at = SocketAddr::new(bench.ours[0], 80);
            let listener = TcpListener::bind(&bench.network, at).unwrap();
            up.push(flow(
                || listener.accept().unwrap().0,
                move || std::net::TcpStream::connect(at).unwrap(),
            ));
            let listener = std::net::TcpListener::bind((bench.kernel[0], 0)).unwrap();
            let (at, network) = (listener.local_addr().unwrap(), bench.network.clone());
            down.push(flow(
                || listener.accept().unwrap().0,
                move || TcpStream::connect(&network, at).unwrap(),
            ));
        }
        println!("mtu {mtu}: kernel to us {:.2} Gbit/s {up:.2?}", median(up.clone()));
        println!("mtu {mtu}: us to kernel {:.2} Gbit/s {down:.2?}", median(down.clone()));
        println!("{:#?}", bench.network.counters().iter().filter(|(_, v)| *v != 0).collect::<Vec<_>>());
    }
}
