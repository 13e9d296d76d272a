//! Every public call of `towpath-net`, in a child made by `fork`.
//!
//! Unsafe lives here for `alarm`, which bounds each call.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

use towpath_client::{Lost, OpenError, Session};
use towpath_net::{
    Addresses, BindOptions, Config, Counters, DatagramToSend, Driving, Events, Flow, HostError,
    Interest, Link, LinkError, Meta, Network, NetworkBuilder, Poller, PortProtocol, Replacement,
    SessionLink, TcpListener, TcpStream, Trigger, UdpSocket,
};

/// The time limit of each call, after which the kernel ends the child.
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

/// Makes calls, and tells the parent the name of each call before it begins.
pub(super) struct Caller {
    pub(super) report: File,
}

impl Caller {
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

    /// Makes a call that returns no error. `call` returns `true` if its outcome is right.
    fn silent(&mut self, name: &str, call: impl FnOnce() -> bool) {
        self.begin(name);
        assert!(call(), "{name}");
    }
}

/// Calls of one value, by the names of its type and method, that must fail.
macro_rules! denied {
    ($caller:ident, $type:ident: $($on:ident.$method:ident($($argument:expr),*);)*) => {
        $($caller.denied(concat!(stringify!($type), "::", stringify!($method)), || {
            $on.$method($($argument),*)
        });)*
    };
}

/// Makes all calls on the inherited values. `server`: the path of a server's socket. `to`: the address of the parent's
/// socket on another network.
pub(super) fn all(caller: &mut Caller, inherited: Inherited, server: &Path, to: SocketAddr) {
    let Inherited { network, udp, mut stream, aborted, .. } = inherited;
    let Inherited { listener, incoming, poller, sessions, links, .. } = inherited;
    networks(caller, &network);
    datagrams(caller, &network, &udp, &poller);
    streams(caller, &network, &mut stream, &poller);
    settings(caller, &stream);
    listeners(caller, &network, &listener, &poller);
    pollers(caller, &poller, &udp);
    let [one, another] = links;
    link(caller, one);
    over_inherited(caller, sessions, another);
    own(caller, server, &poller, to);
    caller.silent("TcpStream::abort", || {
        aborted.abort();
        true
    });
    caller.denied("Incoming::next", || incoming.incoming().next().expect("endless"));
    caller.silent("Incoming::size_hint", || incoming.incoming().size_hint().1.is_none());
    caller.silent("TcpListener::incoming", || true);
    let mut into = None;
    caller.silent("TcpListener::into_incoming", || {
        into = Some(incoming.into_incoming());
        true
    });
    let mut into = into.expect("just made");
    caller.denied("IntoIncoming::next", || into.next().expect("endless"));
    caller.silent("IntoIncoming::size_hint", || into.size_hint().1.is_none());
    caller.silent("drop the last handles", || {
        drop((into, udp, listener, poller));
        drop(stream);
        drop(network);
        true
    });
}

fn pollers(caller: &mut Caller, poller: &Poller, udp: &UdpSocket) {
    let (interest, trigger) = (Interest::READABLE, Trigger::Level);
    denied!(caller, Poller:
        poller.wait(&mut Events::default(), None);
        poller.register(udp, 1, interest, trigger);
        poller.modify(udp, 1, interest, trigger);
        poller.deregister(udp);
    );
    caller.silent("Poller::wake", || {
        poller.wake();
        true
    });
    caller.silent("Poller::fmt", || !format!("{poller:?}").contains("ready"));
    caller.silent("Poller::as_fd", || poller.as_fd().try_clone_to_owned().is_ok());
    caller.silent("Poller::as_raw_fd", || poller.as_raw_fd() >= 0);
}

fn networks(caller: &mut Caller, network: &Network) {
    denied!(caller, Network:
        network.work_fd();
        network.turn();
        network.drive(Duration::ZERO);
        network.drive(Duration::MAX);
        network.drain(Duration::MAX);
        network.hand_over();
        network.take_over();
    );
    caller.silent("Network::counters", || network.counters() == Counters::default());
    caller.silent("Network::lost", || network.lost() == 0);
    caller.silent("Network::end", || network.clone().end(SECOND) == Counters::default());
    caller.silent("Network::is_taken_over", || !network.is_taken_over());
    caller.silent("Network::sockets", || network.sockets().is_empty());
    caller.silent("Network::connections", || network.connections() == 0);
    caller.silent("Network::addresses", || network.addresses().is_empty());
    caller.silent("Network::fmt", || !format!("{network:?}").contains("10."));
    caller.silent("drop a clone", || {
        drop(network.clone());
        true
    });
}

