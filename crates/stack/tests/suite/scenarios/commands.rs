//! The commands of the application.
//!
//! | command | what it does |
//! |---|---|
//! | `listen [BACKLOG]`, `unlisten` | starts or stops to listen on port 80 |
//! | `connect` | starts a connection to the peer's port of this flow |
//! | `accept`, `accept none` | accepts this flow's connection; checks that none waits |
//! | `send N`, `send error NAME` | writes N bytes |
//! | `urgent N` | writes N bytes of urgent data |
//! | `recv N`, `recv eof`, `recv none`, `recv error NAME` | reads, and checks the bytes |
//! | `shutdown read`, `shutdown write`, `shutdown both` | shuts a direction |
//! | `shutdown DIRECTION error NAME` | shuts a direction, and expects this error |
//! | `peer known`, `peer NAME` | expects that the connection names its peer, or this error |
//! | `close`, `abort` | drops the connection; resets it |
//! | `nodelay`, `keepalive S` | sets an option |
//! | `state NAME`, `error NAME`, `error none` | checks the state, or the pending error |
//! | `unsent N` | checks the number of bytes that the peer has not acknowledged |
//! | `sizes A B` | checks the numbers of connections and of TIME-WAIT entries |

use std::net::SocketAddr;
use std::time::Duration;

use towpath_stack::{
    Config, CongestionControl, KeepAlive, Offload, Shutdown, SocketError, TcpId, TcpState,
};

use crate::scenarios::checks::{peer_byte, stack_byte};
use crate::scenarios::notation::{Range, micros};
use crate::scenarios::script::{PEER_PORT, Runner, STACK_PORT};
use crate::wire;

/// Lets the link segment packets and compute checksums.
pub fn enable_offload(config: &mut Config) {
    config.offload = Offload { checksum: true, tcp_segmentation: true, max_frame_bytes: 65_535 };
}

/// Applies `config NAME VALUE`.
pub fn configure(config: &mut Config, words: &[String]) {
    let value = words.get(2).map_or("", String::as_str);
    let count = || value.parse::<usize>().unwrap_or_else(|_| panic!("{words:?}"));
    let time = || Duration::from_micros(micros(value) as u64);
    let tcp = &mut config.tcp;
    match words[1].as_str() {
        "tso" => enable_offload(config),
        "mtu" => config.mtu = count(),
        "receive_buffer" => tcp.receive_buffer_bytes = count(),
        "send_buffer" => tcp.send_buffer_bytes = count(),
        "reno" => tcp.congestion_control = CongestionControl::Reno,
        "ecn" => tcp.ecn = true,
        "ack_delay" => tcp.ack_delay = time(),
        "user_timeout" => tcp.user_timeout = time(),
        "connect_timeout" => tcp.connect_timeout = time(),
        "syn_received_timeout" => tcp.syn_received_timeout = time(),
        "orphan_timeout" => tcp.orphan_timeout = time(),
        "time_wait" => tcp.time_wait = time(),
        "half_open" => config.limits.half_open = count(),
        other => panic!("{other:?} is no setting"),
    }
}

fn error(name: &str) -> SocketError {
    match name {
        "reset" => SocketError::Reset,
        "broken" => SocketError::Broken,
        "refused" => SocketError::Refused,
        "timedout" => SocketError::TimedOut,
        "aborted" => SocketError::Aborted,
        "closed" => SocketError::Closed,
        "unreachable" => SocketError::Unreachable,
        "wouldblock" => SocketError::WouldBlock,
        "notconnected" => SocketError::NotConnected,
        "nosocket" => SocketError::NoSocket,
        other => panic!("{other:?} is no error"),
    }
}

impl Runner {
    fn socket(&mut self) -> TcpId {
        let socket = self.flow().socket;
        socket.unwrap_or_else(|| self.fail("this flow has no socket"))
    }

    fn same<T: std::fmt::Debug + PartialEq>(&self, got: &T, wanted: &T) {
        if got != wanted {
            self.fail(&format!("{got:?} instead of {wanted:?}"));
        }
    }

