//! Words of the pages, versions since which there are parts of them, and limits.

use towpath_queue::word::LINE_WORDS;

/// The most lanes of a server.
pub const MAX_LANES: usize = 8;

/// Words of counters that each endpoint has.
pub const ENDPOINT_COUNTERS: usize = LINE_WORDS;
/// Words of counters that a device has in the state page.
pub const DEVICE_COUNTERS: usize = 4 * LINE_WORDS;

/// Word of the server pages' header with the reason why the session was closed; 0 while it lives.
pub const CLOSED_WORD: usize = 0;
/// Word of the server pages' header with the session's own sleep flag. While the flag says "asleep"
/// the session is parked: the engine does not poll it, and the application notifies the engine even
/// if the engine is awake.
pub const PARKED_WORD: usize = 1;
/// Word of the server pages' header that counts the endpoints that the server closed because the
/// policy changed.
pub const REVOKED_WORD: usize = 2;
/// Word of the accounts with the engine's time for the session, in nanoseconds: an estimate, of
/// which the engine measures some poll iterations.
pub const ENGINE_NS_WORD: usize = 0;
/// The version since which the server pages have a line of accounts.
pub(super) const ACCOUNTS_SINCE: u16 = 9;
/// The version since which endpoints may have queues of out-of-band messages.
pub const OOB_SINCE: u16 = 10;
/// The version since which sessions may have apertures.
pub(super) const APERTURES_SINCE: u16 = 11;
/// The version since which an application allocates its memory before it answers that the memory is
/// mapped. The server refuses a session with a page that is not allocated.
pub const ALLOCATES_SINCE: u16 = 11;
/// Words of the server pages for the requests of an endpoint: the number of the last one that is
/// complete; and the one that failed, with its [`crate::requests::RequestFault`] in the upper half.
pub const REQUEST_WORDS: usize = 2;
/// Words of the ledger for the out-of-band message that the engine is about to publish.
pub const OOB_INTENT_WORDS: usize = LINE_WORDS;
/// Word of an endpoint's counters that is 1 if the server closed the endpoint because the policy
/// changed.
pub const ENDPOINT_REVOKED_WORD: usize = ENDPOINT_COUNTERS - 1;
/// The reason in [`CLOSED_WORD`] for a session that the policy does not grant any more. Lower
/// numbers are violations.
pub const CLOSED_BY_POLICY: u32 = 256;
/// The reason in [`CLOSED_WORD`] for a session that shares an address which the host does not have
/// any more.
pub const CLOSED_ADDRESS_GONE: u32 = 257;
/// The reason in [`CLOSED_WORD`] for a session whose own hardware queue stalled, and worked no more
/// after a reset.
pub const CLOSED_QUEUE_BROKE: u32 = 258;
/// The reason in [`CLOSED_WORD`] for a session that two servers served when they crashed.
pub const CLOSED_AFTER_CRASHES: u32 = 259;
/// Word of the state page with the server's epoch.
pub const STATE_EPOCH_WORD: usize = 0;
/// Word of the state page that counts poll iterations: a tool sees whether the engine lives.
pub const STATE_HEARTBEAT_WORD: usize = 1;
/// The engine's sleep flag, alone on its line.
pub const STATE_SLEEP_WORD: usize = LINE_WORDS;
/// First word of the device's counters.
pub const STATE_COUNTERS_WORD: usize = 2 * LINE_WORDS;
/// Number of words of a lane's part of the state page.
pub const STATE_WORDS: usize = STATE_COUNTERS_WORD + DEVICE_COUNTERS;

/// The most queue pairs of a session; the policy may set a lower limit. With 10 000 of them, the
/// smallest queues take at most 64 MiB, and so do their buffers; a test asserts both.
pub const MAX_QUEUE_PAIRS: u32 = 16_384;
/// The most endpoints of a session; the policy may set a lower limit. As many as queue pairs, for
/// the same reason.
pub const MAX_ENDPOINTS: u32 = 16_384;
/// The most bytes of each of a session's memories, so that every offset fits 32 bits. The policy
/// sets a lower limit on all of them together (`session_bytes`, by default 256 MiB).
pub const MAX_MEMORY_BYTES: usize = 1 << 30;
