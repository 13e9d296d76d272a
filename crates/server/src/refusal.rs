//! The refusal of a request.

use towpath_protocol::message::Refusal;

/// A refusal with the text for the peer.
pub(crate) type Refused = (Refusal, String);
