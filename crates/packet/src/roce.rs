//! RDMA over Converged Ethernet, version 2 (RoCEv2): InfiniBand's transport headers in UDP.
//!
//! A frame is Ethernet, IP, UDP to port [`UDP_PORT`], the base transport header ([`Bth`]), the
//! extension headers that the [`Opcode`] asks for, the payload, a pad to a multiple of four bytes,
//! and the invariant CRC. [`write_headers`] writes all that precedes the payload; the caller puts the
//! payload behind them, and [`seal`] adds the rest. [`read_frame`] reads and checks a frame.
//!
//! The layout is that of Linux, `drivers/infiniband/sw/rxe/rxe_hdr.h` and `rxe_opcode.c`, whose
//! driver `rdma_rxe` speaks RoCEv2 in software. [`cm`] has the messages that set connections up.
//!
//! ```
//! use towpath_packet::roce::*;
//! let path = Path {
//!     source_mac: [2, 0, 0, 0, 0, 1],
//!     destination_mac: [2, 0, 0, 0, 0, 2],
//!     source: [192, 0, 2, 1].into(),
//!     destination: [192, 0, 2, 2].into(),
//!     source_port: 0xc000,
//!     ecn: true,
//! };
//! let bth = Bth { ack_request: true, ..Bth::new(Opcode::SendOnly, 17, 1000) };
//! let mut frame = vec![0; frame_bytes(&path, bth.opcode, 5)];
//! let at = write_headers(&path, &bth, &Extension::default(), 5, &mut frame).unwrap();
//! frame[at..at + 5].copy_from_slice(b"hello");
//! assert!(seal(&mut frame));
//! let received = read_frame(&frame).unwrap();
//! assert_eq!((received.segment.bth, received.segment.payload), (bth, &b"hello"[..]));
//! ```

mod bth;
pub mod cm;
mod error;
mod extension;
mod frame;
mod icrc;
mod opcode;
mod path;
mod received;
mod segment;

pub use bth::{Bth, DEFAULT_PKEY};
pub use error::RoceError;
pub use extension::{Aeth, Deth, Extension, NakCode, Reth, Syndrome};
pub use frame::{MAX_FRAME_HEADER_BYTES, frame_bytes, seal, write_headers};
pub use icrc::has_good_icrc;
pub use opcode::{MAX_EXTENSION_BYTES, Opcode};
pub use path::{Path, UDP_PORT, ip_packet};
pub use received::{Received, read_frame};
pub use segment::Segment;

/// The number of the queue pair that management datagrams go to.
pub const GENERAL_SERVICES_QP: u32 = 1;
/// The queue key of management datagrams (Linux, `include/rdma/ib_mad.h`).
pub const GENERAL_SERVICES_QKEY: u32 = 0x8001_0000;