/// Makes the calls that both streams and UDP sockets have.
macro_rules! common_calls {
    ($caller:ident, $type:ident, $socket:ident, $poller:ident) => {
        denied!($caller, $type:
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
            $socket.set_tos(8);
            $socket.tos();
            $socket.try_clone();
        );
        let register =
            |poller: &Poller| poller.register($socket, 1, Interest::READABLE, Trigger::Level);
        let own = Poller::new().expect("a poller of the child's own");
        $caller.denied("register with the child's own poller", || register(&own));
        $caller.denied("register with the inherited poller", || register($poller));
        let name = concat!(stringify!($type), "::fmt");
        $caller.silent(name, || format!("{:?}", $socket).contains("None"));
    };
}

fn datagrams(caller: &mut Caller, network: &Network, udp: &UdpSocket, poller: &Poller) {
    let (mut buffer, to) = ([0; 64], "10.0.0.1:9");
    caller.denied("UdpSocket::bind", || UdpSocket::bind(network, "0.0.0.0:0"));
    let options = BindOptions::default();
    caller.denied("UdpSocket::bind_with", || UdpSocket::bind_with(network, "0.0.0.0:0", options));
    common_calls!(caller, UdpSocket, udp, poller);
    denied!(caller, UdpSocket:
        udp.connect(to);
        udp.send_to(b"?", to);
        udp.send(b"?");
        udp.recv_from(&mut buffer);
        udp.recv(&mut buffer);
        udp.recv_datagram(&mut buffer);
        udp.recv_many(&mut [], &mut Vec::new());
        udp.recv_many(&mut [IoSliceMut::new(&mut [0])], &mut Vec::new());
        udp.set_dont_fragment(true);
        udp.dont_fragment();
        udp.set_gro(true);
        udp.gro();
        udp.send_many(&[]);
        udp.send_many(&[DatagramToSend::to_peer(b"?")]);
        udp.peek_from(&mut buffer);
        udp.peek(&mut buffer);
        udp.dropped();
        udp.set_multicast_ttl_v4(7);
        udp.multicast_ttl_v4();
        udp.join_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &Ipv4Addr::UNSPECIFIED);
        udp.join_multicast_v6(&Ipv6Addr::LOCALHOST, 0);
        udp.leave_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &Ipv4Addr::UNSPECIFIED);
        udp.leave_multicast_v6(&Ipv6Addr::LOCALHOST, 0);
        udp.set_multicast_loop_v4(false);
        udp.multicast_loop_v4();
        udp.set_multicast_loop_v6(false);
        udp.multicast_loop_v6();
        udp.set_broadcast(true);
        udp.broadcast();
    );
}

fn streams(caller: &mut Caller, network: &Network, stream: &mut TcpStream, poller: &Poller) {
    let (mut buffer, to) = ([0; 64], SocketAddr::from(([10, 0, 0, 1], 9)));
    let any = SocketAddr::from(([0; 4], 0));
    caller.denied("TcpStream::connect", || TcpStream::connect(network, to));
    caller
        .denied("TcpStream::connect_timeout", || TcpStream::connect_timeout(network, &to, SECOND));
    caller.denied("TcpStream::connect_from", || TcpStream::connect_from(network, any, to));
    caller.denied("TcpStream::connect_nonblocking_from", || {
        TcpStream::connect_nonblocking_from(network, any, to)
    });
    caller.denied("TcpStream::connect_nonblocking", || TcpStream::connect_nonblocking(network, to));
    common_calls!(caller, TcpStream, stream, poller);
    denied!(caller, TcpStream:
        stream.send_urgent(b"!");
        stream.urgent();
        stream.peek(&mut buffer);
        stream.peek(&mut []);
        stream.shutdown(Shutdown::Both);
    );
    read_write(caller, "TcpStream", stream);
    read_write(caller, "&TcpStream", &mut &*stream);
}

