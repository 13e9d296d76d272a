//! The reason for which a packet may not be sent.

use towpath_protocol::counters;

/// The reason for which a packet may not be sent: the counter that the engine increments.
pub(crate) type Refused = counters::Endpoint;
