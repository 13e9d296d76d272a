//! The registers of a device, mapped from its file.
//!
//! A device that is gone returns all ones for each register. If the kernel ends access to the registers, an
//! access raises SIGBUS instead. The handler ([`super::sigbus`]) then puts ones in the place of the
//! registers, so that each register reads as all ones, too.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::sigbus;
use super::vfio::Bar;

/// A register, by its offset in bytes. Most have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(pub(super) u32);

impl Register {
    /// Returns the register at this index of an array.
    pub(super) const fn at(self, index: u32, stride: u32) -> Register {
        Register(self.0 + index * stride)
    }
}

/// The value of each register once the device is gone.
pub(super) const GONE: u32 = u32::MAX;

/// The mapped registers of a device. Each thread writes only its own registers; all threads may read.
#[derive(Debug)]
pub(super) struct Registers {
    base: NonNull<u32>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process. Each access is one of a register's width, which the
// device takes from any processor.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    /// Maps the registers.
    pub(super) fn map(device: BorrowedFd<'_>, bar: Bar) -> io::Result<Registers> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address range, so the call replaces no other mapping.
        let base = unsafe {
            let (from, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
            rustix::mm::mmap(from, bar.bytes, protection, flags, device, bar.offset)?
        };
        let registers = Registers::over(base, bar.bytes)?;
        // Children of this process are for applications, and must not reach the card. Nor would the kernel
        // close it before the last of them has ended.
        // SAFETY: the range is this value's mapping, and stays as it is in this process.
        unsafe { rustix::mm::madvise(base, bar.bytes, Advice::LinuxDontFork)? };
        Ok(registers)
    }

    fn over(base: *mut libc::c_void, bytes: usize) -> io::Result<Registers> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let registers = Registers { base, bytes };
        sigbus::guard(base.as_ptr().cast(), bytes)?;
        Ok(registers)
    }

    /// Maps memory in the place of a device's registers.
    #[cfg(test)]
    pub(super) fn double(bytes: usize) -> Registers {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address range, so the call replaces no other mapping.
        let base = unsafe {
            let (from, flags) = (std::ptr::null_mut(), MapFlags::PRIVATE);
            rustix::mm::mmap_anonymous(from, bytes, protection, flags).unwrap()
        };
        Registers::over(base, bytes).unwrap()
    }

    /// Returns the bytes of the mapping.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of a register as wide as a `T`.
    fn address<T>(&self, register: Register) -> *mut T {
        let (at, bytes) = (register.0 as usize, size_of::<T>());
        let is_inside = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(at.is_multiple_of(bytes) && is_inside, "a register outside of the device");
        // SAFETY: the offset is inside of the mapping.
        unsafe { self.base.as_ptr().byte_add(at).cast() }
    }

    /// Reads a register. The read waits for the device, about a microsecond.
    #[inline]
    pub(super) fn read(&self, register: Register) -> u32 {
        // SAFETY: the address is inside of the mapping, and aligned.
        unsafe { self.address::<u32>(register).read_volatile() }
    }

    /// Writes a register. The write does not wait for the device.
    #[inline]
    pub(super) fn write(&self, register: Register, value: u32) {
        // SAFETY: the address is inside of the mapping, and aligned.
        unsafe { self.address::<u32>(register).write_volatile(value) };
    }

    /// Reads a register of 16 bits.
    pub(super) fn read16(&self, register: Register) -> u16 {
        // SAFETY: the address is inside of the mapping, and aligned.
        unsafe { self.address::<u16>(register).read_volatile() }
    }

    /// Writes a register of 16 bits.
    #[inline]
    pub(super) fn write16(&self, register: Register, value: u16) {
        // SAFETY: the address is inside of the mapping, and aligned.
        unsafe { self.address::<u16>(register).write_volatile(value) };
    }

    /// Reads a register of 8 bits.
    pub(super) fn read8(&self, register: Register) -> u8 {
        // SAFETY: the address is inside of the mapping.
        unsafe { self.address::<u8>(register).read_volatile() }
    }

    /// Writes a register of 8 bits.
    pub(super) fn write8(&self, register: Register, value: u8) {
        // SAFETY: the address is inside of the mapping.
        unsafe { self.address::<u8>(register).write_volatile(value) };
    }

    /// Changes a register: clears the bits `clear`, and sets the bits `set`.
    pub(super) fn change(&self, register: Register, clear: u32, set: u32) {
        self.write(register, self.read(register) & !clear | set);
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        sigbus::unguard(self.base.as_ptr().cast());
        // SAFETY: the mapping is this value's own, and ends with it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_hold_what_is_written() {
        let registers = Registers::double(4096);
        registers.write(Register(8), 0x1234);
        registers.change(Register(8), 0x30, 1);
        assert_eq!(registers.read(Register(8)), 0x1205);
        assert_eq!(registers.read(Register(8).at(1, 4)), 0);
    }

    #[test]
    fn narrow_registers_leave_their_neighbours() {
        let registers = Registers::double(4096);
        registers.write(Register(8), 0x1234_5678);
        registers.write8(Register(9), 0xab);
        registers.write16(Register(10), 0xcdef);
        assert_eq!(registers.read(Register(8)), 0xcdef_ab78);
        assert_eq!((registers.read8(Register(11)), registers.read16(Register(8))), (0xcd, 0xab78));
        registers.write8(Register(4095), 1);
    }

    #[test]
    #[should_panic(expected = "a register outside of the device")]
    fn a_register_across_two_is_a_mistake() {
        Registers::double(4096).read16(Register(3));
    }

    #[test]
    #[should_panic(expected = "a register outside of the device")]
    fn a_register_outside_is_a_mistake() {
        Registers::double(4096).read(Register(4096));
    }
}
