//! Further network namespaces of a process. A descriptor holds each, and threads work in it.
//!
//! Unsafe lives here for `unshare`, which is unsafe in rustix because of its file descriptor flag,
//! and for the hook between fork and exec, which makes one system call.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use towpath_netlink::{Netlink, Place, Prefix, Veth};

use crate::enter::raise_loopback;
use crate::error::{Error, Unavailable};

/// A network namespace. It ends, with its interfaces, when its last process, thread, socket and
/// `Namespace` is gone.
#[derive(Debug, Clone)]
pub struct Namespace {
    file: Arc<OwnedFd>,
}

impl Namespace {
    /// Returns the namespace of the calling thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn current() -> Result<Namespace, Error> {
        let file = File::open("/proc/thread-self/ns/net")
            .map_err(Error::failed("open the network namespace"))?;
        Ok(Namespace { file: Arc::new(file.into()) })
    }

    /// Creates a namespace, whose loopback is up. The calling thread stays in its own.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without CAP_SYS_ADMIN: [`enter`](crate::enter) grants it.
    pub fn create() -> Result<Namespace, Error> {
        in_thread(|| {
            // SAFETY: descriptors stay shared; only the network namespace of this thread changes.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(refused)?;
            raise_loopback().map_err(Error::refused("set the loopback up"))?;
            Namespace::current()
        })?
    }

    /// Runs a function in a thread inside the namespace, and waits for it. Sockets that the
    /// function opens belong to the namespace for good.
    ///
    /// # Errors
    /// If the thread cannot enter the namespace. A panic of the function resumes in the caller.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T, Error> {
        in_thread(|| {
            self.move_in().map_err(refused)?;
            Ok(inside())
        })?
    }

    /// Makes a command start inside the namespace. Call this before setting another user for the
    /// command, since that user could not enter any more.
    pub fn contain(&self, command: &mut Command) {
        let namespace = self.clone();
        // SAFETY: one system call.
        unsafe { command.pre_exec(move || namespace.move_in().map_err(io::Error::from)) };
    }

    /// Opens a netlink socket of this namespace.
    ///
    /// # Errors
    /// As [`run`](Namespace::run) and [`Netlink::open`].
    pub fn netlink(&self) -> Result<Netlink, Error> {
        Ok(self.run(Netlink::open)??)
    }

    /// Returns this namespace as the target of an interface.
    #[must_use]
    pub fn place(&self) -> Place<'_> {
        Place::Descriptor(self.file.as_fd())
    }

    /// Writes a setting of this namespace, such as `net.ipv4.ip_forward`. A name with slashes is a
    /// path, in which dots stand for themselves, for interfaces with a dot in their names.
    ///
    /// # Errors
    /// If there is no such setting, or `/proc/sys` is not writable, as in most containers.
    pub fn set(&self, setting: &str, value: &str) -> Result<(), Error> {
        let path = if setting.contains('/') { setting.into() } else { setting.replace('.', "/") };
        let path = PathBuf::from("/proc/sys").join(path);
        self.run(|| std::fs::write(&path, value))?
            .map_err(Error::failed(format!("set {setting} to {value}")))
    }

    /// Disables unsolicited packets of later interfaces: IPv6 link-local addresses, router
    /// solicitations and duplicate address detection. Tests that count frames need that.
    ///
    /// # Errors
    /// As [`set`](Namespace::set); none if the kernel has no IPv6.
    pub fn silence(&self) -> Result<(), Error> {
        if !std::path::Path::new("/proc/sys/net/ipv6").exists() {
            return Ok(());
        }
        for (setting, value) in
            [("addr_gen_mode", "1"), ("accept_dad", "0"), ("router_solicitations", "0")]
        {
            self.set(&format!("net.ipv6.conf.default.{setting}"), value)?;
        }
        Ok(())
    }

    fn move_in(&self) -> Result<(), Errno> {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The namespace of the end.
    pub namespace: &'a Namespace,
    /// The interface's name there.
    pub name: &'a str,
    /// Its addresses.
    pub addresses: &'a [Prefix],
}

/// Connects two namespaces, or two interfaces of one, by a veth pair with addresses, and sets it
/// up.
///
/// # Errors
/// [`Error::Unavailable`] if the kernel does not support veth pairs; else those of
/// [`Netlink::create_veth`], [`Netlink::add_address`] and [`Netlink::set_up`].
pub fn connect(near: &End<'_>, far: &End<'_>, mtu_bytes: Option<u32>) -> Result<(), Error> {
    let mut netlink = near.namespace.netlink()?;
    let pair = Veth {
        peer_place: Some(far.namespace.place()),
        mtu: mtu_bytes,
        ..Veth::new(near.name, far.name)
    };
    match netlink.create_veth(&pair) {
        Err(error) if error.errno() == Some(Errno::OPNOTSUPP) => {
            return Err(Error::Unavailable(Unavailable {
                cause: format!("no wire between network namespaces: {error}"),
                remedy: "modprobe veth, or use a kernel with CONFIG_VETH".to_owned(),
            }));
        }
        made => made?,
    }
    for end in [near, far] {
        let mut netlink = end.namespace.netlink()?;
        for &address in end.addresses {
            netlink.add_address(end.name, address)?;
        }
        netlink.set_up(end.name)?;
    }
    Ok(())
}

/// Runs work that permanently changes its thread in a thread of its own.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("namespace".to_owned())
            .spawn_scoped(scope, work)
            .map_err(Error::failed("start a thread"))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn refused(errno: Errno) -> Error {
    if errno == Errno::PERM {
        return Error::Unavailable(Unavailable {
            cause: "no further network namespace: this process lacks CAP_SYS_ADMIN".to_owned(),
            remedy: "run as root, or where user namespaces are allowed".to_owned(),
        });
    }
    Error::Failed { what: "go into a network namespace".to_owned(), cause: errno.into() }
}
