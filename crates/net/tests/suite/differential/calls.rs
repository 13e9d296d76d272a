//! The calls themselves: one text for the sockets of `std::net` and for those of towpath-net.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use towpath_net::KeepAlive;

use super::step::{Direction, ListenerCall, Setting, StreamCall, UdpCall};

/// How long a call of a blocking socket waits.
pub(super) const TIMEOUT: Option<Duration> = Some(Duration::from_millis(2));

/// What a call returned.
pub(super) enum Outcome {
    Text(String),
    Address(io::Result<SocketAddr>),
    /// A datagram, as text, with its sender.
    Datagram(String, SocketAddr),
}

/// Returns the value, or the kind of the error.
pub(super) fn text<T: Debug>(outcome: io::Result<T>) -> String {
    match outcome {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn show<T: Debug>(outcome: io::Result<T>) -> Outcome {
    Outcome::Text(text(outcome))
}

/// Returns the length and a hash of received bytes.
fn bytes(received: io::Result<usize>, parts: &[&[u8]]) -> String {
    text(received.map(|len| {
        let mut hasher = DefaultHasher::new();
        parts.concat()[..len].iter().for_each(|byte| hasher.write_u8(*byte));
        (len, hasher.finish() as u16)
    }))
}

/// Returns bytes that differ from write to write. `number`: that of the step.
fn data(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) + number.wrapping_mul(97)) as u8).collect()
}

fn seconds(value: Option<u64>) -> Option<Duration> {
    value.map(Duration::from_secs)
}

/// The options that `std::net` lacks. Returns `None` for a setting that the socket does not have.
pub(super) trait Settings {
    fn more(&self, setting: Setting) -> Option<String>;
}

macro_rules! common_settings {
    ($socket:expr, $setting:expr) => {
        match $setting {
            Setting::Nonblocking(on) => Some(text($socket.set_nonblocking(on))),
            Setting::ReadTimeout(time) => {
                let set = $socket.set_read_timeout(seconds(time));
                // The kernel rounds the present value up to its ticks.
                let outcome = text(set.and_then(|()| $socket.read_timeout()));
                $socket.set_read_timeout(TIMEOUT).unwrap();
                Some(outcome)
            }
            Setting::WriteTimeout(time) => {
                let set = $socket.set_write_timeout(seconds(time));
                // The kernel rounds the present value up to its ticks.
                let outcome = text(set.and_then(|()| $socket.write_timeout()));
                $socket.set_write_timeout(TIMEOUT).unwrap();
                Some(outcome)
            }
            Setting::Ttl(ttl) => {
                Some(format!("{}, {}", text($socket.set_ttl(ttl)), text($socket.ttl())))
            }
            _ => None,
        }
    };
}

pub(super) trait StreamCalls {
    fn call(&mut self, number: usize, call: StreamCall) -> Outcome;
}

macro_rules! stream_calls {
    ($type:ty) => {
        impl StreamCalls for $type {
            fn call(&mut self, number: usize, call: StreamCall) -> Outcome {
                match call {
                    StreamCall::Read(len) => {
                        let mut buffer = vec![0; len.into()];
                        let read = self.read(&mut buffer);
                        Outcome::Text(bytes(read, &[&buffer]))
                    }
                    StreamCall::ReadVectored(one, other) => {
                        let (mut one, mut other) = (vec![0; one.into()], vec![0; other.into()]);
                        let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
                        let read = self.read_vectored(&mut parts);
                        Outcome::Text(bytes(read, &[&one, &other]))
                    }
                    StreamCall::Peek(len) => {
                        let mut buffer = vec![0; len.into()];
                        let read = self.peek(&mut buffer);
                        Outcome::Text(bytes(read, &[&buffer]))
                    }
                    StreamCall::Write(len) => show(self.write(&data(number, len.into()))),
                    StreamCall::WriteVectored(one, other) => {
                        let (one, other) =
                            (data(number, one.into()), data(number + 1, other.into()));
                        show(self.write_vectored(&[IoSlice::new(&one), IoSlice::new(&other)]))
                    }
                    StreamCall::Shutdown(direction) => show(self.shutdown(match direction {
                        Direction::Read => Shutdown::Read,
                        Direction::Write => Shutdown::Write,
                        Direction::Both => Shutdown::Both,
                    })),
                    StreamCall::TakeError => {
                        show(self.take_error().map(|error| error.map(|error| error.kind())))
                    }
                    StreamCall::LocalAddr => Outcome::Address(self.local_addr()),
                    StreamCall::PeerAddr => Outcome::Address(self.peer_addr()),
                    StreamCall::Clone => show(self.try_clone().map(drop)),
                    StreamCall::Set(Setting::Nodelay(on)) => Outcome::Text(format!(
                        "{}, {}",
                        text(self.set_nodelay(on)),
                        text(self.nodelay())
                    )),
                    StreamCall::Set(setting) => Outcome::Text(
                        common_settings!(self, setting)
                            .or_else(|| self.more(setting))
                            .expect("a setting of streams"),
                    ),
                }
            }
        }
    };
}

