//! What a driver's process and its application share: a socket, memory files and eventfds.

use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use anyhow::{bail, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};
use towpath_memory::{PAGE_BYTES, SharedFile};
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::message::Message;

use crate::card::port::{BUFFERS, Port};
use crate::child::{Child, tell};

/// The most bytes of a message: [`super::PACKETS_PER_MESSAGE`] full packets with their lengths.
pub(super) const MESSAGE_BYTES: usize = 32 * 1024;

/// The words before the slots of a ring: its index, on a cache line of its own.
pub(super) const LINE_WORDS: usize = 8;
/// The bytes of a ring. It has a slot for each buffer, so it is never full.
pub(super) const WORDS_BYTES: usize = (LINE_WORDS + BUFFERS as usize) * 8;

/// One side's ends.
pub(super) struct Ends {
    pub(super) socket: OwnedFd,
    /// The memory of packets. The card reaches it.
    pub(super) packets: SharedFile,
    /// The words that the driver writes, and those that the application writes.
    pub(super) driver: SharedFile,
    pub(super) application: SharedFile,
    /// What wakes the driver, and what wakes the application.
    pub(super) driver_bell: OwnedFd,
    pub(super) application_bell: OwnedFd,
}

impl Ends {
    /// Makes both sides' ends, and gives the driver its own. `start` starts the driver, which connects to a
    /// socket of the given abstract name.
    pub(super) fn create(
        start: impl FnOnce(String) -> anyhow::Result<Child>,
    ) -> anyhow::Result<(Ends, Child)> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("towpath-lab-{:016x}-ends", u64::from_ne_bytes(random));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (socket, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        let ends = Ends {
            socket,
            packets: SharedFile::create("card-packets", Port::bytes(PAGE_BYTES))?,
            driver: SharedFile::create("card-driver", WORDS_BYTES)?,
            application: SharedFile::create("card-application", WORDS_BYTES)?,
            // The driver sleeps on its card, too, and reads its eventfd without waiting.
            driver_bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            application_bell: eventfd(0, EventfdFlags::CLOEXEC)?,
        };
        let child = start(name)?;
        let channel = Channel::new(listener.accept()?.0.into());
        let files = [&ends.packets, &ends.driver, &ends.application].map(AsFd::as_fd);
        let bells = [ends.driver_bell.as_fd(), ends.application_bell.as_fd()];
        let all = [&[theirs.as_fd()][..], &files, &bells].concat();
        channel.send(&Message::Done, &all)?;
        Ok((ends, child))
    }

    /// Takes the driver's ends, in the process that [`Ends::create`] started.
    pub(super) fn receive(name: &str) -> anyhow::Result<Ends> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        tell("ready")?;
        let Incoming::Message(_, descriptors) = Channel::new(stream.into()).receive()? else {
            bail!("the application has ended");
        };
        let Ok([socket, packets, driver, application, driver_bell, application_bell]) =
            <[OwnedFd; 6]>::try_from(descriptors)
        else {
            bail!("the application sent other descriptors");
        };
        Ok(Ends {
            socket,
            packets: SharedFile::adopt(packets)?,
            driver: SharedFile::adopt(driver)?,
            application: SharedFile::adopt(application)?,
            driver_bell,
            application_bell,
        })
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &[u8]) -> anyhow::Result<()> {
        let sent = send(&self.socket, message, SendFlags::NOSIGNAL)?;
        ensure!(sent == message.len(), "a message was cut");
        Ok(())
    }

    /// Waits for a message. Returns its kind and its body.
    pub(super) fn wait<'a>(&self, into: &'a mut [u8]) -> anyhow::Result<(u8, &'a mut [u8])> {
        let (got, whole) = recv(&self.socket, &mut *into, RecvFlags::TRUNC)?;
        ensure!(got == whole, "a message of {whole} bytes");
        match into[..got].split_first_mut() {
            Some((kind, body)) => Ok((*kind, body)),
            None => bail!("the other process has ended"),
        }
    }
}

/// Writes an eventfd.
pub(super) fn notify(bell: &OwnedFd) -> anyhow::Result<()> {
    rustix::io::write(bell, &1_u64.to_ne_bytes())?;
    Ok(())
}
