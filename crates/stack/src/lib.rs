//! ARP, NDP, ICMP, UDP and TCP without input or output.
//!
//! A [`Stack`] is a host on an Ethernet, independent of queues, servers and clocks. The caller
//! passes received frames to [`Stack::input`]; [`Stack::poll`] sends frames through the caller's
//! [`Transmit`]; the time is an argument everywhere.
//!
//! ```
//! use towpath_stack::{Config, Instant, Meta, Stack, Transmit};
//!
//! /// Keeps the sent frames.
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
//! // The stack announces its own addresses, and asks for the link address of 10.0.0.2.
//! assert!(wire.0.iter().any(|frame| frame[12..14] == [8, 6] && frame[38..42] == [10, 0, 0, 2]));
//! ```
//!
//! # Limits
//! Everything that the network or the application can make grow has a limit in [`Limits`]:
//! connections, half-open ones, neighbours and the frames that wait for them, reassembly, receive
//! queues, frames to send. The stack drops the excess and counts it in [`Counters`]. It remembers
//! the MTUs of at most 1024 paths, each for ten minutes.
//!
//! # ICMP errors
//! The stack accepts an error only if the error quotes a packet that a socket has in flight
//! (RFC 5927). A report of the path's MTU must quote one of three packets: a TCP segment in flight,
//! a datagram of a connected UDP socket to its peer, or a datagram of another UDP socket to a
//! recent destination. A destination is recent if that socket sent a large datagram there in the
//! last ten seconds. The quoted packet must also be larger than the reported MTU. All other errors
//! count as `icmp_errors_unmatched`.
//!
//! # Memory of a connection
//! Each connection allocates its buffers at their full size when it starts, but untouched pages of
//! fresh memory cost nothing. A buffer that ran empty starts again at its first page. So an idle
//! connection holds the pages that its largest burst touched, at least some 15 KB. With the default
//! sizes a connection allocates 1 MiB of address space. Set smaller sizes on a system that does not
//! overcommit (`vm.overcommit_memory=2`).
//!
//! # TCP
//! The state machine is smoltcp's: CUBIC, window scaling, selective acknowledgements as a receiver.
//! This crate detects losses itself (`tcp/recovery.rs`): NewReno (RFC 6582), and a timeout by
//! RFC 6298 of at least 200 ms. It also has its own demultiplexer, listeners, timers, TIME-WAIT and
//! path MTU, so that the cost of an event does not grow with the number of connections.

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
