//! The interface of a device. An administrator may give it another name; its number stays. So a keeper
//! knows both, follows the name by the number, and tells its servers the present name.
//!
//! The name of the command line stays the device's name: for its socket, in policies, and in the log.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};
use towpath_netlink::{Link, LinkWatch, Netlink, Watched};

/// The name of the interface's file among the keeper's own objects.
pub(super) const INTERFACE: &str = "keeper-interface";

/// The longest file, in bytes. A name has at most 15 bytes.
const MOST_BYTES: usize = 256;

/// An interface by its number and its name, as a keeper tells its servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    index: u32,
    name: String,
}

impl Known {
    fn of(link: Link) -> Known {
        Known { index: link.index, name: link.name }
    }

    /// Reads the file of a keeper.
    fn read(file: BorrowedFd<'_>) -> io::Result<Known> {
        let file = File::from(file.try_clone_to_owned()?);
        let mut bytes = [0; MOST_BYTES];
        let len = file.read_at(&mut bytes, 0)?;
        Ok(serde_json::from_slice(&bytes[..len])?)
    }

    /// Writes a file, which no process can change.
    fn write(&self) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(rustix::fs::memfd_create("towpath-interface", flags)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(file.into())
    }
}

/// Returns the present name of the interface that a keeper follows, by what the keeper gave its server:
/// `left`, the descriptors with their names. `None` for a device whose keeper follows none.
#[must_use]
pub fn followed_interface(left: &[(String, OwnedFd)]) -> Option<String> {
    let (_, file) = left.iter().find(|(name, _)| name == INTERFACE)?;
    let known = Known::read(file.as_fd()).ok()?;
    let now = Netlink::open().and_then(|mut netlink| netlink.link_at(known.index));
    Some(now.map_or(known.name, |link| link.name))
}

/// The interface that a keeper follows.
#[derive(Debug)]
pub(super) struct Interface {
    /// The name of the command line.
    configured: String,
    /// `false` for a device whose servers find the interface otherwise, such as a TAP by its descriptor.
    follows: bool,
    /// `None` until the interface was found.
    known: Option<Known>,
    /// Reports another name; `None` where the kernel refuses.
    watch: Option<LinkWatch>,
}

impl Interface {
    pub(super) fn new(configured: &str, follows: bool) -> Interface {
        Interface { configured: configured.to_owned(), follows, known: None, watch: None }
    }

    /// Takes the interface from the file of an earlier keeper.
    pub(super) fn adopt(&mut self, file: BorrowedFd<'_>) {
        if let Ok(known) = Known::read(file) {
            self.watch = LinkWatch::new(known.index).ok();
            self.known = Some(known);
        }
    }

    /// Returns the present name, if it differs from the name on the command line.
    pub(super) fn other_name(&self) -> Option<&str> {
        let name = self.known.as_ref().map(|known| known.name.as_str())?;
        (name != self.configured).then_some(name)
    }

    /// Returns the interface's number.
    ///
    /// # Errors
    /// If there is no such interface.
    pub(super) fn index(&mut self) -> Result<u32, towpath_netlink::Error> {
        match &self.known {
            Some(known) => Ok(known.index),
            None => Netlink::open()?.index(&self.configured),
        }
    }

    /// Finds the interface for a server that is to start: by its number, or else by its names. Returns
    /// the file for the server, if the interface has changed. A missing interface is no error here: the
    /// server reports it.
    ///
    /// # Errors
    /// An error that names the interface.
    pub(super) fn find(&mut self) -> io::Result<Option<OwnedFd>> {
        self.look().map_err(|error| self.named(&error))
    }

    /// Returns an error with the interface's last name.
    fn named(&self, error: &io::Error) -> io::Error {
        let name = self.known.as_ref().map_or(&self.configured, |known| &known.name);
        io::Error::new(error.kind(), format!("{name}: {error}"))
    }

    fn look(&mut self) -> io::Result<Option<OwnedFd>> {
        if !self.follows {
            return Ok(None);
        }
        let mut netlink = Netlink::open().map_err(io::Error::other)?;
        let by_number = self.known.as_ref().map(|known| netlink.link_at(known.index));
        let found = match by_number {
            Some(Ok(link)) => Some(link),
            Some(Err(error)) if !error.not_found() => return Err(io::Error::other(error)),
            _ => {
                let last = self.known.as_ref().map(|known| known.name.as_str());
                let names = last.into_iter().chain([self.configured.as_str()]);
                names.into_iter().find_map(|name| netlink.link(name).ok())
            }
        };
        let Some(found) = found else { return Ok(None) };
        let found = Known::of(found);
        let configured = &self.configured;
        let (index, name) = (found.index, &found.name);
        match &self.known {
            Some(known) if known.index != index => tracing::warn!(
                interface = configured,
                "the interface {} with the number {} was deleted, and another interface has the name {name}: \
                 the next server serves that one, with the number {index}",
                known.name,
                known.index
            ),
            _ if name != configured => tracing::info!(
                interface = configured,
                "the next server serves {configured} under its name {name}"
            ),
            _ => {}
        }
        self.change(found)
    }

