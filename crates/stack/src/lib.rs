//! ARP, NDP, IGMP, MLD, ICMP, UDP and TCP without input or output.
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
//! All connections share one pool of blocks of 4 KiB. A connection holds blocks only for data: what
//! the application has not read, and what the peer has not acknowledged. So a connection that
//! never carried data takes at most 2 KiB, whatever its buffers' sizes. [`Limits::tcp_buffer_bytes`] bounds the
//! pool. Memory that was not needed for a few seconds goes back to the system.
//!
//! # TCP
//! A state machine per connection (RFC 9293), with window scaling, timestamps and PAWS (RFC 7323),
//! selective acknowledgements (RFC 2018, 2883), loss detection by time (RACK-TLP, RFC 8985),
//! proportional rate reduction (RFC 6937), CUBIC and Reno (RFC 9438, 5681), HyStart++ (RFC 9406),
//! ECN (RFC 3168), and buffers that grow with the path. Against attacks: SYN cookies (RFC 4987),
//! challenge acknowledgements (RFC 5961), secret initial numbers and ports (RFC 6528, 6056). The
//! cost of an event does not grow with the number of connections.

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
mod memberships;
mod ndp;
mod neighbour;
mod outbox;
mod own_frames;
mod path;
mod random;
mod reassembly;
mod socket;
mod stack;
mod tcp;
mod time;
mod transmit;
mod udp;
mod wheel;

pub use bindings::BindMode;
pub use config::{Config, ConfigError, CongestionControl, KeepAlive, Limits, Offload, TcpConfig};
pub use counters::Counters;
pub use socket::{Flow, ListenerId, Readiness, SocketError, SocketId, SocketInfo, TcpId, UdpId};
pub use stack::Stack;
pub use tcp::{Shutdown, TcpInfo, TcpState};
pub use time::Instant;
pub use towpath_packet::MacAddr;
pub use towpath_packet::meta::{Checksum, Meta, Segmentation, SegmentationKind};
pub use transmit::Transmit;
pub use udp::{MOST_SEGMENTS, Outgoing, Received, UdpOptions};
