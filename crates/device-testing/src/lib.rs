//! Devices without hardware, wrappers around any device, and the suite that each driver passes.
//!
//! | module | has |
//! |---|---|
//! | [`loopback`] | an in-memory pair of devices |
//! | [`fault`] | a wrapper that loses, repeats, delays and changes frames: `towpath serve --fault` |
//! | [`capture`] | a wrapper that writes all frames to a pcapng capture: `towpath serve --pcap` |
//! | [`slow`] | a wrapper that sends at a pace |
//! | [`refusing`] | a wrapper that refuses filters |
//! | [`wrapped`], [`forward!`] | what the wrappers share: a device whose queues another type wraps |
//! | [`conformance`] | the contract of [`Device`](towpath_device::Device) as tests |
//! | [`random`] | repeatable numbers for tests and faults |

pub mod capture;
pub mod conformance;
pub mod fault;
mod forward;
pub mod loopback;
pub mod random;
pub mod refusing;
mod sleeper;
pub mod slow;
pub mod wrapped;
