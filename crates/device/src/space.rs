//! Data spaces: the memories that a device may access.
//!
//! A peer may write the memory at any moment. So drivers access it by the copies of
//! [`towpath_memory`] and by addresses, never through references. The copied bytes are payload; the
//! queue crate fetches bytes on which a decision depends.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use towpath_memory::{Mapping, Region};

use crate::dma::Registration;

/// The id of a data space. [`Spaces::add`] reuses an id after [`Spaces::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub u32);

/// A memory that is mapped for as long as this value lives. All of it is readable; only the space's
/// region is writable.
#[derive(Debug)]
pub struct Space {
    mapping: Arc<Mapping>,
    region: Option<Region>,
    /// The address of the mapping for the device, which reaches it for as long as the space exists.
    registration: Option<Registration>,
}

/// A range outside of a data space, or a write to a read-only part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset} to {offset}+{len} are not in data space {space:?}, or not writable")]
pub struct SpaceError {
    /// The space.
    pub space: SpaceId,
    /// The offset of the range.
    pub offset: u32,
    /// The number of bytes.
    pub len: u32,
}

impl Space {
    /// Creates a read-only data space over a whole mapping.
    #[must_use]
    pub fn new(mapping: Arc<Mapping>) -> Space {
        Space { mapping, region: None, registration: None }
    }

    /// Creates a data space over the region's whole mapping, in which the region is writable.
    #[must_use]
    pub fn writable(region: Region) -> Space {
        Space { mapping: region.mapping().clone(), region: Some(region), registration: None }
    }

    /// Adds the registration of the space's mapping.
    #[must_use]
    pub fn registered(self, registration: Option<Registration>) -> Space {
        Space { registration, ..self }
    }
}

/// All data spaces of a device's server.
#[derive(Debug, Default)]
pub struct Spaces {
    table: Vec<Option<Space>>,
    free: Vec<u32>,
}

