//! Probes which kernel features this process may use, by trying them. Nothing is left behind.
//!
//! Unsafe lives here for system calls that neither rustix nor libc wrap, and for `cpuid`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// `BPF_MAP_CREATE` and `BPF_MAP_TYPE_XSKMAP` of `linux/bpf.h`.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;

/// `LANDLOCK_CREATE_RULESET_VERSION` of `linux/landlock.h`.
const LANDLOCK_CREATE_RULESET_VERSION: libc::c_long = 1;

/// `SO_PEERPIDFD` of `asm-generic/socket.h` (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// Returns the version of Landlock's interface.
///
/// # Errors
/// `ENOSYS` without Landlock in the kernel, `EOPNOTSUPP` if it was not enabled at boot.
pub fn landlock() -> Result<u32, Errno> {
    // SAFETY: with this flag, the call reads and writes no memory.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).map_err(|_| last_errno())
}

/// Makes an io_uring of one entry.
///
/// # Errors
/// `ENOSYS` without io_uring in the kernel, `EPERM` if `kernel.io_uring_disabled` or a seccomp
/// filter forbids it.
pub fn io_uring() -> Result<(), Errno> {
    // `struct io_uring_params` is 120 bytes of numbers; zero selects the defaults.
    let mut parameters = [0_u64; 15];
    // SAFETY: the kernel reads and writes the 120 bytes of a live array.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1_usize, parameters.as_mut_ptr()) };
    close(fd)
}

/// Makes a BPF map of AF_XDP sockets, as the receive side of AF_XDP needs.
///
/// # Errors
/// `EPERM` without CAP_BPF and CAP_NET_ADMIN in the initial user namespace, `ENOSYS` without
/// `bpf(2)`, `EINVAL` without AF_XDP.
pub fn xdp_map() -> Result<(), Errno> {
    // The start of `union bpf_attr`: map type, key and value size in bytes, entries. The rest is
    // zero.
    let mut attributes = [0_u32; 32];
    attributes[..4].copy_from_slice(&[BPF_MAP_TYPE_XSKMAP, 4, 4, 1]);
    // SAFETY: the kernel reads at most the stated number of bytes of a live array.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_MAP_CREATE,
            attributes.as_mut_ptr(),
            size_of_val(&attributes),
        )
    };
    close(fd)
}

/// Makes an AF_XDP socket.
///
/// # Errors
/// `EPERM` without CAP_NET_RAW, `EAFNOSUPPORT` without AF_XDP in the kernel.
pub fn xdp_socket() -> Result<(), Errno> {
    rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .map(drop)
}

/// Requests a descriptor of the process at the other end of a Unix socket.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5.
pub fn peer_pidfd() -> Result<(), Errno> {
    let (one, _other) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut fd: libc::c_int = -1;
    let mut len = size_of_val(&fd) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to a live integer of that size.
    let result = unsafe {
        libc::getsockopt(
            one.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(last_errno());
    }
    close(libc::c_long::from(fd))
}

/// Returns the vendor text of the machine's hypervisor, by `cpuid`; `None` on bare metal and on
/// processors that are not x86-64.
#[must_use]
pub fn hypervisor() -> Option<String> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, CpuidResult};
        const HYPERVISOR_PRESENT: u32 = 1 << 31;
        #[allow(unused_unsafe, reason = "the function is unsafe in older versions of Rust")]
        fn cpuid(leaf: u32) -> CpuidResult {
            // SAFETY: each processor of x86-64 has the instruction.
            unsafe { __cpuid(leaf) }
        }
        // Leaves 1 and 0x4000_0000: Intel's manual, volume 2, CPUID. The latter is reserved for
        // hypervisors, and read only where the former reports one.
        if cpuid(1).ecx & HYPERVISOR_PRESENT == 0 {
            return None;
        }
        let leaf = cpuid(0x4000_0000);
        let bytes: Vec<u8> =
            [leaf.ebx, leaf.ecx, leaf.edx].iter().flat_map(|part| part.to_le_bytes()).collect();
        let text: String = bytes
            .iter()
            .map(|&byte| char::from(byte))
            .filter(|character| character.is_ascii_graphic())
            .collect();
        Some(if text.is_empty() { "unnamed".to_owned() } else { text })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        None
    }
}

/// Closes the descriptor that a call returned, if any.
fn close(fd: libc::c_long) -> Result<(), Errno> {
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the kernel just made this descriptor for us; it has no other owner.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            Ok(())
        }
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
