//! Every public call of `towpath-net`, in a child made by `fork`.
//!
//! Unsafe lives here for `alarm`, which bounds each call.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use towpath_client::{Lost, OpenError, Session};
use towpath_net::{
    Config, Counters, Driving, HostError, Link, LinkError, Meta, Network, Poller, PortProtocol,
    SessionLink, TcpListener, TcpStream, UdpSocket,
};

/// The bound of each call, after which the kernel ends the child.
const BOUND_SECONDS: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);
/// The datagram of the child's own network.
pub(super) const CHILDS: &[u8] = b"of the child's own network";

/// What a child inherits. Each value is the only handle.
pub(super) struct Inherited {
    pub(super) network: Network,
    pub(super) udp: UdpSocket,
    pub(super) stream: TcpStream,
    pub(super) aborted: TcpStream,
    pub(super) listener: TcpListener,
    pub(super) incoming: TcpListener,
    pub(super) poller: Poller,
    pub(super) sessions: [Session; 3],
    pub(super) links: [SessionLink; 2],
}

/// Tells the parent of each call before it begins.
pub(super) struct Walk {
    pub(super) report: File,
}

impl Walk {
    fn begin(&mut self, name: &str) {
        writeln!(self.report, "{name}").expect("the parent listens");
        // SAFETY: sets a timer of this process, whose signal ends it.
        unsafe { libc::alarm(BOUND_SECONDS) };
    }

    /// Makes a call that must fail with the named error.
    fn denied<T>(&mut self, name: &str, call: impl FnOnce() -> io::Result<T>) {
        self.begin(name);
        let Err(error) = call() else { panic!("{name} succeeded") };
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        assert!(matches!(cause, Some(LinkError::Forked)), "{name}: {error:?}");
        assert_eq!(error.kind(), ErrorKind::NetworkDown, "{name}");
    }

    /// Makes a call of a link that must fail with the named error.
    fn denied_link<T>(&mut self, name: &str, call: impl FnOnce() -> Result<T, LinkError>) {
        self.begin(name);
        assert!(matches!(call(), Err(LinkError::Forked)), "{name}");
    }

    /// Makes a call that fails with no error, but must show and change nothing.
    fn silent(&mut self, name: &str, call: impl FnOnce() -> bool) {
        self.begin(name);
        assert!(call(), "{name}");
    }
}

/// Calls of one value, by the names of its type and method, that must fail.
macro_rules! denied {
    ($walk:ident, $type:ident: $($on:ident.$method:ident($($argument:expr),*);)*) => {
        $($walk.denied(concat!(stringify!($type), "::", stringify!($method)), || {
            $on.$method($($argument),*)
        });)*
    };
}

/// Makes all calls, with the only handles of what the parent made. `server`: the path of a server.
/// `to`: the parent's socket on another network.
pub(super) fn all(walk: &mut Walk, inherited: Inherited, server: &Path, to: SocketAddr) {
    let Inherited { network, udp, mut stream, aborted, .. } = inherited;
    let Inherited { listener, incoming, poller, sessions, links, .. } = inherited;
    networks(walk, &network);
    datagrams(walk, &network, &udp, &poller);
    streams(walk, &network, &mut stream, &poller);
    settings(walk, &stream);
    listeners(walk, &network, &listener, &poller);
    walk.silent("Poller::take", || {
        let mut events = Vec::new();
        poller.take(&mut events);
        events.is_empty()
    });
    walk.silent("Poller::as_fd", || poller.as_fd().try_clone_to_owned().is_ok());
    let [one, another] = links;
    link(walk, one);
    over_inherited(walk, sessions, another);
    own(walk, server, &poller, to);
    walk.silent("TcpStream::abort", || {
        aborted.abort();
        true
    });
    walk.denied("Incoming::next", || incoming.incoming().next().expect("endless"));
    walk.silent("Incoming::size_hint", || incoming.incoming().size_hint().1.is_none());
    walk.silent("TcpListener::incoming", || true);
    let mut into = None;
    walk.silent("TcpListener::into_incoming", || {
        into = Some(incoming.into_incoming());
        true
    });
    let mut into = into.expect("just made");
    walk.denied("IntoIncoming::next", || into.next().expect("endless"));
    walk.silent("IntoIncoming::size_hint", || into.size_hint().1.is_none());
    walk.silent("drop the last handles", || {
        drop((into, udp, listener, poller));
        drop(stream);
        drop(network);
        true
    });
}