    /// Takes news of the interface. Returns the file for later servers, if it has another name.
    ///
    /// # Errors
    /// An error that names the interface.
    pub(super) fn hear(&mut self) -> io::Result<Option<OwnedFd>> {
        match self.watch.as_mut().and_then(LinkWatch::latest) {
            Some(Watched::Here(link)) => {
                self.change(Known::of(link)).map_err(|error| self.named(&error))
            }
            Some(Watched::Gone) | None => Ok(None),
        }
    }

    /// Remembers the interface as it is now.
    fn change(&mut self, now: Known) -> io::Result<Option<OwnedFd>> {
        if self.known.as_ref() == Some(&now) {
            return Ok(None);
        }
        let file = now.write()?;
        if self.known.as_ref().is_none_or(|known| known.index != now.index) {
            self.watch = LinkWatch::new(now.index).ok();
        }
        self.known = Some(now);
        Ok(Some(file))
    }

    /// Returns the descriptor that is readable when there is news.
    pub(super) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use towpath_netlink::Veth;
    use towpath_testkit::isolated;

    use super::*;

    fn interface_of(file: OwnedFd) -> Option<String> {
        followed_interface(&[(INTERFACE.to_owned(), file)])
    }

    /// The number decides, then the last name, then the name of the command line.
    #[test]
    fn an_interface_is_found_by_number_and_then_by_name() {
        isolated!(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.create_veth(&Veth::new("eth0", "far0")).unwrap();
            let mut interface = Interface::new("eth0", true);
            let file = interface.find().unwrap().unwrap();
            assert_eq!(interface.index().unwrap(), netlink.index("eth0").unwrap());
            assert_eq!((interface.find().unwrap().is_none(), interface.other_name()), (true, None));
            assert_eq!(interface_of(file.try_clone().unwrap()).as_deref(), Some("eth0"));
            assert!(rustix::io::write(&file, b"x").is_err(), "no server can change it");

            netlink.rename("eth0", "lan0").unwrap();
            // The file has the earlier name.
            assert_eq!(interface_of(file.try_clone().unwrap()).as_deref(), Some("lan0"));
            assert!(interface.hear().unwrap().is_some());
            assert!(interface.hear().unwrap().is_none());
            assert_eq!(interface.other_name(), Some("lan0"));
            netlink.create_veth(&Veth::new("eth0", "far1")).unwrap();
            assert!(interface.find().unwrap().is_none());

            netlink.delete_link("lan0").unwrap();
            netlink.create_veth(&Veth::new("lan0", "far2")).unwrap();
            let file = interface.find().unwrap().unwrap();
            assert_eq!(interface.index().unwrap(), netlink.index("lan0").unwrap());
            let mut next = Interface::new("eth0", true);
            next.adopt(file.as_fd());
            assert_eq!(next.index().unwrap(), netlink.index("lan0").unwrap());
            netlink.delete_link("lan0").unwrap();
            assert!(next.find().unwrap().is_some());
            assert_eq!(next.index().unwrap(), netlink.index("eth0").unwrap());
            netlink.delete_link("eth0").unwrap();
            assert!(next.find().unwrap().is_none());

            assert!(Interface::new("lo", false).find().unwrap().is_none());
            assert_eq!(followed_interface(&[]), None);
        });
    }

    /// A keeper of several devices has one log for all interfaces.
    #[test]
    fn an_error_names_the_interface() {
        isolated!(|| {
            let mut interface = Interface::new("eth0", true);
            let limits = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limits }).unwrap();
            let error = interface.find().unwrap_err().to_string();
            setrlimit(Resource::Nofile, limits).unwrap();
            assert!(
                error.starts_with("eth0: ") && error.contains("Too many open files"),
                "{error}"
            );

            let mut netlink = Netlink::open().unwrap();
            netlink.create_veth(&Veth::new("eth0", "far0")).unwrap();
            interface.find().unwrap().unwrap();
            netlink.rename("eth0", "lan0").unwrap();
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limits }).unwrap();
            let error = interface.hear().unwrap_err().to_string();
            setrlimit(Resource::Nofile, limits).unwrap();
            assert!(
                error.starts_with("eth0: ") && error.contains("Too many open files"),
                "{error}"
            );
        });
    }
}
