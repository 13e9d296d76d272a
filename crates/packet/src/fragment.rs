//! Fragments of IP packets.

use crate::malformed::Malformed;

/// The fragment of an IP packet that a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The whole packet.
    Whole,
    /// The first fragment: it has the ports.
    First {
        /// The packet's identification; 16 bits in IPv4.
        id: u32,
    },
    /// A later fragment: it has no transport header.
    Later {
        /// The packet's identification; 16 bits in IPv4.
        id: u32,
        /// Its position in the packet, in bytes.
        offset: u16,
    },
}

impl Fragment {
    /// Classifies a fragment at `offset` with `payload` bytes, and `more` fragments after it or
    /// not. Also returns its defect, if any.
    pub(crate) fn read(
        id: u32,
        offset: u16,
        more: bool,
        payload: usize,
    ) -> (Fragment, Option<Malformed>) {
        let fragment =
            if offset == 0 { Fragment::First { id } } else { Fragment::Later { id, offset } };
        let bad = usize::from(offset) + payload > 0xffff || (more && !payload.is_multiple_of(8));
        (fragment, bad.then_some(Malformed::Fragment))
    }
}
