//! The system call.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A command's number (`enum bpf_cmd`).
#[derive(Clone, Copy)]
#[repr(i32)]
pub(crate) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgramLoad = 5,
    ProgramTestRun = 10,
    ProgramById = 13,
    InfoByFd = 15,
    ProgramQuery = 16,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkById = 30,
    LinkNextId = 31,
    LinkDetach = 34,
}

/// The members of `union bpf_attr` that this crate uses, one type each. Each begins like the
/// kernel's, and is zero behind the members that it sets.
///
/// # Safety
/// The type is `repr(C)`, consists of integers without padding, and has the layout of the command's
/// part of `union bpf_attr`. Each member that the kernel takes for a pointer is 0, or the address
/// of as much live memory as the members beside it say.
pub(crate) unsafe trait Attribute {}

/// Calls bpf(2). Returns the result, which is not negative.
pub(crate) fn call<A: Attribute>(command: Command, attribute: &mut A) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes at most the attribute's bytes, and the memory that its
    // pointers name, as the trait promises.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as i32, std::ptr::from_mut(attribute), size_of::<A>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Calls bpf(2) with a command that returns a new descriptor.
pub(crate) fn call_for_fd<A: Attribute>(
    command: Command,
    attribute: &mut A,
) -> io::Result<OwnedFd> {
    let fd = call(command, attribute)?;
    // SAFETY: the kernel returned a new descriptor, which has no other owner. bpf(2) sets
    // close-on-exec on each.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns a name as the kernel takes it: at most 15 letters, digits, dots and underscores.
pub(crate) fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    for (to, from) in name[..15].iter_mut().zip(text.bytes().filter(allowed)) {
        *to = from;
    }
    name
}

/// Attributes of BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
pub(crate) struct InfoAttribute {
    fd: u32,
    len: u32,
    info: u64,
}

// SAFETY: as the trait requires; `info` of `len` bytes is live during `info_of`.
unsafe impl Attribute for InfoAttribute {}

/// Returns the first bytes of an object's information (`struct bpf_map_info` and its like); bytes
/// that the kernel does not know stay 0.
pub(crate) fn info_of<const BYTES: usize>(fd: i32) -> io::Result<[u8; BYTES]> {
    let mut info = Aligned([0; BYTES]);
    let address = info.0.as_mut_ptr() as u64;
    let mut attribute = InfoAttribute { fd: fd as u32, len: BYTES as u32, info: address };
    call(Command::InfoByFd, &mut attribute)?;
    Ok(info.0)
}

/// Bytes at an address that is aligned as the kernel's structures are.
#[repr(C, align(8))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// Returns the number at an offset of an information; the caller knows that it is inside.
pub(crate) fn u32_at(info: &[u8], at: usize) -> u32 {
    info.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}
