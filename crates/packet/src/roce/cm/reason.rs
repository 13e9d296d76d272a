//! Why a [`Reject`](super::Reject) rejects (Linux, `include/rdma/ib_cm.h`).

/// No queue pair is available.
pub const NO_QP: u16 = 1;
/// No resources are available.
pub const NO_RESOURCES: u16 = 3;
/// The other side did not answer in time.
pub const TIMEOUT: u16 = 4;
/// The request is not supported.
pub const UNSUPPORTED: u16 = 5;
/// The communication identifier is unknown.
pub const INVALID_COMM_ID: u16 = 6;
/// Nothing listens for the service identifier.
pub const INVALID_SERVICE_ID: u16 = 8;
/// The transport service is not supported.
pub const INVALID_TRANSPORT_TYPE: u16 = 9;
/// The global identifier is not the receiver's.
pub const INVALID_GID: u16 = 12;
/// The path's maximum payload is not supported.
pub const INVALID_MTU: u16 = 26;
/// The application rejected; the private data may say why.
pub const CONSUMER_DEFINED: u16 = 28;