stream_calls!(std::net::TcpStream);
stream_calls!(towpath_net::TcpStream);

pub(super) trait ListenerCalls {
    fn call(&mut self, call: ListenerCall) -> Outcome;
}

macro_rules! listener_calls {
    ($type:ty) => {
        impl ListenerCalls for $type {
            fn call(&mut self, call: ListenerCall) -> Outcome {
                match call {
                    ListenerCall::LocalAddr => Outcome::Address(self.local_addr()),
                    ListenerCall::TakeError => {
                        show(self.take_error().map(|error| error.map(|error| error.kind())))
                    }
                    ListenerCall::Clone => show(self.try_clone().map(drop)),
                    ListenerCall::Ttl(ttl) => {
                        Outcome::Text(format!("{}, {}", text(self.set_ttl(ttl)), text(self.ttl())))
                    }
                }
            }
        }
    };
}

listener_calls!(std::net::TcpListener);
listener_calls!(towpath_net::TcpListener);

pub(super) trait UdpCalls {
    /// `peer`: the address that the call names, if it names one.
    fn call(&mut self, number: usize, call: UdpCall, peer: Option<SocketAddr>) -> Outcome;
}

/// Returns a received datagram.
fn datagram(received: io::Result<(usize, SocketAddr)>, buffer: &[u8]) -> Outcome {
    match received {
        Ok((len, from)) => Outcome::Datagram(bytes(Ok(len), &[buffer]), from),
        Err(error) => show::<()>(Err(error)),
    }
}

macro_rules! udp_calls {
    ($type:ty) => {
        impl UdpCalls for $type {
            fn call(&mut self, number: usize, call: UdpCall, peer: Option<SocketAddr>) -> Outcome {
                let receives = |len: u16| vec![0; len.into()];
                match (call, peer) {
                    (UdpCall::Connect(_), Some(peer)) => show(self.connect(peer)),
                    (UdpCall::SendTo(_, len), Some(peer)) => {
                        show(self.send_to(&data(number, len as usize), peer))
                    }
                    (UdpCall::Connect(_) | UdpCall::SendTo(..), None) => {
                        Outcome::Text(String::new())
                    }
                    (UdpCall::Send(len), _) => show(self.send(&data(number, len as usize))),
                    (UdpCall::Recv(len), _) => {
                        let mut buffer = receives(len);
                        let received = self.recv(&mut buffer);
                        Outcome::Text(bytes(received, &[&buffer]))
                    }
                    (UdpCall::RecvFrom(len), _) => {
                        let mut buffer = receives(len);
                        datagram(self.recv_from(&mut buffer), &buffer)
                    }
                    (UdpCall::Peek(len), _) => {
                        let mut buffer = receives(len);
                        let received = self.peek(&mut buffer);
                        Outcome::Text(bytes(received, &[&buffer]))
                    }
                    (UdpCall::PeekFrom(len), _) => {
                        let mut buffer = receives(len);
                        datagram(self.peek_from(&mut buffer), &buffer)
                    }
                    (UdpCall::TakeError, _) => {
                        show(self.take_error().map(|error| error.map(|error| error.kind())))
                    }
                    (UdpCall::LocalAddr, _) => Outcome::Address(self.local_addr()),
                    (UdpCall::PeerAddr, _) => Outcome::Address(self.peer_addr()),
                    (UdpCall::Clone, _) => show(self.try_clone().map(drop)),
                    (UdpCall::Set(setting), _) => Outcome::Text(
                        common_settings!(self, setting)
                            .unwrap_or_else(|| udp_setting!(self, setting)),
                    ),
                }
            }
        }
    };
}

