//! Registers that the kernel has switched off.
//!
//! When the memory decoding of a device ends (by its command register, a reset, or hot removal), the
//! kernel unmaps its registers, and an access raises SIGBUS (`vfio_pci_mmap_fault` in
//! drivers/vfio/pci/vfio_pci_core.c). The handler puts pages of ones in their place, which the access
//! then reads: the driver finds a device that is gone. A SIGBUS elsewhere reaches the earlier SA_SIGINFO
//! handler, or ends the process.

use std::io;
use std::sync::Mutex;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most mappings of registers in a process.
const MOST: usize = 64;

/// A guarded range; `start` is 0 if the entry is free. The signal handler, which may interrupt any thread, reads
/// both.
struct Guarded {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

static GUARDED: [Guarded; MOST] =
    [const { Guarded { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; MOST];
/// A thread holds it while it adds a range.
static ADDING: Mutex<()> = Mutex::new(());
static INSTALL: Once = Once::new();
/// The earlier SA_SIGINFO handler, as an address; 0 if there was none.
static EARLIER: AtomicUsize = AtomicUsize::new(0);

/// Guards a range of whole pages.
pub(super) fn guard(start: *mut u8, bytes: usize) -> io::Result<()> {
    let _adding = ADDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    INSTALL.call_once(install);
    let free = GUARDED.iter().find(|one| one.start.load(Ordering::Relaxed) == 0);
    let free = free.ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?;
    free.bytes.store(bytes, Ordering::Relaxed);
    free.start.store(start as usize, Ordering::Release);
    Ok(())
}

/// Ends the guard of the range that starts here.
pub(super) fn unguard(start: *mut u8) {
    let is_meant = |one: &&Guarded| one.start.load(Ordering::Relaxed) == start as usize;
    if let Some(one) = GUARDED.iter().find(is_meant) {
        one.start.store(0, Ordering::Release);
    }
}

fn install() {
    // SAFETY: a `sigaction` of zeros is valid: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both point to live values, and `handle` has the type that SA_SIGINFO asks for.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
    if before.sa_flags & libc::SA_SIGINFO != 0 {
        EARLIER.store(before.sa_sigaction, Ordering::Release);
    }
}

/// Replaces a guarded range by pages of ones. Makes only system calls and writes memory, as signal handlers
/// must (signal-safety(7)).
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure; a SIGBUS of an access has an address.
    let at = unsafe { (*info).si_addr() } as usize;
    // SAFETY: as above. A signal by a process has another code, and no address.
    let is_access = unsafe { (*info).si_code } > 0;
    let range =
        |one: &Guarded| (one.start.load(Ordering::Acquire), one.bytes.load(Ordering::Relaxed));
    let mut ranges = GUARDED.iter().map(range);
    let found = ranges.find(|(start, bytes)| *start != 0 && at.wrapping_sub(*start) < *bytes);
    if let Some((start, bytes)) = found.filter(|_| is_access) {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses a free address range.
        let ones = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if ones != libc::MAP_FAILED {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: the new pages are this function's own. They replace a mapping of `Registers` at once,
            // which stays mapped for as long as it is guarded, and whose contents may change at any time.
            let moved = unsafe {
                std::ptr::write_bytes(ones.cast::<u8>(), 0xff, bytes);
                libc::mremap(ones, bytes, bytes, flags, start as *mut libc::c_void)
            };
            if moved != libc::MAP_FAILED {
                return;
            }
        }
    }
    let before = EARLIER.load(Ordering::Acquire);
    if before > 1 {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: an earlier SA_SIGINFO action of this process, so a function of this type.
        let before: Handler = unsafe { std::mem::transmute(before) };
        before(signal, info, context);
        return;
    }
    // SAFETY: plain system calls. The access repeats, and ends the process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use towpath_memory::PAGE_BYTES;

    use super::super::registers::{GONE, Register, Registers};
    use super::super::vfio::Bar;

    /// Pages beyond a file's end raise SIGBUS, as registers that are switched off do.
    #[test]
    fn registers_that_raise_sigbus_read_as_ones() {
        let file = rustix::fs::memfd_create("registers", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let bytes = 2 * PAGE_BYTES;
        rustix::fs::ftruncate(&file, bytes as u64).unwrap();
        let registers = Registers::map(file.as_fd(), Bar { offset: 0, bytes }).unwrap();
        registers.write(Register(8), 7);
        assert_eq!(registers.read(Register(8)), 7);
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert_eq!(registers.read(Register(8)), GONE);
        registers.write(Register(PAGE_BYTES as u32), 7);
        drop(registers);
        // A second mapping is guarded, too.
        rustix::fs::ftruncate(&file, bytes as u64).unwrap();
        let registers = Registers::map(file.as_fd(), Bar { offset: 0, bytes }).unwrap();
        rustix::fs::ftruncate(&file, 0).unwrap();
        registers.write(Register(0), 7);
        assert_eq!(registers.read(Register(4)), GONE);
    }
}
