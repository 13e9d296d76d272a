//! One side of the comparison: its sockets, and what each call does with them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use towpath_net::BindOptions;

use super::calls::{ListenerCalls, Outcome, StreamCalls, UdpCalls, text};
use super::known;
use super::step::{
    At, Bind, Direction, LISTENERS, ListenerCall, Peer, STREAMS, Setting, Step, StreamCall, To,
    UDPS, UdpCall,
};
use super::world::{Host, Names, Ready, Socket, World};

/// A socket that is bound.
struct Bound<S> {
    socket: S,
    at: At,
    port: u16,
    /// `true` if several sockets may share the port: which of them a peer reaches is chance.
    is_shared: bool,
    /// `true` if it was connected: on the kernel, one at all addresses then has one address.
    was_connected: bool,
}

/// A world with the sockets of a sequence.
pub(super) struct Side<W: World> {
    pub(super) world: W,
    listeners: [Option<Bound<W::Listener>>; LISTENERS as usize],
    streams: [Option<W::Stream>; STREAMS as usize],
    udps: [Option<Bound<W::Udp>>; UDPS as usize],
    /// The other end of a stream, once it was accepted.
    ends: [Option<usize>; STREAMS as usize],
    /// Streams that have shut down reading, or whose peer has.
    unread: [bool; STREAMS as usize],
    /// Streams whose connect was ended by a shutdown.
    ended: [bool; STREAMS as usize],
    /// Streams that a listener's side has accepted.
    accepted: [bool; STREAMS as usize],
    /// Those that still connect: nothing answers.
    connecting: [bool; STREAMS as usize],
    names: Names,
}

fn host_of_udp(udp: usize) -> Host {
    if udp < usize::from(UDPS) / 2 { Host::B } else { Host::A }
}

impl<W: World> Side<W> {
    pub(super) fn new(world: W) -> Side<W> {
        Side {
            world,
            listeners: [const { None }; LISTENERS as usize],
            streams: [const { None }; STREAMS as usize],
            udps: [const { None }; UDPS as usize],
            ends: [None; STREAMS as usize],
            unread: [false; STREAMS as usize],
            ended: [false; STREAMS as usize],
            accepted: [false; STREAMS as usize],
            connecting: [false; STREAMS as usize],
            names: Names::default(),
        }
    }

