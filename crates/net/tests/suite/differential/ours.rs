//! The sockets of towpath-net: two hosts at a switch in memory.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use towpath_net::testing::{Fate, Switch};
use towpath_net::{
    BindOptions, Driving, Events, Interest, Network, Poller, SocketInfo, TcpListener, TcpStream,
    Trigger, UdpSocket,
};

use super::calls::{Outcome, StreamCalls, TIMEOUT};
use super::step::StreamCall;
use super::world::{Host, Ready, Socket, World};

/// A port of host A to which the switch loses all segments.
const SILENT: u16 = 9;
/// The most rounds in which packets arrive and are answered.
const ROUNDS: usize = 10_000;

pub(super) struct Ours {
    switch: Switch,
    hosts: [Network; 2],
    driving: Driving,
    poller: Poller,
}

impl Ours {
    /// Makes two hosts. With [`Driving::Application`] all their packets and times are the same in each run.
    pub(super) fn new(seed: u64, driving: Driving) -> Ours {
        let switch = Switch::new();
        let host =
            |number: u64| {
                let builder = Network::builder().driving(driving);
                switch
                    .host_with(builder.stack(move |config| {
                        config.seed = seed.wrapping_mul(2).wrapping_add(number)
                    }))
                    .unwrap()
            };
        let hosts = [host(0), host(1)];
        switch.set_filter(|frame| match (&frame.bytes[12..14], frame.bytes[23]) {
            ([8, 0], 6) if frame.bytes[36..38] == SILENT.to_be_bytes() => Fate::Lose,
            _ => Fate::Deliver,
        });
        let ours = Ours { switch, hosts, driving, poller: Poller::new().unwrap() };
        ours.settle();
        ours
    }

    fn host(&self, host: Host) -> &Network {
        &self.hosts[usize::from(host == Host::B)]
    }

    /// Returns the bytes that wait in a stream.
    fn waiting(sockets: &[SocketInfo], stream: &Stream) -> usize {
        let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
        let local = stream.stream.local_addr().map(canonical).ok();
        let is_it = |info: &&SocketInfo| {
            Some(info.local) == local && info.peer == Some(canonical(stream.peer))
        };
        sockets.iter().find(is_it).map_or(0, |info| info.received)
    }
}

/// A stream with its peer, which it does not name after its end.
pub(super) struct Stream {
    stream: TcpStream,
    peer: SocketAddr,
}

impl StreamCalls for Stream {
    fn call(&mut self, number: usize, call: StreamCall) -> Outcome {
        self.stream.call(number, call)
    }
}

impl World for Ours {
    type Listener = TcpListener;
    type Stream = Stream;
    type Udp = UdpSocket;

    fn ip(&self, host: Host, v6: bool) -> IpAddr {
        let last = if host == Host::A { 1 } else { 2 };
        match v6 {
            true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into(),
            false => Ipv4Addr::new(10, 0, 0, last as u8).into(),
        }
    }

    fn silent(&mut self) -> SocketAddr {
        SocketAddr::new(self.ip(Host::A, false), SILENT)
    }

    fn listen(&self, at: SocketAddr, options: BindOptions) -> io::Result<TcpListener> {
        let listener = TcpListener::bind_with(self.host(Host::A), at, options)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    fn accept(&self, listener: &TcpListener) -> io::Result<(Stream, SocketAddr)> {
        let (stream, peer) = listener.accept()?;
        stream.set_read_timeout(TIMEOUT)?;
        stream.set_write_timeout(TIMEOUT)?;
        Ok((Stream { stream, peer }, peer))
    }

    fn connect(&self, from: u16, to: SocketAddr, nonblocking: bool) -> io::Result<Stream> {
        let network = self.host(Host::B);
        let from = SocketAddr::new(self.ip(Host::B, to.is_ipv6()), from);
        let stream = if nonblocking || self.driving == Driving::Application {
            TcpStream::connect_nonblocking_from(network, from, to)?
        } else {
            TcpStream::connect_from(network, from, to)?
        };
        if !nonblocking && self.driving == Driving::Application {
            // A blocking call would not drive the other host.
            self.settle();
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            stream.set_nonblocking(false)?;
        }
        stream.set_read_timeout(TIMEOUT)?;
        stream.set_write_timeout(TIMEOUT)?;
        Ok(Stream { stream, peer: to })
    }

    fn bind(&self, host: Host, at: SocketAddr, options: BindOptions) -> io::Result<UdpSocket> {
        let udp = UdpSocket::bind_with(self.host(host), at, options)?;
        udp.set_read_timeout(TIMEOUT)?;
        udp.set_write_timeout(TIMEOUT)?;
        Ok(udp)
    }

    fn ready(&mut self, sockets: &[(u64, Socket<'_, Ours>)]) -> Vec<(Ready, usize)> {
        let interest = Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY;
        for (token, socket) in sockets {
            let poller = &self.poller;
            // Fails if the socket is registered.
            let _ = match socket {
                Socket::Listener(one) => poller.register(*one, *token, interest, Trigger::Level),
                Socket::Stream(one) => {
                    poller.register(&one.stream, *token, interest, Trigger::Level)
                }
                Socket::Udp(one) => poller.register(*one, *token, interest, Trigger::Level),
            };
        }
        let mut events = Events::default();
        self.poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        let shown: HashMap<u64, towpath_net::Ready> =
            events.iter().map(|event| (event.token, event.ready)).collect();
        let infos: Vec<SocketInfo> = self.hosts.iter().flat_map(Network::sockets).collect();
        let ready = sockets.iter().map(|(token, socket)| {
            let shown = shown.get(token).copied().unwrap_or_default();
            let ready = Ready {
                readable: shown.is_readable(),
                writable: shown.is_writable(),
                priority: shown.is_priority(),
                read_closed: shown.is_read_closed(),
                both_closed: shown.is_read_closed() && shown.is_write_closed(),
                error: shown.is_error(),
            };
            let waiting = match socket {
                Socket::Stream(stream) => Ours::waiting(&infos, stream),
                _ => 0,
            };
            (ready, waiting)
        });
        ready.collect()
    }

    fn settle(&self) {
        if self.driving == Driving::Thread {
            return self.switch.advance(Duration::ZERO);
        }
        for _ in 0..ROUNDS {
            let before = self.switch.counters();
            self.hosts.iter().for_each(|host| host.turn().unwrap());
            if self.switch.counters() == before {
                return;
            }
        }
        panic!("the hosts talk without end");
    }

    fn pass(&self) {
        self.switch.advance(Duration::from_millis(1));
        self.settle();
    }
}