macro_rules! udp_setting {
    ($socket:expr, $setting:expr) => {
        match $setting {
            Setting::Broadcast(on) => {
                format!("{}, {}", text($socket.set_broadcast(on)), text($socket.broadcast()))
            }
            Setting::MulticastTtl(ttl) => {
                format!(
                    "{}, {}",
                    text($socket.set_multicast_ttl_v4(ttl)),
                    text($socket.multicast_ttl_v4())
                )
            }
            Setting::MulticastLoop(on) => {
                format!(
                    "{}, {}",
                    text($socket.set_multicast_loop_v4(on)),
                    text($socket.multicast_loop_v4())
                )
            }
            setting => $socket.more(setting).expect("a setting of UDP sockets"),
        }
    };
}

udp_calls!(std::net::UdpSocket);
udp_calls!(towpath_net::UdpSocket);

/// Sets a type of service, and gets it.
fn kernel_tos(socket: &SockRef<'_>, tos: u32) -> String {
    let is_v6 = socket.local_addr().is_ok_and(|local| local.is_ipv6());
    if is_v6 {
        format!("{}, {}", text(socket.set_tclass_v6(tos)), text(socket.tclass_v6()))
    } else {
        format!("{}, {}", text(socket.set_tos_v4(tos)), text(socket.tos_v4()))
    }
}

impl Settings for std::net::TcpStream {
    fn more(&self, setting: Setting) -> Option<String> {
        let socket = SockRef::from(self);
        Some(match setting {
            Setting::Tos(tos) => kernel_tos(&socket, tos),
            Setting::Cork(on) => {
                format!("{}, {}", text(socket.set_tcp_cork(on)), text(socket.tcp_cork()))
            }
            Setting::Linger(time) => {
                let outcome = format!(
                    "{}, {}",
                    text(socket.set_linger(seconds(time))),
                    text(socket.linger())
                );
                if time.is_some_and(|time| time > 0) {
                    socket.set_linger(None).unwrap();
                }
                outcome
            }
            Setting::KeepAlive(idle) => {
                let set = match seconds(idle) {
                    None => socket.set_keepalive(false),
                    Some(idle) => {
                        let times = TcpKeepalive::new().with_time(idle);
                        socket.set_tcp_keepalive(
                            &times.with_interval(Duration::from_secs(3)).with_retries(4),
                        )
                    }
                };
                let got = socket
                    .keepalive()
                    .and_then(|on| on.then(|| socket.tcp_keepalive_time()).transpose());
                format!("{}, {}", text(set), text(got))
            }
            Setting::UserTimeout(time) => {
                let set = socket.set_tcp_user_timeout(seconds(time));
                format!("{}, {}", text(set), text(socket.tcp_user_timeout()))
            }
            _ => return None,
        })
    }
}

impl Settings for towpath_net::TcpStream {
    fn more(&self, setting: Setting) -> Option<String> {
        Some(match setting {
            Setting::Tos(tos) => format!("{}, {}", text(self.set_tos(tos)), text(self.tos())),
            Setting::Cork(on) => format!("{}, {}", text(self.set_cork(on)), text(self.cork())),
            Setting::Linger(time) => {
                let outcome =
                    format!("{}, {}", text(self.set_linger(seconds(time))), text(self.linger()));
                if time.is_some_and(|time| time > 0) {
                    self.set_linger(None).unwrap();
                }
                outcome
            }
            Setting::KeepAlive(idle) => {
                let interval = Duration::from_secs(3);
                let times = seconds(idle).map(|idle| KeepAlive { idle, interval, probes: 4 });
                let set = self.set_keep_alive(times);
                let got = self.keep_alive().map(|times| times.map(|times| times.idle));
                format!("{}, {}", text(set), text(got))
            }
            Setting::UserTimeout(time) => {
                let set = self.set_user_timeout(seconds(time));
                format!("{}, {}", text(set), text(self.user_timeout()))
            }
            _ => return None,
        })
    }
}

impl Settings for std::net::UdpSocket {
    fn more(&self, setting: Setting) -> Option<String> {
        let Setting::Tos(tos) = setting else { return None };
        Some(kernel_tos(&SockRef::from(self), tos))
    }
}

impl Settings for towpath_net::UdpSocket {
    fn more(&self, setting: Setting) -> Option<String> {
        let Setting::Tos(tos) = setting else { return None };
        Some(format!("{}, {}", text(self.set_tos(tos)), text(self.tos())))
    }
}
