//! Links: the attachments of programs to interfaces.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::error::Error;
use crate::program::{ATTACH_TCX_INGRESS, Program};
use crate::syscall::{Attribute, Command, call, call_for_fd, info_of, u32_at};

/// `BPF_XDP`, the attach type.
const ATTACH_XDP: u32 = 37;
/// `BPF_LINK_TYPE_XDP`.
const TYPE_XDP: u32 = 6;
/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` (`linux/if_link.h`).
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;
/// `BPF_F_BEFORE`: before all programs of a hook, if the request names no other program.
const BEFORE: u32 = 1 << 3;

/// The part of the kernel that runs an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The interface's driver.
    Native,
    /// The network stack, for any driver.
    Generic,
}

/// The attachment of a program to an interface. It ends when its last descriptor is closed.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

/// The identity of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    pub(crate) id: u32,
    pub(crate) program: u32,
    /// The interface's number, if it is an XDP link; 0 once it is detached.
    pub(crate) interface: Option<u32>,
}

#[repr(C)]
struct Create {
    program: u32,
    interface: u32,
    attach: u32,
    flags: u32,
}

// SAFETY: as the trait requires; it has no pointers.
unsafe impl Attribute for Create {}

#[repr(C)]
struct Update {
    link: u32,
    program: u32,
    flags: u32,
}

// SAFETY: as the trait requires; it has no pointers.
unsafe impl Attribute for Update {}

#[repr(C)]
struct Detach {
    link: u32,
}

// SAFETY: as the trait requires; it has no pointers.
unsafe impl Attribute for Detach {}

#[repr(C)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

// SAFETY: as the trait requires; it has no pointers.
unsafe impl Attribute for ById {}

impl Link {
    /// Attaches an XDP program to an interface.
    ///
    /// # Errors
    /// [`Error::Refused`] with EBUSY if the interface has an XDP program, with EOPNOTSUPP if its
    /// driver has no native XDP, with EINVAL if the driver cannot run one with the interface's
    /// settings.
    pub fn attach_xdp(program: &Program, interface: u32, mode: XdpMode) -> Result<Link, Error> {
        let flags = match mode {
            XdpMode::Native => NATIVE,
            XdpMode::Generic => GENERIC,
        };
        let program = program.as_fd().as_raw_fd() as u32;
        let mut attribute = Create { program, interface, attach: ATTACH_XDP, flags };
        let created = call_for_fd(Command::LinkCreate, &mut attribute);
        Ok(Link { fd: created.map_err(Error::of("attaching an XDP program"))? })
    }

    /// Attaches a program to the packets that an interface has received, before the network stack
    /// handles them (Linux 6.6). Earlier programs stay, and run after this one if this one
    /// returns `TCX_NEXT`.
    ///
    /// # Errors
    /// [`Error::Refused`], with EINVAL on older kernels.
    pub fn attach_ingress(program: &Program, interface: u32) -> Result<Link, Error> {
        let program = program.as_fd().as_raw_fd() as u32;
        let mut attribute =
            Create { program, interface, attach: ATTACH_TCX_INGRESS, flags: BEFORE };
        let created = call_for_fd(Command::LinkCreate, &mut attribute);
        Ok(Link { fd: created.map_err(Error::of("attaching a program to received packets"))? })
    }

    /// Takes over a link's descriptor, which another process held.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for anything but an XDP link.
    pub fn from_fd(fd: OwnedFd) -> Result<Link, Error> {
        let link = Link { fd };
        match link.info()?.interface {
            Some(_) => Ok(link),
            None => {
                Err(Error::Mismatch { what: "taking over a BPF link", why: "it is no XDP link" })
            }
        }
    }

    /// Opens a link by its number.
    pub(crate) fn by_id(id: u32) -> Result<Link, Error> {
        let mut attribute = ById { id, next: 0, flags: 0 };
        let opened = call_for_fd(Command::LinkById, &mut attribute);
        Ok(Link { fd: opened.map_err(Error::of("opening a BPF link by its id"))? })
    }

    /// Returns the number of the link after `id`; `None` behind the last one.
    pub(crate) fn next_id(id: u32) -> Result<Option<u32>, Error> {
        let mut attribute = ById { id, next: 0, flags: 0 };
        match call(Command::LinkNextId, &mut attribute) {
            Ok(_) => Ok(Some(attribute.next)),
            Err(cause) if cause.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(cause) => Err(Error::of("listing BPF links")(cause)),
        }
    }

    pub(crate) fn info(&self) -> Result<LinkInfo, Error> {
        // struct bpf_link_info: type, id, program, and in the union the interface's number.
        let info =
            info_of::<32>(self.fd.as_raw_fd()).map_err(Error::of("asking for a BPF link"))?;
        let is_xdp = u32_at(&info, 0) == TYPE_XDP;
        let interface = is_xdp.then(|| u32_at(&info, 16));
        Ok(LinkInfo { id: u32_at(&info, 4), program: u32_at(&info, 8), interface })
    }

    /// Returns the number of the attached program.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn program(&self) -> Result<u32, Error> {
        Ok(self.info()?.program)
    }

    /// Returns `true` if this is an XDP link that is still attached to `interface`.
    #[must_use]
    pub fn is_attached_to(&self, interface: u32) -> bool {
        interface != 0 && self.info().is_ok_and(|info| info.interface == Some(interface))
    }

    /// Returns the same link, by a descriptor of its own.
    ///
    /// # Errors
    /// If the process has no room for a descriptor.
    pub fn try_clone(&self) -> std::io::Result<Link> {
        Ok(Link { fd: self.fd.try_clone()? })
    }

    /// Replaces the program. The old or the new program handles each packet; none passes without
    /// a program. Needs no capability.
    ///
    /// # Errors
    /// [`Error::Refused`], with ENOLINK if the interface is gone.
    pub fn update(&self, program: &Program) -> Result<(), Error> {
        let program = program.as_fd().as_raw_fd() as u32;
        let mut attribute = Update { link: self.fd.as_raw_fd() as u32, program, flags: 0 };
        let updated = call(Command::LinkUpdate, &mut attribute).map(drop);
        updated.map_err(Error::of("replacing an XDP program"))
    }

    /// Ends the attachment, whichever process holds descriptors of it.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn detach(&self) -> Result<(), Error> {
        let mut attribute = Detach { link: self.fd.as_raw_fd() as u32 };
        call(Command::LinkDetach, &mut attribute).map(drop).map_err(Error::of("detaching a link"))
    }
}

impl From<Link> for OwnedFd {
    fn from(link: Link) -> OwnedFd {
        link.fd
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
