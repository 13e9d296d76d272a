//! ARP, NDP, ICMP, UDP and TCP without input or output.
//!
//! A [`Stack`] is a host on an Ethernet. It knows neither queues nor a server nor a clock: frames
//! that came are given to [`Stack::input`], frames to send go out through the caller's
//! [`Transmit`] when it calls [`Stack::poll`], and the time is an argument everywhere.
//!
//! ```
//! use towpath_stack::{Config, Instant, Meta, Stack, Transmit};
//!
//! /// Keeps what was sent.
//! struct Wire(Vec<Vec<u8>>);
//! impl Transmit for Wire {
//!     fn room(&mut self, _: usize) -> bool {
//!         true
//!     }
//!     fn transmit(&mut self, len: usize, _: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
//!         let mut frame = vec![0; len];
//!         fill(&mut frame);
//!         self.0.push(frame);
//!         true
//!     }
//! }
//!
//! let mut config = Config::new([2, 0, 0, 0, 0, 1]);
//! config.ipv4 = Some(("10.0.0.1".parse().unwrap(), 24));
//! let mut stack = Stack::new(config, Instant::ZERO).unwrap();
//! let socket = stack.udp_bind("0.0.0.0:53".parse().unwrap()).unwrap();
//! stack.udp_send(Instant::ZERO, socket, b"hello", Some("10.0.0.2:53".parse().unwrap())).unwrap();
//! let mut wire = Wire(Vec::new());
//! stack.poll(Instant::ZERO, &mut wire);
//! // Announcements of its own addresses, and the question who 10.0.0.2 is.
//! assert!(wire.0.iter().any(|frame| frame[12..14] == [8, 6] && frame[38..42] == [10, 0, 0, 2]));
//! ```
//!
//! # Limits
//! Whatever the wire or the application can make grow has a limit in [`Limits`]: connections,
//! half-open connections, neighbours and the frames that wait for them, reassembly, the memory of
//! receive queues, frames waiting to be sent. What goes over is dropped and counted in [`Counters`].
//! The MTUs of at most 1024 paths are remembered, each for ten minutes.
//!
//! # ICMP errors
//! An error is believed only if it quotes a packet that a socket has under way (RFC 5927). A word
//! about the path's MTU must quote a TCP segment in flight, a datagram of a connected UDP socket to
//! its peer, or of another UDP socket to where that sent a large datagram in the last ten seconds;
//! and the quoted packet must be larger than the path is said to carry. All other errors count as `icmp_errors_unmatched`.
//!
//! # Memory of a connection
//! Each connection's buffers are asked for at their full size when it starts, but untouched pages
//! of fresh memory cost nothing, and a buffer that ran empty starts again at its first page: an
//! idle connection holds what its largest burst touched, some 15 KB at the least. With the default
//! sizes a connection asks for 1 MiB of address space: where the system does not overcommit
//! (`vm.overcommit_memory=2`), give smaller ones.
//!
//! # TCP
//! The state machine is smoltcp's: CUBIC, window scaling, selective acknowledgements as a receiver.
//! Losses are found here (`tcp/recovery.rs`): NewReno (RFC 6582), and a timeout by RFC 6298 of at
//! least 200 ms. Around it this crate has its
//! own demultiplexer, listeners, timers, TIME-WAIT and path MTU, so that the cost of an event does
//! not grow with the number of connections.

#![forbid(unsafe_code)]

mod arp;
mod bindings;
mod checksum;
mod config;
mod counters;
mod ethernet;
mod fragment;
mod host;
mod icmp;
mod ip;
mod ndp;
mod neighbour;
mod outbox;
mod path;
mod random;
mod rate;
mod reassembly;
mod socket;
mod stack;
mod tcp;
mod time;
mod transmit;
mod udp;
mod wheel;

pub use config::{Config, ConfigError, CongestionControl, Limits, Offload, TcpConfig};
pub use counters::Counters;
pub use socket::{ListenerId, Readiness, SocketError, SocketId, TcpId, UdpId};
pub use stack::Stack;
pub use tcp::{Shutdown, TcpState};
pub use time::Instant;
pub use towpath_packet::meta::{Checksum, Meta, Segmentation, SegmentationKind};
pub use transmit::Transmit;
pub use udp::Received;
