//! The message that changes a setting.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Changes a setting of the device, or of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Set {
    /// A [`crate::settings::Setting`] by its number.
    pub setting: u32,
    /// The session of the endpoint; 0: the device.
    pub session: u32,
    /// The endpoint's number in the session; 0 for the device.
    pub endpoint: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The value.
    pub value: u64,
}