    fn address(&self, host: Host, bind: Bind, port: u16) -> (SocketAddr, BindOptions) {
        let ip = match bind.at {
            At::V4 => self.world.ip(host, false),
            At::V6 => self.world.ip(host, true),
            At::AnyV4 => Ipv4Addr::UNSPECIFIED.into(),
            At::Any | At::AnyV6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut options = BindOptions::default();
        (options.only_v6, options.reuse_port) = (bind.at == At::AnyV6, bind.reuse_port);
        (SocketAddr::new(ip, port), options)
    }

    fn show(&self, is_udp: bool, outcome: Outcome) -> String {
        match outcome {
            Outcome::Text(text) => text,
            Outcome::Address(address) => {
                text(address.map(|address| self.names.show(is_udp, address)))
            }
            Outcome::Datagram(data, from) => {
                format!("{data} from {}", self.names.show(is_udp, from))
            }
        }
    }

    /// Makes a call. Returns its outcome as text; empty if the call names an empty slot.
    pub(super) fn step(&mut self, number: usize, step: Step) -> String {
        let outcome = self.call(number, step).unwrap_or_default();
        self.world.settle();
        outcome
    }

    fn call(&mut self, number: usize, step: Step) -> Option<String> {
        match step {
            Step::Listen { listener, bind } => self.listen(listener.into(), bind),
            Step::Listener { listener, call } => {
                let outcome = self.listeners[usize::from(listener)].as_mut()?.socket.call(call);
                Some(self.show(false, outcome))
            }
            Step::Connect { stream, to, nonblocking } => {
                self.connect(stream.into(), to, nonblocking)
            }
            Step::ConnectAgain { stream, of } => self.connect_again(stream.into(), of.into()),
            Step::Accept { listener, stream } => self.accept(listener.into(), stream.into()),
            Step::Stream { stream, call } => self.stream(number, stream.into(), call),
            Step::Fill { stream } => self.fill(stream.into()),
            Step::Bind { udp, bind } => self.bind(udp.into(), bind),
            Step::Udp { udp, call } => self.datagram(number, udp.into(), call),
            Step::DropListener { listener } => {
                self.listeners[usize::from(listener)].take().map(|_| String::from("dropped"))
            }
            Step::DropStream { stream } => {
                let stream = usize::from(stream);
                self.streams[stream].take()?;
                if let Some(end) = self.ends[stream].take() {
                    self.ends[end] = None;
                }
                Some(String::from("dropped"))
            }
            Step::DropUdp { udp } => {
                self.udps[usize::from(udp)].take().map(|_| String::from("dropped"))
            }
        }
    }

    fn listen(&mut self, listener: usize, bind: Bind) -> Option<String> {
        if self.listeners[listener].is_some() {
            return None;
        }
        let port = match bind.port_of {
            Some(of) => self.listeners[usize::from(of)].as_ref()?.port,
            None => 0,
        };
        let (address, options) = self.address(Host::A, bind, port);
        Some(match self.world.listen(address, options) {
            Ok(mut socket) => {
                let Outcome::Address(Ok(local)) = socket.call(ListenerCall::LocalAddr) else {
                    return Some(String::from("no address"));
                };
                self.names.learn(false, Ok(local), Host::A);
                let (at, port, is_shared) = (bind.at, local.port(), bind.reuse_port);
                self.listeners[listener] =
                    Some(Bound { socket, at, port, is_shared, was_connected: false });
                String::from("Ok")
            }
            Err(error) => format!("{:?}", error.kind()),
        })
    }

    fn connect(&mut self, stream: usize, to: To, nonblocking: bool) -> Option<String> {
        if self.streams[stream].is_some() {
            return None;
        }
        (self.connecting[stream], self.accepted[stream]) = (to == To::Silent, false);
        let to = match to {
            To::Listener { listener, v6 } => {
                let bound = self.listeners[usize::from(listener)].as_ref()?;
                let v6 = match bound.at {
                    At::V4 | At::AnyV4 => false,
                    At::V6 | At::AnyV6 => true,
                    At::Any => v6,
                };
                (!bound.is_shared).then_some(())?;
                SocketAddr::new(self.world.ip(Host::A, v6), bound.port)
            }
            To::Closed => SocketAddr::new(self.world.ip(Host::A, false), 1),
            To::Silent => self.world.silent(),
        };
        Some(self.connect_to(stream, 0, to, nonblocking))
    }

    fn connect_again(&mut self, stream: usize, of: usize) -> Option<String> {
        if self.streams[stream].is_some() {
            return None;
        }
        let first = self.streams[of].as_mut()?;
        let Outcome::Address(Ok(from)) = first.call(0, StreamCall::LocalAddr) else { return None };
        let Outcome::Address(Ok(to)) = first.call(0, StreamCall::PeerAddr) else { return None };
        (self.connecting[stream], self.accepted[stream]) = (false, false);
        Some(self.connect_to(stream, from.port(), to, true))
    }

    fn connect_to(
        &mut self,
        stream: usize,
        from: u16,
        to: SocketAddr,
        nonblocking: bool,
    ) -> String {
        match self.world.connect(from, to, nonblocking) {
            Ok(mut made) => {
                if let Outcome::Address(local) = made.call(0, StreamCall::LocalAddr) {
                    self.names.learn(false, local, Host::B);
                }
                self.streams[stream] = Some(made);
                (self.ends[stream], self.unread[stream], self.ended[stream]) = (None, false, false);
                String::from("Ok")
            }
            Err(error) => format!("{:?}", error.kind()),
        }
    }

    fn accept(&mut self, listener: usize, stream: usize) -> Option<String> {
        if self.streams[stream].is_some() {
            return None;
        }
        let listener = self.listeners[listener].as_ref()?;
        Some(match self.world.accept(&listener.socket) {
            Ok((made, peer)) => {
                self.streams[stream] = Some(made);
                (self.ends[stream], self.unread[stream]) = (None, false);
                self.accepted[stream] = true;
                let is_peer = |client: &usize| {
                    let one = self.streams[*client].as_mut();
                    one.is_some_and(|one| {
                        let local = one.call(0, StreamCall::LocalAddr);
                        matches!(local, Outcome::Address(Ok(local)) if local.port() == peer.port())
                    })
                };
                if let Some(client) = (0..usize::from(STREAMS) / 2).find(is_peer) {
                    (self.ends[stream], self.ends[client]) = (Some(client), Some(stream));
                    self.unread[stream] = self.unread[client];
                    self.accepted[client] = true;
                }
                format!("Ok from {}", self.names.show(false, peer))
            }
            Err(error) => format!("{:?}", error.kind()),
        })
    }

    fn stream(&mut self, number: usize, stream: usize, call: StreamCall) -> Option<String> {
        self.streams[stream].as_ref()?;
        if self.ended[stream] {
            return None;
        }
        let is_write = matches!(call, StreamCall::Write(_) | StreamCall::WriteVectored(..));
        match call {
            // What arrives after a shutdown of reading differs: see `known`.
            _ if is_write && self.unread[stream] => return None,
            // A drop would reset a connection that was not accepted.
            StreamCall::Set(Setting::Linger(Some(0))) if !self.accepted[stream] => return None,
            StreamCall::Shutdown(_) if self.connecting[stream] => self.ended[stream] = true,
            StreamCall::Shutdown(Direction::Read | Direction::Both) => {
                // The other end is not known before it was accepted.
                let end = self.ends[stream]?;
                self.drain(stream);
                (self.unread[stream], self.unread[end]) = (true, true);
            }
            _ => {}
        }
        let outcome = self.streams[stream].as_mut()?.call(number, call);
        Some(self.show(false, outcome))
    }

    /// Reads all that has arrived.
    fn drain(&mut self, stream: usize) {
        loop {
            let Some(stream) = self.streams[stream].as_mut() else { return };
            let _ = stream.call(0, StreamCall::Set(Setting::Nonblocking(true)));
            let Outcome::Text(read) = stream.call(0, StreamCall::Read(u16::MAX)) else { return };
            if !read.starts_with('(') || read.starts_with("(0,") {
                return;
            }
        }
    }

    /// Writes until there is no room, and reads it at the other end.
    fn fill(&mut self, from: usize) -> Option<String> {
        let to = self.ends[from].filter(|_| !self.unread[from])?;
        for one in [from, to] {
            self.streams[one].as_mut()?.call(0, StreamCall::Set(Setting::Nonblocking(true)));
        }
        let (mut written, mut read) = (0, 0);
        let last = loop {
            let Outcome::Text(wrote) =
                self.streams[from].as_mut()?.call(0, StreamCall::Write(u16::MAX))
            else {
                return None;
            };
            let Ok(len) = wrote.parse::<usize>() else { break wrote };
            written += len;
            self.world.settle();
        };
        for _ in 0..10_000 {
            self.world.settle();
            let Outcome::Text(got) = self.streams[to].as_mut()?.call(0, StreamCall::Read(u16::MAX))
            else {
                return None;
            };
            let len = got
                .strip_prefix('(')
                .and_then(|rest| rest.split(',').next()?.parse::<usize>().ok());
            match len {
                Some(0) => break,
                Some(len) => read += len,
                // What was written before the call is read, too.
                None if read >= written => break,
                None if got == "WouldBlock" => self.world.pass(),
                None => break,
            }
        }
        Some(format!("{last}, something written: {}, all read: {}", written > 0, read >= written))
    }

    fn bind(&mut self, udp: usize, bind: Bind) -> Option<String> {
        if self.udps[udp].is_some() {
            return None;
        }
        let host = host_of_udp(udp);
        let port = match bind.port_of {
            // On the kernel, both hosts are one.
            Some(of) if host_of_udp(of.into()) != host => return None,
            Some(of) => {
                let bound = self.udps[usize::from(of)].as_ref()?;
                let is_any = matches!(bound.at, At::Any | At::AnyV4 | At::AnyV6);
                (!is_any || !bound.was_connected).then_some(bound.port)?
            }
            None => 0,
        };
        let (address, options) = self.address(host, bind, port);
        Some(match self.world.bind(host, address, options) {
            Ok(mut socket) => {
                let Outcome::Address(Ok(local)) = socket.call(0, UdpCall::LocalAddr, None) else {
                    return Some(String::from("no address"));
                };
                self.names.learn(true, Ok(local), host);
                let (at, port, is_shared) = (bind.at, local.port(), bind.reuse_port);
                self.udps[udp] = Some(Bound { socket, at, port, is_shared, was_connected: false });
                String::from("Ok")
            }
            Err(error) => format!("{:?}", error.kind()),
        })
    }

    fn datagram(&mut self, number: usize, udp: usize, call: UdpCall) -> Option<String> {
        let at = self.udps[udp].as_ref()?.at;
        let peer = match call {
            UdpCall::Connect(peer) | UdpCall::SendTo(peer, _) => {
                Some(self.peer(at, host_of_udp(udp), peer)?)
            }
            _ => None,
        };
        let bound = self.udps[udp].as_mut()?;
        bound.was_connected |= matches!(call, UdpCall::Connect(_));
        let outcome = bound.socket.call(number, call, peer);
        Some(self.show(true, outcome))
    }

    /// Returns the address that a socket at `at` has to name to reach a peer.
    fn peer(&self, at: At, host: Host, peer: Peer) -> Option<SocketAddr> {
        let is_v6 = |at| !matches!(at, At::V4 | At::AnyV4);
        let own_v6 = is_v6(at);
        let other = if host == Host::A { Host::B } else { Host::A };
        Some(match peer {
            // On the kernel, a socket at all addresses sends from another one than its host's.
            _ if at == At::AnyV4 => return None,
            Peer::Udp(peer) => {
                let bound = self.udps[usize::from(peer)].as_ref()?;
                (own_v6 == is_v6(bound.at) && !bound.is_shared).then_some(())?;
                SocketAddr::new(self.world.ip(host_of_udp(peer.into()), own_v6), bound.port)
            }
            Peer::Closed => SocketAddr::new(self.world.ip(other, own_v6), 1),
            Peer::PortZero => SocketAddr::new(self.world.ip(other, own_v6), 0),
            Peer::OtherFamily => {
                (at != At::Any).then_some(())?;
                SocketAddr::new(self.world.ip(other, !own_v6), 1)
            }
        })
    }

    /// Returns the state of all sockets, by their names.
    pub(super) fn state(&mut self) -> Vec<(String, (Ready, usize))> {
        let (mut names, mut sockets) = (Vec::new(), Vec::new());
        for (listener, at) in self.listeners.iter().zip(0..) {
            let Some(Bound { socket: listener, .. }) = listener else { continue };
            names.push(format!("l{at}"));
            sockets.push((at, Socket::Listener(listener)));
        }
        for (stream, at) in self.streams.iter().zip(0..) {
            let Some(stream) = stream.as_ref().filter(|_| !self.ended[at as usize]) else {
                continue;
            };
            names.push(format!("s{at}"));
            sockets.push((100 + at, Socket::Stream(stream)));
        }
        for (udp, at) in self.udps.iter().zip(0..) {
            let Some(Bound { socket: udp, .. }) = udp else { continue };
            names.push(format!("u{at}"));
            sockets.push((200 + at, Socket::Udp(udp)));
        }
        let ready = self.world.ready(&sockets);
        let comparable = |(name, (ready, waiting)): (String, _)| {
            let ready = known::comparable(&name, ready);
            (name, (ready, waiting))
        };
        names.into_iter().zip(ready).map(comparable).collect()
    }
}