impl Spaces {
    /// Adds a space.
    pub fn add(&mut self, space: Space) -> SpaceId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() as u32 - 1
        });
        self.table[index as usize] = Some(space);
        SpaceId(index)
    }

    /// Removes a space. The caller ensures that no packet of the space is in flight.
    pub fn remove(&mut self, id: SpaceId) -> Option<Space> {
        let space = self.table.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        Some(space)
    }

    /// Returns the address of `len` readable bytes, valid for as long as the space is in the table.
    ///
    /// # Errors
    /// When they are not all inside.
    #[inline]
    pub fn readable(&self, id: SpaceId, offset: u32, len: u32) -> Result<NonNull<u8>, SpaceError> {
        let outside = SpaceError { space: id, offset, len };
        let space = self.table.get(id.0 as usize).and_then(Option::as_ref).ok_or(outside)?;
        space.mapping.range(offset as usize, len as usize).ok_or(outside)
    }

    /// Returns the address at which the device finds `len` bytes; `None` if they are not all inside
    /// a registered space.
    #[inline]
    #[must_use]
    pub fn device_address(&self, id: SpaceId, offset: u32, len: u32) -> Option<u64> {
        let space = self.table.get(id.0 as usize).and_then(Option::as_ref)?;
        space.mapping.range(offset as usize, len as usize)?;
        Some(space.registration.as_ref()?.address() + u64::from(offset))
    }

    /// Returns the address of `len` writable bytes, valid for as long as the space is in the table.
    ///
    /// # Errors
    /// When they are not all inside the space's region.
    #[inline]
    pub fn writable(
        &mut self,
        id: SpaceId,
        offset: u32,
        len: u32,
    ) -> Result<NonNull<u8>, SpaceError> {
        let outside = SpaceError { space: id, offset, len };
        let (region, at) = self.region(id, offset, outside)?;
        region.range(at, len as usize).ok_or(outside)
    }

    /// `true` if `len` bytes at `offset` are writable.
    #[inline]
    #[must_use]
    pub fn is_writable(&self, id: SpaceId, offset: u32, len: u32) -> bool {
        let space = self.table.get(id.0 as usize).and_then(Option::as_ref);
        let region = space.and_then(|space| space.region.as_ref());
        let at = |region: &Region| (offset as usize).checked_sub(region.offset());
        region.is_some_and(|one| at(one).is_some_and(|at| one.range(at, len as usize).is_some()))
    }

    /// Returns the writable region of a space, and an offset of the space as an offset in it.
    #[inline]
    fn region(
        &mut self,
        id: SpaceId,
        offset: u32,
        outside: SpaceError,
    ) -> Result<(&mut Region, usize), SpaceError> {
        let space = self.table.get_mut(id.0 as usize).and_then(Option::as_mut).ok_or(outside)?;
        let region = space.region.as_mut().ok_or(outside)?;
        let at = (offset as usize).checked_sub(region.offset()).ok_or(outside)?;
        Ok((region, at))
    }

    /// Copies bytes out of a space into private memory. A peer that writes meanwhile makes the
    /// bytes arbitrary. They are payload: no decision reads the source again.
    ///
    /// # Errors
    /// When they are not all inside.
    pub fn copy_out(&self, id: SpaceId, offset: u32, to: &mut [u8]) -> Result<(), SpaceError> {
        let outside = SpaceError { space: id, offset, len: to.len() as u32 };
        let space = self.table.get(id.0 as usize).and_then(Option::as_ref).ok_or(outside)?;
        if space.mapping.copy_out(offset as usize, to) { Ok(()) } else { Err(outside) }
    }

    /// Copies as [`Spaces::copy_out`] does, into uninitialized memory, and writes all of it.
    ///
    /// # Errors
    /// When the bytes are not all inside; then nothing was written.
    #[inline]
    pub fn copy_into(
        &self,
        id: SpaceId,
        offset: u32,
        to: &mut [MaybeUninit<u8>],
    ) -> Result<(), SpaceError> {
        let outside = SpaceError { space: id, offset, len: to.len() as u32 };
        let space = self.table.get(id.0 as usize).and_then(Option::as_ref).ok_or(outside)?;
        if space.mapping.copy_into(offset as usize, to) { Ok(()) } else { Err(outside) }
    }

    /// Copies private bytes into a space.
    ///
    /// # Errors
    /// When they are not all inside the space's region.
    pub fn copy_in(&mut self, id: SpaceId, offset: u32, from: &[u8]) -> Result<(), SpaceError> {
        let outside = SpaceError { space: id, offset, len: from.len() as u32 };
        let (region, at) = self.region(id, offset, outside)?;
        if region.copy_in(at, from) { Ok(()) } else { Err(outside) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_region_itself_is_writable() {
        let mut spaces = Spaces::default();
        let mut region = Region::private(4096).unwrap();
        let before = region.split_off_front(1024);
        let rest = region.split_off_front(1024);
        let id = spaces.add(Space::writable(rest));
        assert!(spaces.copy_in(id, 1023, b"a").is_err() && !spaces.is_writable(id, 1023, 1));
        assert!(spaces.copy_in(id, 2048, b"a").is_err() && !spaces.is_writable(id, 2047, 2));
        assert!(spaces.writable(id, 1024, 1025).is_err() && spaces.writable(id, 1023, 9).is_err());
        assert!(spaces.writable(id, 1024, 1024).is_ok() && spaces.is_writable(id, 1024, 1024));
        spaces.copy_in(id, 2047, b"a").unwrap();
        let mut all = [0; 4096];
        spaces.copy_out(id, 0, &mut all).unwrap();
        assert!(all.iter().enumerate().all(|(at, byte)| (*byte == b'a') == (at == 2047)));
        let reader = spaces.add(Space::new(before.mapping().clone()));
        assert!(spaces.copy_in(reader, 0, b"a").is_err() && !spaces.is_writable(reader, 0, 1));
        assert!(
            spaces.readable(reader, 0, 4096).is_ok() && spaces.readable(reader, 1, 4096).is_err()
        );
    }

    #[test]
    fn ranges_are_checked() {
        let mut spaces = Spaces::default();
        let id = spaces.add(Space::writable(Region::private(4096).unwrap()));
        spaces.copy_in(id, 4092, b"wxyz").unwrap();
        let mut out = [0; 4];
        spaces.copy_out(id, 4092, &mut out).unwrap();
        assert_eq!(&out, b"wxyz");
        assert!(spaces.copy_in(id, 4093, b"wxyz").is_err());
        assert!(spaces.copy_out(id, u32::MAX, &mut out).is_err());
        assert!(spaces.copy_out(SpaceId(9), 0, &mut out).is_err());
        assert!(spaces.remove(id).is_some());
        assert!(spaces.copy_out(id, 0, &mut out).is_err());
        assert_eq!(spaces.add(Space::writable(Region::private(1).unwrap())), id);
    }
}
