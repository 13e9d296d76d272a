//! Connections with endpoints of other hosts, by RoCEv2: the server owns UDP port 4791.
//!
//! | part | file | does |
//! |---|---|---|
//! | [`Inbox`] | `inbox.rs` | holds the frames of a poll iteration that are for this part |
//! | [`RemoteTable`] | `table.rs` | the connections by QPN, and whose turn it is |
//! | requests for connections | `setup.rs`, `answers.rs` | the messages of the InfiniBand connection manager |
//! | link addresses | `neighbours.rs` | those of other hosts, and answers for endpoints here |
//! | poll | `poll.rs` | what arrives, what is due, what is sent, within budgets |
//! | requests | `requests.rs` | from a transmit queue into a connection |
//! | ledger | `ledger.rs` | what the next server needs of each connection |
//! | a successor's start | `restore.rs` | goes on with the connections in the ledger |
//! | memory | `host.rs` | what the peer reads and writes, and what requests move |
//!
//! The protocol itself is in `towpath-rdma`, which knows no session. To the other parts of the
//! engine, an endpoint of another host has a name as every endpoint has ([`remote_name`]), so
//! connections, apertures and rights hold for it.

mod answers;
mod host;
mod inbox;
mod ledger;
mod neighbours;
mod poll;
pub(crate) mod requests;
mod restore;
mod setup;
mod table;

use crate::engine::oob::connection::EndpointName;

pub(crate) use inbox::Inbox;
pub(crate) use ledger::LEDGER_BYTES;
pub(crate) use neighbours::concerns;
pub(crate) use poll::{Way, poll};
pub use table::OwnAddress;
pub(crate) use table::RemoteTable;

/// The session number in the names of endpoints of other hosts. No session has it.
const REMOTE_SESSION: u32 = u32::MAX;

/// The longest frame: headers, and 4096 bytes of payload.
const FRAME_BYTES: usize = 4352;

/// Returns the name of the endpoint at the other end of a connection, by this side's QPN:
/// 24 bits.
pub(crate) fn remote_name(qpn: u32) -> EndpointName {
    EndpointName { session: REMOTE_SESSION, endpoint: qpn }
}

/// Returns this side's QPN if a name is of an endpoint of another host.
pub(crate) fn remote_qpn(name: EndpointName) -> Option<u32> {
    (name.session == REMOTE_SESSION).then_some(name.endpoint)
}
