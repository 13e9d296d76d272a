//! The conditions of all measurements.

use crate::Settings;
use crate::kernel_wire::KernelWire;

/// The conditions of all measurements.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) settings: Settings,
    /// The engine's core and the application's.
    pub(super) cores: (usize, usize),
    pub(super) wire: &'a KernelWire,
}
