//! Several datagrams of one call in one buffer, also with the kernel's own sockets at the other end.

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use towpath_client::Session;
use towpath_net::{
    Armed, DatagramToSend, Driving, Link, LinkError, LinkInfo, Meta, Network, SessionLink,
    UdpSocket,
};
use towpath_server::Server;
use towpath_testkit::{isolated, recv_udp_gro, set_udp_gro, set_udp_segment};

use crate::server_tap::{host, serve};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));

/// Returns the data of one call, in which each byte tells its place.
fn data(len: usize, call: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + (at >> 8) + call) as u8).collect()
}

fn segments<'a>(data: &'a [u8], to: SocketAddr, bytes: usize) -> DatagramToSend<'a> {
    let mut datagram = DatagramToSend::new(data, to);
    datagram.segment_bytes = NonZeroUsize::new(bytes);
    datagram
}

/// The lengths of a call's data and of its datagrams.
const CALLS: [[usize; 2]; 6] =
    [[1, 1], [1200, 1200], [1201, 1200], [12_000, 1200], [640, 10], [50_001, 1400]];

#[test]
fn the_kernel_segments_and_merges_too() {
    isolated!(|| {
        let server = serve(1500);
        let a = host(&server, "a");
        for (ours, theirs) in [("10.77.0.2:7", "10.77.0.1:0"), ("[fd77::2]:7", "[fd77::1]:0")] {
            let socket = UdpSocket::bind(&a, ours).unwrap();
            socket.set_read_timeout(TIMEOUT).unwrap();
            let kernel = std::net::UdpSocket::bind(theirs).unwrap();
            kernel.set_read_timeout(TIMEOUT).unwrap();
            set_udp_gro(&kernel).unwrap();
            kernel.connect(ours).unwrap();
            let to = kernel.local_addr().unwrap();
            for ([len, each], call) in CALLS.into_iter().zip(0..) {
                let sent = data(len, call);
                // The kernel's datagrams, in two buffers of which each has room for most of them.
                set_udp_segment(&kernel, each as u16).unwrap();
                kernel.send(&sent).unwrap();
                socket.set_gro(call % 2 == 0).unwrap();
                let (mut got, mut received) = (Vec::<Vec<u8>>::new(), Vec::new());
                while got.concat().len() < len {
                    let mut memory = [vec![0; 40_000], vec![0; 40_000]];
                    let mut buffers = memory.each_mut().map(|buffer| IoSliceMut::new(buffer));
                    socket.recv_many(&mut buffers, &mut received).unwrap();
                    for (one, buffer) in received.iter().zip(&memory) {
                        assert_eq!((one.from, one.datagram_bytes), (to, one.len));
                        got.extend(one.datagrams(buffer).map(<[u8]>::to_vec));
                    }
                }
                assert!(got.iter().eq(sent.chunks(each)), "{len} in {each}: {}", got.len());
                // And the way back.
                assert_eq!(socket.send_many(&[segments(&sent, to, each)]).unwrap(), 1);
                let (mut got, mut buffer) = (Vec::<Vec<u8>>::new(), vec![0; 65_535]);
                while got.concat().len() < len {
                    let (len, stride) = recv_udp_gro(&kernel, &mut buffer).unwrap();
                    got.extend(buffer[..len].chunks(stride).map(<[u8]>::to_vec));
                }
                assert!(got.iter().eq(sent.chunks(each)), "{len} in {each}: {}", got.len());
            }
            // The kernel's limits are in the same places, and the errors of the same kind where `std` has one.
            let mtu = if to.is_ipv4() { 1472 } else { 1452 };
            for (len, each) in [(65, 1), (mtu + 1, mtu + 1), (65_528, 1400)] {
                set_udp_segment(&kernel, each as u16).unwrap();
                let of_kernel = kernel.send(&vec![0; len]);
                let error = socket.send_many(&[segments(&vec![0; len], to, each)]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{len} in {each}: {error}");
                // Linux allows 128 datagrams since 6.9.
                assert!(of_kernel.is_err() || (len, each) == (65, 1), "{len} in {each}");
            }
            assert_eq!(socket.send_many(&[segments(&vec![0; mtu], to, mtu)]).unwrap(), 1);
        }
    });
}

/// What a link was asked to do.
#[derive(Default)]
struct Asked {
    flushes: AtomicUsize,
    frames: AtomicUsize,
}

/// A session's link that counts.
struct Counted(SessionLink, Arc<Asked>);

impl Link for Counted {
    fn info(&self) -> LinkInfo {
        self.0.info()
    }

    fn sleep_fd(&self) -> io::Result<OwnedFd> {
        self.0.sleep_fd()
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        self.0.receive(budget, take)
    }

    fn room(&mut self, len: usize) -> bool {
        self.0.room(len)
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let taken = self.0.transmit(len, meta, fill);
        self.1.frames.fetch_add(usize::from(taken), Ordering::Relaxed);
        taken
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.1.flushes.fetch_add(1, Ordering::Relaxed);
        self.0.flush()
    }

    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError> {
        self.0.arm(blocked)
    }

    fn disarm(&mut self) {
        self.0.disarm();
    }
}

/// Returns a network that only calls drive, and the counts of its link.
fn counted(server: &Server) -> (Network, Arc<Asked>) {
    let socket = server.connect().unwrap();
    let session = Session::attach_over(socket, &SessionLink::options("counted")).unwrap();
    let (link, asked) = (SessionLink::new(session).unwrap(), Arc::default());
    let config = link.config();
    let link = Box::new(Counted(link, Arc::clone(&asked)));
    let builder = Network::builder().driving(Driving::Application);
    (builder.on(link, config).unwrap(), asked)
}

/// One call of 64 datagrams costs one lock of the link and one notification of the server, where 64 calls cost 64. The
/// receiver gets all of them by one call.
#[test]
fn a_call_costs_as_much_as_one_datagram() {
    isolated!(|| {
        let server = serve(1500);
        let (sender, asked) = counted(&server);
        let receiver = host(&server, "receiver");
        let socket = UdpSocket::bind(&receiver, "10.77.0.3:7").unwrap();
        socket.set_read_timeout(TIMEOUT).unwrap();
        let to = socket.local_addr().unwrap();
        let from = UdpSocket::bind(&sender, "10.77.0.2:7").unwrap();
        // Finds the receiver's link address.
        from.send_to(b"first", to).unwrap();
        let mut buffer = vec![0; 65_535];
        socket.set_nonblocking(true).unwrap();
        while socket.recv(&mut buffer).is_err() {
            sender.drive(Duration::from_millis(10)).unwrap();
        }
        socket.set_nonblocking(false).unwrap();
        let counts = || [&asked.flushes, &asked.frames].map(|count| count.load(Ordering::Relaxed));
        let sent = data(64 * 100, 0);
        let before = counts();
        for datagram in sent.chunks(100) {
            from.send_to(datagram, to).unwrap();
        }
        let one_by_one = counts();
        assert_eq!(from.send_many(&[segments(&sent, to, 100)]).unwrap(), 1);
        let together = counts();
        let difference =
            |after: [usize; 2], before: [usize; 2]| [after[0] - before[0], after[1] - before[1]];
        assert_eq!(difference(one_by_one, before), [64, 64]);
        assert_eq!(difference(together, one_by_one), [1, 64]);
        // All have arrived.
        while receiver.sockets()[0].received < 2 * (64 * 100 + 64 * 14) {
            std::thread::yield_now();
        }
        for datagram in sent.chunks(100) {
            let len = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], datagram);
        }
        socket.set_gro(true).unwrap();
        assert!(socket.try_clone().unwrap().gro().unwrap());
        let received = socket.recv_datagram(&mut buffer).unwrap();
        assert_eq!((received.len, received.stride), (64 * 100, 100));
        assert_eq!(buffer[..received.len], sent);
    });
}