fn networks(walk: &mut Walk, network: &Network) {
    denied!(walk, Network:
        network.drive(Duration::ZERO);
        network.drive(Duration::MAX);
        network.drain(Duration::MAX);
    );
    walk.silent("Network::counters", || network.counters() == Counters::default());
    walk.silent("Network::end", || network.clone().end(SECOND) == Counters::default());
    walk.silent("Network::connections", || network.connections() == 0);
    walk.silent("Network::addresses", || network.addresses().is_empty());
    walk.silent("Network::fmt", || !format!("{network:?}").contains("10."));
    walk.silent("drop a clone", || {
        drop(network.clone());
        true
    });
}

/// Calls that streams and UDP sockets have.
macro_rules! common_calls {
    ($walk:ident, $type:ident, $socket:ident, $poller:ident) => {
        denied!($walk, $type:
            $socket.local_addr();
            $socket.peer_addr();
            $socket.take_error();
            $socket.set_nonblocking(true);
            $socket.set_read_timeout(Some(SECOND));
            $socket.set_write_timeout(Some(SECOND));
            $socket.read_timeout();
            $socket.write_timeout();
            $socket.set_ttl(7);
            $socket.ttl();
            $socket.try_clone();
            $socket.watch($poller, 1);
        );
        let own = Poller::new().expect("a poller of the child's own");
        $walk.denied("watch by the child's own poller", || $socket.watch(&own, 1));
        let name = concat!(stringify!($type), "::fmt");
        $walk.silent(name, || format!("{:?}", $socket).contains("None"));
    };
}

fn datagrams(walk: &mut Walk, network: &Network, udp: &UdpSocket, poller: &Poller) {
    let (mut buffer, to) = ([0; 64], "10.0.0.1:9");
    walk.denied("UdpSocket::bind", || UdpSocket::bind(network, "0.0.0.0:0"));
    common_calls!(walk, UdpSocket, udp, poller);
    denied!(walk, UdpSocket:
        udp.connect(to);
        udp.send_to(b"?", to);
        udp.send(b"?");
        udp.recv_from(&mut buffer);
        udp.recv(&mut buffer);
        udp.peek_from(&mut buffer);
        udp.peek(&mut buffer);
        udp.dropped();
        udp.set_multicast_ttl_v4(7);
        udp.multicast_ttl_v4();
        udp.set_broadcast(true);
        udp.broadcast();
    );
}

fn streams(walk: &mut Walk, network: &Network, stream: &mut TcpStream, poller: &Poller) {
    let (mut buffer, to) = ([0; 64], SocketAddr::from(([10, 0, 0, 1], 9)));
    walk.denied("TcpStream::connect", || TcpStream::connect(network, to));
    walk.denied("TcpStream::connect_timeout", || TcpStream::connect_timeout(network, &to, SECOND));
    walk.denied("TcpStream::connect_nonblocking", || TcpStream::connect_nonblocking(network, to));
    common_calls!(walk, TcpStream, stream, poller);
    denied!(walk, TcpStream:
        stream.send_urgent(b"!");
        stream.urgent();
        stream.peek(&mut buffer);
        stream.peek(&mut []);
        stream.shutdown(Shutdown::Both);
    );
    read_write(walk, "TcpStream", stream);
    read_write(walk, "&TcpStream", &mut &*stream);
}

fn read_write(walk: &mut Walk, name: &str, on: &mut (impl Read + Write)) {
    let mut buffer = [0; 64];
    let name = |method: &str| format!("{name}::{method}");
    walk.denied(&name("read"), || on.read(&mut buffer));
    walk.denied(&name("read"), || on.read(&mut []));
    let mut parts = [IoSliceMut::new(&mut buffer)];
    walk.denied(&name("read_vectored"), || on.read_vectored(&mut parts));
    walk.denied(&name("read_vectored"), || on.read_vectored(&mut []));
    walk.denied(&name("write"), || on.write(b"!"));
    walk.denied(&name("write"), || on.write(b""));
    walk.denied(&name("write_vectored"), || on.write_vectored(&[IoSlice::new(b"!")]));
    walk.denied(&name("flush"), || on.flush());
}

fn settings(walk: &mut Walk, stream: &TcpStream) {
    denied!(walk, TcpStream:
        stream.set_linger(None);
        stream.linger();
        stream.set_nodelay(true);
        stream.nodelay();
        stream.set_keep_alive(None);
        stream.keep_alive();
        stream.set_user_timeout(None);
        stream.user_timeout();
        stream.info();
        stream.is_connected();
    );
}

