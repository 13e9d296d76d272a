//! A received PDU.

use towpath_client::{MacAddr, Received};

use crate::format::Fragment;
use crate::pieces::Pieces;

/// A received, complete PDU. The application reads a PDU of one fragment where the server put it. A
/// PDU of several fragments was reassembled, and lies in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Pdu<'a> {
    fragment: Fragment,
    body: Body<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Body<'a> {
    InPlace(Received<'a>),
    Reassembled(&'a [u8]),
}

impl<'a> Pdu<'a> {
    pub(crate) fn in_place(fragment: Fragment, frame: Received<'a>) -> Pdu<'a> {
        Pdu { fragment, body: Body::InPlace(frame) }
    }

    pub(crate) fn reassembled(fragment: Fragment, bytes: &'a [u8]) -> Pdu<'a> {
        Pdu { fragment, body: Body::Reassembled(bytes) }
    }

    /// Returns the source MAC address. The server has checked the address of a sender on this host;
    /// the address of a sender on the wire is unchecked.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// println!("from {}", pdu.source());
    /// # }
    /// ```
    #[must_use]
    pub fn source(&self) -> MacAddr {
        self.fragment.source
    }

    /// Returns the destination MAC address: the endpoint's, or a group address.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// let is_to_group = pdu.destination().is_multicast();
    /// # }
    /// ```
    #[must_use]
    pub fn destination(&self) -> MacAddr {
        self.fragment.destination
    }

    /// Returns the channel.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// match pdu.channel() {
    ///     1 => println!("control: {} bytes", pdu.len()),
    ///     channel => println!("data on channel {channel}"),
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn channel(&self) -> u32 {
        self.fragment.channel
    }

    /// Returns the PDU's number, which its sender chose.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// println!("PDU {} of {}", pdu.id(), pdu.source());
    /// # }
    /// ```
    #[must_use]
    pub fn id(&self) -> u32 {
        self.fragment.id
    }

    /// Returns the length in bytes, 0 to 65 536.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// let mut bytes = Vec::with_capacity(pdu.len());
    /// pdu.append_to(&mut bytes);
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.fragment.total as usize
    }

    /// Returns `true` if the PDU has no bytes.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// if pdu.is_empty() {
    ///     println!("a PDU without bytes, as a sign of life");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fragment.total == 0
    }

    /// Returns `true` if the PDU lies in the receive buffer, uncopied.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// println!("{}", if pdu.is_in_place() { "one fragment" } else { "reassembled" });
    /// # }
    /// ```
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.body, Body::InPlace(_))
    }

    /// Returns the whole PDU if it lies in one piece: always unless the session's receive buffers
    /// are smaller than the MTU.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// match pdu.contiguous() {
    ///     Some(bytes) => println!("{}", String::from_utf8_lossy(bytes)),
    ///     // The session's receive buffers are smaller than the MTU.
    ///     None => println!("{} pieces", pdu.parts().count()),
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn contiguous(&self) -> Option<&'a [u8]> {
        match self.body {
            Body::Reassembled(bytes) => Some(bytes),
            Body::InPlace(frame) => {
                let mut parts = Pieces::after_headers(frame.parts(), self.len());
                let first = parts.next().unwrap_or(&[]);
                (first.len() == self.len()).then_some(first)
            }
        }
    }

    /// Returns the PDU's pieces, in order; none is empty.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// let sum: u64 = pdu.parts().flatten().map(|byte| u64::from(*byte)).sum();
    /// # }
    /// ```
    #[must_use]
    pub fn parts(&self) -> PduParts<'a> {
        match self.body {
            Body::Reassembled(bytes) => PduParts(Rest::Whole(Some(bytes))),
            Body::InPlace(frame) => {
                PduParts(Rest::InPlace(Pieces::after_headers(frame.parts(), self.len())))
            }
        }
    }

    /// Appends the PDU to a vector.
    ///
    /// ```
    /// # fn example(pdu: towpath_pdu::Pdu<'_>) {
    /// let mut bytes = Vec::new();
    /// pdu.append_to(&mut bytes);
    /// assert_eq!(bytes.len(), pdu.len());
    /// # }
    /// ```
    pub fn append_to(&self, to: &mut Vec<u8>) {
        to.reserve(self.len());
        for part in self.parts() {
            to.extend_from_slice(part);
        }
    }
}

/// The pieces of a [`Pdu`].
#[derive(Clone, Debug)]
pub struct PduParts<'a>(Rest<'a>);

#[derive(Clone, Debug)]
enum Rest<'a> {
    Whole(Option<&'a [u8]>),
    InPlace(Pieces<towpath_client::ReceivedParts<'a>>),
}

impl<'a> Iterator for PduParts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match &mut self.0 {
            Rest::Whole(whole) => whole.take(),
            Rest::InPlace(pieces) => pieces.next(),
        }
    }
}
