//! An application that forks while another thread holds the locks of its network: the child's calls
//! fail at once, and the parent's network continues.
//!
//! Unsafe lives here because the child duplicates values, of which parent and child each have one in their own memory.

mod calls;
mod gate;

use std::fs::File;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use towpath_client::{Options, Session};
use towpath_net::{
    Driving, Events, Interest, Network, Poller, SessionLink, TcpListener, TcpStream, Trigger,
    UdpSocket,
};

use crate::forked::{fork, status};
use calls::{CHILDS, Caller, Inherited};
use gate::{Gate, GatedLink};

const TOKEN: u64 = 7;
const PORT: u16 = 53;

/// Prints `called NAME` for each call that a child made, then `done`. `driving`: `thread` or
/// `application`.
pub(crate) fn run(socket: &Path, driving: &str) {
    let driving = if driving == "thread" { Driving::Thread } else { Driving::Application };
    let gate = Arc::new(Gate::default());
    let link = SessionLink::new(session(socket)).expect("opens");
    let config = link.config();
    let link = GatedLink { link, gate: gate.clone() };
    let network = Network::builder().driving(driving).on(Box::new(link), config).expect("starts");
    let other = Network::attach(socket).expect("attaches");
    let from = UdpSocket::bind(&other, (address(&other), PORT)).expect("binds");
    let (inherited, peers) = inherited(socket, network, &other);
    let inherited = ManuallyDrop::new(inherited);

    let udp = &inherited.udp;
    // The question comes before a thread at the gate holds the network's locks.
    let at = udp.local_addr().expect("lives");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut bytes = [0; 64];
            let (count, _) = udp.recv_from(&mut bytes).expect("lives");
            bytes[..count].to_vec()
        });
        gate.close();
        from.send_to(b"parent's", at).expect("sends");
        gate.wait_for_a_thread();
        scope.spawn(|| {
            let mut bytes = [0; 64];
            let (count, child) = from.recv_from(&mut bytes).expect("lives");
            assert_eq!(&bytes[..count], CHILDS);
            from.send_to(CHILDS, child).expect("sends");
        });
        let to = SocketAddr::new(address(&other), PORT);
        let called = call_all_in_a_child(&inherited, socket, to);
        gate.open();
        assert_eq!(waiting.join().expect("lives"), b"parent's");
        called.lines().for_each(|name| println!("called {name}"));
    });
    check_parent(ManuallyDrop::into_inner(inherited), &other, peers);
    println!("done");
}

fn session(socket: &Path) -> Session {
    Session::attach(socket, &SessionLink::options("forked")).expect("attaches")
}

fn address(network: &Network) -> IpAddr {
    network.addresses().into_iter().find(IpAddr::is_ipv4).expect("an address")
}

/// Connects a stream of `other` with a listener of another network.
fn connection(listener: &TcpListener, other: &Network) -> (TcpStream, TcpStream) {
    let at = listener.local_addr().expect("lives");
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| TcpStream::connect(other, at).expect("connects"));
        let (stream, _) = listener.accept().expect("accepts");
        (stream, connecting.join().expect("lives"))
    })
}

/// Makes the values that the child inherits, with an event that waits in the poller.
fn inherited(socket: &Path, network: Network, other: &Network) -> (Inherited, [TcpStream; 2]) {
    let at = address(&network);
    let bind = |port| TcpListener::bind(&network, (at, port)).expect("binds");
    let (listener, incoming) = (bind(80), bind(81));
    let ((stream, peer), (aborted, aborted_peer)) =
        (connection(&listener, other), connection(&listener, other));
    // A drop of the last handle would wait for the peer.
    stream.set_linger(Some(Duration::from_secs(3600))).expect("lives");
    let poller = Poller::new().expect("makes");
    poller.register(&stream, TOKEN, Interest::WRITABLE, Trigger::Edge).expect("lives");
    let udp = UdpSocket::bind(&network, (at, PORT)).expect("binds");
    let options = Options::default();
    let plain = || Session::attach(socket, &options).expect("attaches");
    let link = || SessionLink::new(session(socket)).expect("opens");
    let (sessions, links) = ([plain(), plain(), plain()], [link(), link()]);
    let inherited =
        Inherited { network, udp, stream, aborted, listener, incoming, poller, sessions, links };
    (inherited, [peer, aborted_peer])
}

/// Makes all calls in a child. Returns their names, one a line. If the child fails, ends this process,
/// whose other threads wait.
fn call_all_in_a_child(
    inherited: &ManuallyDrop<Inherited>,
    server: &Path,
    to: SocketAddr,
) -> String {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let (mut reader, report) = (File::from(reader), File::from(writer));
    let mut caller = Caller { report };
    let child = fork(|| {
        // SAFETY: in the child this is the only one; the parent's lies in another memory.
        let inherited = unsafe { std::ptr::read(&raw const **inherited) };
        calls::all(&mut caller, inherited, server, to);
        0
    });
    drop(caller);
    let status = status(child);
    let mut called = String::new();
    reader.read_to_string(&mut called).expect("the child's report");
    if status != 0 {
        let last = called.lines().last();
        eprintln!("the child ended with {status} (14: its time was over) in {last:?}");
        std::process::exit(1);
    }
    called
}

/// Checks that the inherited values still work in the parent, and that nothing is lost.
fn check_parent(inherited: Inherited, other: &Network, peers: [TcpStream; 2]) {
    let mut readable = [PollFd::new(&inherited.poller, PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut readable, Some(&none)), Ok(1), "the event was the parent's");
    let mut events = Events::default();
    assert_eq!(inherited.poller.wait(&mut events, Some(Duration::ZERO)).expect("lives"), 1);
    assert_eq!(events.iter().map(|event| event.token).collect::<Vec<_>>(), [TOKEN]);
    let [mut peer, mut aborted_peer] = peers;
    let Inherited { network, mut stream, mut aborted, listener, incoming, .. } = inherited;
    let more = [connection(&listener, other), connection(&incoming, other)];
    let [(mut one, mut far_one), (mut two, mut far_two)] = more;
    for (near, far) in [
        (&mut stream, &mut peer),
        (&mut aborted, &mut aborted_peer),
        (&mut one, &mut far_one),
        (&mut two, &mut far_two),
    ] {
        let mut bytes = [0; 4];
        far.write_all(b"asks").expect("lives");
        near.read_exact(&mut bytes).expect("lives");
        near.write_all(&bytes).expect("lives");
        far.read_exact(&mut bytes).expect("lives");
        assert_eq!(&bytes, b"asks");
    }
    assert_eq!(stream.linger().expect("lives"), Some(Duration::from_secs(3600)));
    assert_eq!(network.connections(), 4);
    for mut session in inherited.sessions {
        session.sender().flush().expect("lives");
    }
}