fn listeners(walk: &mut Walk, network: &Network, listener: &TcpListener, poller: &Poller) {
    walk.denied("TcpListener::bind", || TcpListener::bind(network, "0.0.0.0:0"));
    walk.denied("TcpListener::bind_with", || TcpListener::bind_with(network, "0.0.0.0:0", 1));
    denied!(walk, TcpListener:
        listener.accept();
        listener.local_addr();
        listener.set_nonblocking(true);
        listener.set_ttl(7);
        listener.ttl();
        listener.take_error();
        listener.try_clone();
        listener.watch(poller, 1);
    );
    walk.silent("TcpListener::fmt", || format!("{listener:?}").contains("None"));
}

/// A link that no network has.
fn link(walk: &mut Walk, mut link: SessionLink) {
    let any = SocketAddr::from(([0, 0, 0, 0], 9));
    walk.silent("SessionLink::options", || SessionLink::options("child").name == "child");
    walk.silent("SessionLink::session_info", || link.session_info().mtu > 0);
    walk.silent("SessionLink::statistics", || link.statistics() == link.statistics());
    walk.silent("SessionLink::config", || link.config().mac == link.info().mac);
    walk.silent("SessionLink::info", || link.info().mtu > 0);
    walk.silent("SessionLink::opens_ports", || !link.opens_ports());
    walk.silent("SessionLink::next_revoked_port", || link.next_revoked_port().is_none());
    walk.denied("SessionLink::sleep_fd", || link.sleep_fd());
    walk.denied("SessionLink::open_port", || link.open_port(PortProtocol::Udp, any));
    walk.denied_link("SessionLink::receive", || link.receive(8, &mut |_, _| panic!("a packet")));
    walk.denied_link("SessionLink::has_news", || link.has_news());
    walk.denied_link("SessionLink::flush", || link.flush());
    walk.denied_link("SessionLink::unsent", || link.unsent());
    walk.denied_link("SessionLink::arm", || link.arm(true));
    walk.silent("SessionLink::room", || !link.room(60));
    let mut fill = |_: &mut [u8]| panic!("there is no room");
    walk.silent("SessionLink::transmit", || !link.transmit(60, Meta::FULL, &mut fill));
    walk.silent("SessionLink::disarm", || {
        link.disarm();
        link.close_port(PortProtocol::Udp, any);
        true
    });
    walk.silent("SessionLink::close_port", || {
        drop(link);
        true
    });
}

/// Networks over what the parent attached.
fn over_inherited(walk: &mut Walk, sessions: [Session; 3], link: SessionLink) {
    let [one, another, third] = sessions;
    let is_forked = |error: &OpenError| matches!(error, OpenError::Lost(Lost::Forked));
    walk.silent("SessionLink::new", || SessionLink::new(one).err().as_ref().is_some_and(is_forked));
    walk.silent("SessionLink::within_vlan", || {
        SessionLink::within_vlan(another, 7).err().as_ref().is_some_and(is_forked)
    });
    walk.silent("Network::over", || {
        let error = Network::over(third, Driving::Thread).err();
        matches!(error, Some(HostError::Open(error)) if is_forked(&error))
    });
    let config = Config::new([2, 0, 0, 0, 0, 1]);
    walk.denied("Network::new", || Network::new(Box::new(link), config, Driving::Thread));
}

/// The child's own networks work. The inherited poller does not take their sockets.
fn own(walk: &mut Walk, server: &Path, poller: &Poller, to: SocketAddr) {
    walk.silent("Network::attach", || Network::attach(server).is_ok());
    walk.silent("Network::attach_within_vlan", || {
        Network::attach_within_vlan(server, 7, Driving::Thread, |_| {}).is_ok()
    });
    let mut own = None;
    walk.silent("Network::attach_with", || {
        own = Network::attach_with(server, Driving::Thread, |_| {}).ok();
        own.is_some()
    });
    let own = own.expect("just made");
    let socket = UdpSocket::bind(&own, "0.0.0.0:0").expect("binds");
    walk.denied("watch by the inherited poller", || socket.watch(poller, 1));
    let mut fresh = None;
    walk.silent("Poller::new", || {
        fresh = Poller::new().ok();
        fresh.is_some()
    });
    let fresh = fresh.expect("just made");
    walk.silent("use the child's own network", || {
        socket.watch(&fresh, 1).is_ok() && socket.send_to(CHILDS, to).is_ok()
    });
    walk.silent("receive in the child's own network", || {
        let mut buffer = [0; 64];
        socket.recv(&mut buffer).is_ok_and(|count| &buffer[..count] == CHILDS)
    });
}
