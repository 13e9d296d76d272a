//! An application's side of Towpath: attach to a driver server, send, receive, wait.
//!
//! ```no_run
//! use towpath_client::{Endpoint, Options, Rule, SendError, Session};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut session = Session::attach("/run/towpath/tap0.sock", &Options::default())?;
//!     let endpoint = session.open(&Rule::new().ethertype(0x88b5))?;
//!     loop {
//!         session.wait(None)?;
//!         while let Some(packet) = session.receive_one(0)? {
//!             send(&mut session, endpoint, &packet)?;
//!         }
//!         session.flush()?;
//!     }
//! }
//!
//! /// Sends a packet. If the queue is full, waits for room and tries again.
//! fn send(session: &mut Session, endpoint: Endpoint, packet: &[u8]) -> Result<(), SendError> {
//!     loop {
//!         match session.send_bytes(endpoint, packet) {
//!             Err(SendError::Full) => {
//!                 session.flush()?;
//!                 session.want_room(endpoint.queue_pair())?;
//!                 session.wait(None)?;
//!             }
//!             sent => return sent,
//!         }
//!     }
//! }
//! ```
//!
//! A [`Session`] belongs to one thread at a time: it is [`Send`] but neither [`Sync`] nor
//! [`Clone`]. A program in which several threads send attaches one session per thread. Or it uses
//! the TCP and UDP sockets of `towpath-net`, which any thread may use.
//!
//! After `fork` the child has no session: every call there returns [`Lost::Forked`], or `Forked` of
//! the call's own error. The parent's session continues undisturbed, and a drop in the child only
//! frees the child's copies. Each call checks a page that the kernel wipes in children, which costs a
//! load and a comparison. A child that was forked inside of a callback, such as that of
//! [`Session::receive`], must not return from the callback: it exits there, or calls `exec`.
//!
//! If the server is killed, a session waits for the next server and goes on
//! ([`Options::resume_timeout`]).
//!
//! The application trusts the server as it trusts a kernel: the client checks the server's words
//! for faults, not for malice.

mod aperture_table;
mod apertures;
mod attach;
mod channels;
mod clock;
mod control;
mod endpoint_counters;
mod endpoints;
mod entrance;
mod error;
mod flush;
mod hold;
mod lanes;
mod memory;
mod news;
mod oob;
mod oob_queues;
mod options;
mod pool;
mod receive;
mod reconnect;
mod replacement;
mod report;
mod request_table;
mod requests;
mod reserved;
mod resume;
mod rule;
mod send;
mod session;
mod tripwire_table;
mod tripwires;
mod wait;
mod waiter;

pub use channels::{Channel, ChannelOffer, ChannelStream, ReceivedMessage, ReservedMessage};
pub use endpoint_counters::EndpointCounters;
pub use entrance::administration_socket;
pub use error::{
    AccessError, AttachError, ChannelError, Lost, OpenChannelError, OpenError, Refusal,
    RequestError, SendError,
};
pub use memory::{Aperture, ApertureKey, Export, Memory};
pub use news::NewsSource;
pub use oob_queues::{OobKind, ReceivedOob};
pub use options::{Addresses, Endpoint, Info, Options, Statistics, WaitStrategy};
pub use pool::{Received, ReceivedParts};
pub use report::{default_socket, report, report_over, set, set_over};
pub use request_table::{RequestId, RequestState};
pub use requests::Request;
pub use reserved::TransmitBuffer;
pub use rule::Rule;
pub use session::Session;
pub use towpath_packet::{Checksum, MacAddr, MacAddrError, Meta, Segmentation, SegmentationKind};
pub use towpath_protocol::apertures::{Access, ApertureState, Sharing};
pub use towpath_protocol::oob::{OobAddress, PeerState, Refused};
pub use towpath_protocol::requests::RequestFault;
pub use towpath_protocol::settings::{Audience, Kind, Scope, Setting, SettingError, Spec, Values};
pub use towpath_queue::Violation;
pub use towpath_queue::descriptor::EXPEDITED_BYTES;
pub use tripwire_table::{ImportedTripwire, Tripwire};
