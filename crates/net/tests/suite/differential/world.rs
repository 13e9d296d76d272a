//! What both kinds of sockets do for a sequence, and the names by which both are compared.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use towpath_net::BindOptions;

use super::calls::{ListenerCalls, StreamCalls, UdpCalls};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    A,
    B,
}

/// What a socket is ready for, as epoll says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) priority: bool,
    pub(super) read_closed: bool,
    pub(super) both_closed: bool,
    pub(super) error: bool,
}

/// A socket that a side has.
pub(super) enum Socket<'a, W: World + ?Sized> {
    Listener(&'a W::Listener),
    Stream(&'a W::Stream),
    Udp(&'a W::Udp),
}

/// The sockets of the kernel, or those of towpath-net.
pub(super) trait World {
    type Listener: ListenerCalls;
    type Stream: StreamCalls;
    type Udp: UdpCalls;

    fn ip(&self, host: Host, v6: bool) -> IpAddr;
    /// Returns the address of a port that does not answer.
    fn silent(&mut self) -> SocketAddr;
    fn listen(&self, at: SocketAddr, options: BindOptions) -> io::Result<Self::Listener>;
    /// Accepts without waiting.
    fn accept(&self, listener: &Self::Listener) -> io::Result<(Self::Stream, SocketAddr)>;
    /// Connects host B, from a port or from any one. The stream has timeouts.
    fn connect(&self, from: u16, to: SocketAddr, nonblocking: bool) -> io::Result<Self::Stream>;
    fn bind(&self, host: Host, at: SocketAddr, options: BindOptions) -> io::Result<Self::Udp>;
    /// Returns what each socket is ready for, and the number of bytes that wait in it, if it is a stream.
    /// The number is the socket's own.
    fn ready(&mut self, sockets: &[(u64, Socket<'_, Self>)]) -> Vec<(Ready, usize)>;
    /// Has all packets that were sent arrive, as far as this does not take time.
    fn settle(&self);
    /// Lets time pass.
    fn pass(&self);
}

/// The protocol and the port of each socket that was bound, with the order of its appearance and its host.
#[derive(Default)]
pub(super) struct Names(HashMap<(bool, u16), (usize, Host)>);

impl Names {
    pub(super) fn learn(&mut self, is_udp: bool, local: io::Result<SocketAddr>, host: Host) {
        let Ok(local) = local else { return };
        let next = self.0.len();
        self.0.entry((is_udp, local.port())).or_insert((next, host));
    }

    /// Returns an address by which both sides name the same socket.
    pub(super) fn show(&self, is_udp: bool, address: SocketAddr) -> String {
        let family = match address.ip() {
            IpAddr::V4(_) => "v4",
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "mapped",
            IpAddr::V6(_) => "v6",
        };
        let known = self.0.get(&(is_udp, address.port()));
        let port = known.map_or(String::from("?"), |(number, _)| number.to_string());
        if address.ip().is_unspecified() {
            return format!("any-{family}:{port}");
        }
        let host = known.map_or(String::from("?"), |(_, host)| format!("{host:?}"));
        format!("{host}-{family}:{port}")
    }
}
