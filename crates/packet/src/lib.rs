//! Frames as bytes: parsing headers, checking offloads, completing and segmenting packets, RDMA
//! over Ethernet, and writing capture files.
//!
//! The crate opens no file or socket and has no unsafe code: every function takes bytes that may be
//! hostile and returns a value or an error.
#![forbid(unsafe_code)]

mod answer_rate;
pub mod build;
mod bytes;
pub mod checksum;
mod extension;
pub mod flow;
pub mod flow_rule;
mod fragment;
mod groups;
pub mod headers;
pub mod igmp;
pub mod ipv6;
mod mac_addr;
mod malformed;
pub mod meta;
pub mod mld;
mod numbers;
pub mod offload;
pub mod pattern;
pub mod pcapng;
pub mod plain;
pub mod quoted;
pub mod roce;
pub mod segment;
pub mod transport;
mod vlan;

pub use answer_rate::AnswerRate;
pub use checksum::Sum;
pub use flow_rule::{FlowRule, FlowVlan};
pub use headers::{Fragment, Headers, Ip, Malformed, Network};
pub use mac_addr::{MacAddr, MacAddrError};
pub use meta::{Checksum, Meta, Segmentation, SegmentationKind};
pub use transport::Transport;
pub use vlan::{TagProtocol, VlanTag};
