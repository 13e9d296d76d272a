//! An incomplete PDU.

use towpath_client::MacAddr;

use crate::format::Fragment;
use crate::ranges::Ranges;

/// The key of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) source: MacAddr,
    pub(crate) channel: u32,
    pub(crate) id: u32,
}

impl Key {
    pub(crate) fn of(fragment: &Fragment) -> Key {
        Key { source: fragment.source, channel: fragment.channel, id: fragment.id }
    }
}

/// The fields that all fragments of a PDU share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) total: u32,
    pub(crate) crc: u32,
}

impl Identity {
    pub(crate) fn of(fragment: &Fragment) -> Identity {
        Identity { total: fragment.total, crc: fragment.crc }
    }
}

/// The received part of a PDU.
#[derive(Debug, Default)]
pub(crate) struct Partial {
    pub(crate) identity: Identity,
    /// The received bytes, at their offsets. Empty in a free entry of the table.
    pub(crate) buffer: Box<[u8]>,
    pub(crate) ranges: Ranges,
}

impl Partial {
    /// Begins a PDU. Keeps the memory of the ranges.
    pub(crate) fn begin(&mut self, identity: Identity, buffer: Box<[u8]>) {
        self.ranges.clear();
        (self.identity, self.buffer) = (identity, buffer);
    }
}
