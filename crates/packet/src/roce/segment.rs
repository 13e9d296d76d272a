//! The packet in a UDP payload.

use super::bth::{Bth, stated_pad};
use super::error::RoceError;
use super::extension::Extension;
use super::icrc::ICRC_BYTES;
use super::opcode::Opcode;

/// A packet as it stands in a UDP payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// The extension headers.
    pub extension: Extension,
    /// The payload, without the pad.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads the packet in a UDP payload, which ends with the invariant CRC. It does not check the
    /// CRC: [`read_frame`](super::read_frame) does, from the addresses on.
    ///
    /// # Errors
    /// [`RoceError::Short`], [`RoceError::Version`], [`RoceError::Opcode`] or [`RoceError::Pad`].
    #[inline]
    pub fn read(udp_payload: &'a [u8]) -> Result<Segment<'a>, RoceError> {
        let (header, rest) = udp_payload.split_first_chunk().ok_or(RoceError::Short)?;
        let version = header[1] & 0xf;
        if version != 0 {
            return Err(RoceError::Version(version));
        }
        let opcode = Opcode::from_number(header[0]).ok_or(RoceError::Opcode(header[0]))?;
        let (extension, rest) =
            rest.split_at_checked(opcode.extension_bytes()).ok_or(RoceError::Short)?;
        let padded = rest.len().checked_sub(ICRC_BYTES).ok_or(RoceError::Short)?;
        let len = padded.checked_sub(stated_pad(header)).ok_or(RoceError::Pad)?;
        if !padded.is_multiple_of(4) {
            return Err(RoceError::Pad);
        }
        Ok(Segment {
            bth: Bth::from_bytes(opcode, header),
            extension: Extension::read(opcode, extension),
            payload: &rest[..len],
        })
    }
}