fn read_write(caller: &mut Caller, name: &str, on: &mut (impl Read + Write)) {
    let mut buffer = [0; 64];
    let name = |method: &str| format!("{name}::{method}");
    caller.denied(&name("read"), || on.read(&mut buffer));
    caller.denied(&name("read"), || on.read(&mut []));
    let mut parts = [IoSliceMut::new(&mut buffer)];
    caller.denied(&name("read_vectored"), || on.read_vectored(&mut parts));
    caller.denied(&name("read_vectored"), || on.read_vectored(&mut []));
    caller.denied(&name("write"), || on.write(b"!"));
    caller.denied(&name("write"), || on.write(b""));
    caller.denied(&name("write_vectored"), || on.write_vectored(&[IoSlice::new(b"!")]));
    caller.denied(&name("flush"), || on.flush());
}

fn settings(caller: &mut Caller, stream: &TcpStream) {
    denied!(caller, TcpStream:
        stream.set_linger(None);
        stream.linger();
        stream.set_nodelay(true);
        stream.nodelay();
        stream.set_cork(true);
        stream.cork();
        stream.set_quickack(true);
        stream.quickack();
        stream.set_keep_alive(None);
        stream.keep_alive();
        stream.set_user_timeout(None);
        stream.user_timeout();
        stream.info();
        stream.is_connected();
    );
}

fn listeners(caller: &mut Caller, network: &Network, listener: &TcpListener, poller: &Poller) {
    caller.denied("TcpListener::bind", || TcpListener::bind(network, "0.0.0.0:0"));
    let options = BindOptions::default();
    caller
        .denied("TcpListener::bind_with", || TcpListener::bind_with(network, "0.0.0.0:0", options));
    denied!(caller, TcpListener:
        listener.accept();
        listener.local_addr();
        listener.set_nonblocking(true);
        listener.set_ttl(7);
        listener.ttl();
        listener.take_error();
        listener.try_clone();
    );
    caller.denied("register with the inherited poller", || {
        poller.register(listener, 1, Interest::READABLE, Trigger::Level)
    });
    caller.silent("TcpListener::fmt", || format!("{listener:?}").contains("None"));
}

/// Makes the calls of a link without a network.
fn link(caller: &mut Caller, mut link: SessionLink) {
    let any = SocketAddr::from(([0, 0, 0, 0], 9));
    caller.silent("SessionLink::options", || SessionLink::options("child").name == "child");
    caller.silent("SessionLink::session_info", || link.session_info().mtu > 0);
    caller.silent("SessionLink::statistics", || link.statistics() == link.statistics());
    caller.silent("SessionLink::config", || link.config().mac == link.info().mac);
    caller.silent("SessionLink::info", || link.info().mtu > 0);
    caller.silent("SessionLink::opens_ports", || !link.opens_ports());
    caller.silent("SessionLink::sends_in_order", || link.sends_in_order());
    caller.silent("SessionLink::next_revoked_port", || link.next_revoked_port().is_none());
    caller.denied("SessionLink::sleep_fd", || link.sleep_fd());
    caller.denied("SessionLink::open_groups", || link.open_groups(true));
    caller.denied("SessionLink::open_port", || link.open_port(PortProtocol::Udp, any));
    caller.denied_link("SessionLink::receive", || link.receive(8, &mut |_, _| panic!("a packet")));
    caller.denied_link("SessionLink::has_news", || link.has_news());
    caller.denied_link("SessionLink::flush", || link.flush());
    caller.denied_link("SessionLink::unsent", || link.unsent());
    caller.silent("SessionLink::replacement", || link.replacement().is_some());
    caller.silent("SessionLink::is_shared", || !link.is_shared());
    caller.silent("SessionLink::is_taken_over", || !link.is_taken_over());
    caller.denied("SessionLink::begin", || link.begin());
    caller.denied("SessionLink::hand_over", || link.hand_over());
    let flow = Flow { protocol: 6, local: any, remote: any };
    // Without flows there is nothing to keep, to forget or to take over.
    caller.silent("SessionLink::keep", || link.keep(&flow).is_err());
    caller.silent("SessionLink::next_refused", || link.next_refused().is_none());
    caller.silent("SessionLink::cancel", || {
        link.cancel();
        true
    });
    caller.silent("SessionLink::retain", || link.retain(&HashSet::new()).is_ok());
    caller.silent("SessionLink::take_over", || link.take_over().is_ok());
    caller.silent("SessionLink::lost", || link.lost() == 0);
    caller.denied_link("SessionLink::arm", || link.arm(true));
    caller.silent("SessionLink::room", || !link.room(60));
    let mut fill = |_: &mut [u8]| panic!("there is no room");
    caller.silent("SessionLink::transmit", || !link.transmit(60, Meta::FULL, &mut fill));
    caller.silent("SessionLink::disarm", || {
        link.disarm();
        link.close_port(PortProtocol::Udp, any);
        true
    });
    caller.silent("SessionLink::close_port", || {
        drop(link);
        true
    });
}

