//! Kinds of devices.
#![forbid(unsafe_code)]

use towpath_keeper::Follows;

/// The kind of a device, which decides what its keeper may do after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Tap,
    HostInterface,
    /// A PCI network card.
    Card,
}

impl Kind {
    /// Returns how the keeper follows the device's interface.
    pub(super) fn follows(self) -> Follows {
        match self {
            Kind::Tap => Follows::Tap,
            Kind::HostInterface => Follows::Interface,
            Kind::Card => Follows::Nothing,
        }
    }

    /// Returns the kind's name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Tap => "tap",
            Kind::HostInterface => "host-interface",
            Kind::Card => "card",
        }
    }
}
