//! An application's side of Towpath: attach to a driver server, send, receive, wait.
//!
//! ```no_run
//! use towpath_client::{Meta, Options, Rule, Session};
//!
//! /// Sends each packet of ethertype 0x88B5 back to where it came from.
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut session = Session::attach("/run/towpath/tap0.sock", &Options::default())?;
//!     let endpoint = session.open(&Rule::new().ethertype(0x88b5))?;
//!     let (pair, mac) = (endpoint.queue_pair(), session.info().mac.octets());
//!     loop {
//!         session.wait(None)?;
//!         // Both halves work at once: each answer is written while its packet is read in place.
//!         let (mut sender, mut receiver) = session.split();
//!         let room = sender.slots(pair)? - sender.unsent(pair)?;
//!         receiver.receive(pair, room as usize, |packet| {
//!             let Some(packet) = packet.contiguous() else { return };
//!             let _ = sender.send(endpoint, packet.len(), Meta::FULL, |parts| {
//!                 if let [answer] = parts {
//!                     answer[..6].copy_from_slice(&packet[6..12]);
//!                     answer[6..12].copy_from_slice(&mac);
//!                     answer[12..].copy_from_slice(&packet[12..]);
//!                 }
//!             });
//!         })?;
//!         sender.want_room(pair)?;
//!         sender.flush()?;
//!     }
//! }
//! ```
//!
//! A session has parts, which an application gets where it needs them: [`Session::sender`],
//! [`Session::receiver`] and the others that [`Session`] lists. Each part borrows only its own fields, so
//! the compiler shows which can be used at once.
//!
//! A [`Session`] belongs to one thread at a time: it is [`Send`] but neither [`Sync`] nor
//! [`Clone`]. A program in which several threads send attaches one session per thread. Or it uses
//! the TCP and UDP sockets of `towpath-net`, which any thread may use.
//!
//! After `fork` the child has no session: every call there returns [`Lost::Forked`], or `Forked` of
//! the call's own error. The parent's session continues undisturbed, and a drop in the child only
//! frees the child's copies. Each call checks a page that the kernel wipes in children, which costs a
//! load and a comparison. A child that was forked inside of a callback, such as that of
//! [`Receiver::receive`], must not return from the callback: it exits there, or calls `exec`.
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
mod events;
mod flush;
mod hold;
mod ids;
mod lanes;
mod memory;
mod news;
mod oob;
mod oob_queues;
mod options;
mod pool;
mod ready;
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
mod status;
mod transmit;
mod tripwire_table;
mod tripwires;
mod wait;
mod waiter;

pub use apertures::Memories;
pub use channels::{
    Channel, ChannelError, ChannelOffer, ChannelStream, OpenChannelError, ReceivedMessage,
    ReservedMessage,
};
pub use endpoint_counters::EndpointCounters;
pub use entrance::administration_socket;
pub use error::{
    AccessError, AttachError, Lost, OpenError, QueuePairError, Refusal, RequestError, SendError,
};
pub use ids::{EndpointId, QueuePair};
pub use memory::{Aperture, ApertureKey, Export, Memory};
pub use news::NewsSource;
pub use oob::Oob;
pub use oob_queues::{OobKind, ReceivedOob};
pub use options::{Addresses, Endpoint, Info, Options, Statistics, WaitStrategy};
pub use pool::{Received, ReceivedParts};
pub use receive::Receiver;
pub use report::{default_socket, report, report_over, set, set_over};
pub use request_table::{RequestId, RequestState};
pub use requests::{Request, Requests};
pub use reserved::{TransmitBuffer, UnsentBuffer};
pub use rule::Rule;
pub use send::Sender;
pub use session::Session;
pub use towpath_packet::{Checksum, MacAddr, MacAddrError, Meta, Segmentation, SegmentationKind};
pub use towpath_protocol::apertures::{Access, ApertureState, Sharing};
pub use towpath_protocol::oob::{OobAddress, PeerState, Refused};
pub use towpath_protocol::requests::RequestFault;
pub use towpath_protocol::settings::{Audience, Kind, Scope, Setting, SettingError, Spec, Values};
pub use towpath_queue::Violation;
pub use towpath_queue::descriptor::EXPEDITED_BYTES;
pub use tripwire_table::{ImportedTripwire, Tripwire};
pub use tripwires::Tripwires;