    /// Applies a command of the application.
    pub fn operate(&mut self, words: &[String]) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let now = self.now;
        match words[..] {
            ["listen", ..] => {
                let backlog = words.get(1).map_or(16, |backlog| backlog.parse().unwrap());
                let local = SocketAddr::new(wire::STACK_IP.into(), STACK_PORT);
                self.listener = Some(self.stack().tcp_listen(local, backlog).unwrap());
            }
            ["unlisten"] => {
                let listener = self.listener.take().unwrap();
                self.stack().tcp_close_listener(now, listener).unwrap();
            }
            ["connect"] => {
                let remote = SocketAddr::new(wire::PEER_IP.into(), PEER_PORT + self.flow as u16);
                let socket = self.stack().tcp_connect(now, remote, None, None).unwrap();
                let flow = self.flow();
                (flow.socket, flow.read, flow.written) = (Some(socket), 1, 1);
            }
            ["accept", ..] => self.accept(words.len() == 1),
            ["send", "error", name] => {
                let socket = self.socket();
                let got = self.stack().tcp_send(socket, b"x");
                self.same(&got, &Err(error(name)));
            }
            ["urgent", count] => self.write(count, true),
            ["send", count] => self.write(count, false),
            ["recv", ..] => self.read(words[1], words.get(2).copied()),
            ["shutdown", how, ..] => {
                let how = match how {
                    "read" => Shutdown::Read,
                    "write" => Shutdown::Write,
                    _ => Shutdown::Both,
                };
                let socket = self.socket();
                let got = self.stack().tcp_shutdown(now, socket, how);
                let wanted = words.get(3).map_or(Ok(()), |name| Err(error(name)));
                self.same(&got, &wanted);
            }
            ["close"] => {
                let socket = self.socket();
                let got = self.stack().tcp_close(now, socket);
                self.same(&got, &Ok(()));
            }
            ["abort"] => {
                let socket = self.socket();
                let got = self.stack().tcp_abort(now, socket);
                self.same(&got, &Ok(()));
            }
            ["nodelay"] => {
                let socket = self.socket();
                self.stack().tcp_set_nodelay(socket, true).unwrap();
            }
            ["cork", on] => {
                let socket = self.socket();
                self.stack().tcp_set_cork(socket, on == "on").unwrap();
                assert_eq!(self.stack().tcp_cork(socket), Ok(on == "on"));
            }
            ["quickack", on] => {
                let socket = self.socket();
                self.stack().tcp_set_quickack(socket, on == "on").unwrap();
                assert_eq!(self.stack().tcp_quickack(socket), Ok(on == "on"));
            }
            ["keepalive", interval] => {
                let socket = self.socket();
                let every = KeepAlive::every(Duration::from_micros(micros(interval) as u64));
                self.stack().tcp_set_keep_alive(now, socket, Some(every)).unwrap();
            }
            _ => self.check(&words),
        }
    }

    /// Applies a command that only checks.
    fn check(&mut self, words: &[&str]) {
        match *words {
            ["state", name] => {
                let wanted = match name {
                    "connecting" => TcpState::Connecting,
                    "established" => TcpState::Established,
                    "peerclosed" => TcpState::PeerClosed,
                    "closed" => TcpState::LocalClosed,
                    "over" => TcpState::Over,
                    other => panic!("{other:?} is no state"),
                };
                let socket = self.socket();
                let got = self.stack().tcp_state(socket);
                self.same(&got, &Ok(wanted));
            }
            ["peer", name] => {
                let socket = self.socket();
                let got = self.stack().tcp_peer(socket).map(|_| ());
                self.same(&got, &if name == "known" { Ok(()) } else { Err(error(name)) });
            }
            ["error", name] => {
                let socket = self.socket();
                let got = self.stack().tcp_take_error(socket);
                self.same(&got, &Ok((name != "none").then(|| error(name))));
            }
            ["unsent", count] => {
                let socket = self.socket();
                let got = self.stack().tcp_queues(socket).unwrap().0;
                self.same(&got, &count.parse().unwrap());
            }
            ["sizes", connections, time_wait] => {
                let got = self.stack().tcp_sizes();
                let has = |wanted, size| Range::parse(wanted).has(size as i64);
                if !has(connections, got.0) || !has(time_wait, got.1) {
                    self.fail(&format!("{got:?} connections and TIME-WAIT entries"));
                }
            }
            _ => panic!("{words:?} is no command"),
        }
    }

    fn accept(&mut self, expected: bool) {
        let listener = self.listener.expect("a listener");
        let got = self.stack().tcp_accept(listener);
        if !expected {
            return self.same(&got.map(|_| ()), &Err(SocketError::WouldBlock));
        }
        let Ok((socket, peer)) = got else { self.fail("no connection waits to be accepted") };
        self.same(&peer.port(), &(PEER_PORT + self.flow as u16));
        let flow = self.flow();
        (flow.socket, flow.written) = (Some(socket), 1);
        flow.read = (flow.syn + 1) as u32;
    }

    fn write(&mut self, count: &str, urgent: bool) {
        let count: u32 = count.parse().unwrap();
        let first = self.flow().written;
        let data: Vec<u8> = (0..count).map(|at| stack_byte(first.wrapping_add(at))).collect();
        let socket = self.socket();
        let got = match urgent {
            true => self.stack().tcp_send_urgent(socket, &data),
            false => self.stack().tcp_send(socket, &data),
        };
        self.same(&got, &Ok(count as usize));
        self.flow().written = first.wrapping_add(count);
    }

    fn read(&mut self, what: &str, name: Option<&str>) {
        let now = self.now;
        let socket = self.socket();
        let count = what.parse().unwrap_or(1);
        let mut buffer = vec![0; count];
        let got = self.stack().tcp_recv(now, socket, &mut buffer);
        match what {
            "eof" => self.same(&got, &Ok(0)),
            "none" => self.same(&got, &Err(SocketError::WouldBlock)),
            "error" => self.same(&got, &Err(error(name.unwrap_or("")))),
            _ => {
                self.same(&got, &Ok(count));
                let first = self.flow().read;
                let wanted: Vec<u8> =
                    (0..count as u32).map(|at| peer_byte(first.wrapping_add(at))).collect();
                if buffer != wanted {
                    self.fail("the application reads bytes that the peer did not send here");
                }
                self.flow().read = first.wrapping_add(count as u32);
            }
        }
    }
}