/// Tries to make networks over inherited sessions and links.
fn over_inherited(caller: &mut Caller, sessions: [Session; 3], link: SessionLink) {
    let [one, another, third] = sessions;
    let is_forked = |error: &OpenError| matches!(error, OpenError::Lost(Lost::Forked));
    caller
        .silent("SessionLink::new", || SessionLink::new(one).err().as_ref().is_some_and(is_forked));
    caller.silent("SessionLink::within_vlan", || {
        SessionLink::within_vlan(another, 7).err().as_ref().is_some_and(is_forked)
    });
    caller.silent("NetworkBuilder::over", || {
        let error = Network::builder().over(third).err();
        matches!(error, Some(HostError::Open(error)) if is_forked(&error))
    });
    let config = Config::new([2, 0, 0, 0, 0, 1]);
    caller.denied("NetworkBuilder::on", || Network::builder().on(Box::new(link), config));
}

/// Makes the calls that set properties of a network.
fn builder(caller: &mut Caller, server: &Path) {
    let new = Network::builder;
    let has = |builder: NetworkBuilder, text: &str| format!("{builder:?}").contains(text);
    caller.silent("Network::builder", || has(new(), "driving: Thread"));
    caller.silent("NetworkBuilder::fmt", || has(new(), "vlan: None"));
    caller.silent("NetworkBuilder::name", || has(new().name("child"), "name: \"child\""));
    caller.silent("NetworkBuilder::ipv4", || has(new().ipv4([10, 0, 0, 9].into()), "10.0.0.9"));
    caller.silent("NetworkBuilder::addresses", || {
        has(new().addresses(Addresses::Own), "addresses: Own")
    });
    caller.silent("NetworkBuilder::replacing", || {
        has(new().replacing(9 * SECOND), "replace: Some(9s)")
    });
    caller.silent("NetworkBuilder::own_queue", || has(new().own_queue(true), "own_queue: true"));
    caller.silent("NetworkBuilder::answer_timeout", || {
        has(new().answer_timeout(9 * SECOND), "answer_timeout: 9s")
    });
    caller.silent("NetworkBuilder::resume_timeout", || {
        has(new().resume_timeout(9 * SECOND), "resume_timeout: 9s")
    });
    caller.silent("NetworkBuilder::session", || {
        has(new().session(|options| options.receive_slots = 64), "receive_slots: 64")
    });
    caller.silent("NetworkBuilder::driving", || {
        has(new().driving(Driving::Application), "driving: Application")
    });
    caller.silent("NetworkBuilder::stack", || {
        new().stack(|config| config.limits.sockets = 9).attach(server).is_ok()
    });
}

/// Checks that the child's own networks work, and that the inherited poller registers none of their sockets.
fn own(caller: &mut Caller, server: &Path, poller: &Poller, to: SocketAddr) {
    builder(caller, server);
    caller.silent("Network::attach", || Network::attach(server).is_ok());
    caller.silent("NetworkBuilder::vlan", || Network::builder().vlan(7).attach(server).is_ok());
    let mut own = None;
    caller.silent("NetworkBuilder::attach", || {
        own = Network::builder().attach(server).ok();
        own.is_some()
    });
    let own = own.expect("just made");
    let socket = UdpSocket::bind(&own, "0.0.0.0:0").expect("binds");
    let register = |poller: &Poller| poller.register(&socket, 1, Interest::READABLE, Trigger::Edge);
    caller.denied("register with the inherited poller", || register(poller));
    let mut fresh = None;
    caller.silent("Poller::new", || {
        fresh = Poller::new().ok();
        fresh.is_some()
    });
    let fresh = fresh.expect("just made");
    caller.silent("use the child's own network", || {
        register(&fresh).is_ok() && socket.send_to(CHILDS, to).is_ok()
    });
    caller.silent("receive in the child's own network", || {
        let mut buffer = [0; 64];
        socket.recv(&mut buffer).is_ok_and(|count| &buffer[..count] == CHILDS)
    });
}
