//! Data spaces: the memories that a device may reach.
//!
//! Unsafe lives here because the memory may be written by a peer at any moment: it is reached by
//! plain copies through addresses, never through references. What is copied is payload; whatever
//! decides something is fetched by the queue crate before.

use std::ptr::NonNull;
use std::sync::Arc;

use towpath_protocol::memory::Mapping;

/// Names a data space. Names are given again after [`Spaces::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub u32);

/// A memory: mapped here for as long as this lives.
#[derive(Clone, Debug)]
pub struct Space {
    mapping: Arc<Mapping>,
}

/// A range outside of a data space, or a write to one that is read-only here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset} to {offset}+{len} are not in data space {space:?}, or not writable")]
pub struct SpaceError {
    /// Which space.
    pub space: SpaceId,
    /// From where.
    pub offset: u32,
    /// How many bytes.
    pub len: u32,
}

impl Space {
    /// A data space over a whole mapping.
    #[must_use]
    pub fn new(mapping: Arc<Mapping>) -> Space {
        Space { mapping }
    }
}

/// All data spaces of a device's server.
#[derive(Debug, Default)]
pub struct Spaces {
    table: Vec<Option<Space>>,
    free: Vec<u32>,
}

impl Spaces {
    /// Adds one.
    pub fn add(&mut self, space: Space) -> SpaceId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() as u32 - 1
        });
        self.table[index as usize] = Some(space);
        SpaceId(index)
    }

    /// Takes one away. Whoever does so knows that no packet of it is with the device.
    pub fn remove(&mut self, id: SpaceId) -> Option<Space> {
        let space = self.table.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        Some(space)
    }

    /// The address of `len` readable bytes; good for as long as the space is in the table.
    ///
    /// # Errors
    /// When they are not all inside.
    #[inline]
    pub fn readable(&self, id: SpaceId, offset: u32, len: u32) -> Result<NonNull<u8>, SpaceError> {
        self.address(id, offset, len, false)
    }

    /// The address of `len` writable bytes; good for as long as the space is in the table.
    ///
    /// # Errors
    /// When they are not all inside, or the space is mapped for reading alone.
    #[inline]
    pub fn writable(&self, id: SpaceId, offset: u32, len: u32) -> Result<NonNull<u8>, SpaceError> {
        self.address(id, offset, len, true)
    }

    #[inline]
    fn address(
        &self,
        id: SpaceId,
        offset: u32,
        len: u32,
        write: bool,
    ) -> Result<NonNull<u8>, SpaceError> {
        let outside = SpaceError { space: id, offset, len };
        let space = self.table.get(id.0 as usize).and_then(Option::as_ref).ok_or(outside)?;
        let end = u64::from(offset) + u64::from(len);
        if end > space.mapping.len() as u64 || (write && !space.mapping.is_writable()) {
            return Err(outside);
        }
        // SAFETY: offset <= end <= the mapping's length, so the sum stays inside the mapping.
        Ok(unsafe { space.mapping.start().add(offset as usize) })
    }

    /// Copies bytes out of a space into private memory.
    ///
    /// # Errors
    /// When they are not all inside.
    pub fn copy_out(&self, id: SpaceId, offset: u32, to: &mut [u8]) -> Result<(), SpaceError> {
        let from = self.readable(id, offset, to.len() as u32)?;
        // SAFETY: `from` is good for `to.len()` bytes, just checked; `to` is private memory, so
        // they do not overlap. A peer that writes meanwhile makes the bytes arbitrary, and they
        // are payload: nothing is decided from the source again.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies private bytes into a space.
    ///
    /// # Errors
    /// When they do not fit inside, or the space is read-only here.
    pub fn copy_in(&self, id: SpaceId, offset: u32, from: &[u8]) -> Result<(), SpaceError> {
        let to = self.writable(id, offset, from.len() as u32)?;
        // SAFETY: `to` is good for `from.len()` bytes, just checked; `from` is private memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let mut spaces = Spaces::default();
        let id = spaces.add(Space::new(Arc::new(Mapping::private(4096).unwrap())));
        spaces.copy_in(id, 4092, b"wxyz").unwrap();
        let mut out = [0; 4];
        spaces.copy_out(id, 4092, &mut out).unwrap();
        assert_eq!(&out, b"wxyz");
        assert!(spaces.copy_in(id, 4093, b"wxyz").is_err());
        assert!(spaces.copy_out(id, u32::MAX, &mut out).is_err());
        assert!(spaces.copy_out(SpaceId(9), 0, &mut out).is_err());
        assert!(spaces.remove(id).is_some());
        assert!(spaces.copy_out(id, 0, &mut out).is_err());
        assert_eq!(spaces.add(Space::new(Arc::new(Mapping::private(1).unwrap()))), id);
    }
}
