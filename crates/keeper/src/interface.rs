//! The interface of a device. An administrator may give it another name; its number stays. So a keeper
//! knows both, follows the name by the number, and tells its servers the present name.
//!
//! The name of the command line stays the device's name: for its socket, in policies, and in the log.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};
use towpath_netlink::{Link, LinkWatch, Netlink, RENAME_ATTEMPTS, Watched};

use super::options::Follows;

/// The name of the interface's file among the keeper's own objects.
pub(super) const INTERFACE: &str = "keeper-interface";

/// The name of a TAP's descriptor among a server's objects.
pub(super) const TAP: &str = "device-tap";

/// The kernel's name of the driver of TAPs (`DRV_NAME` in drivers/net/tun.c).
const TAP_KIND: &str = "tun";

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

/// The interface that a keeper follows, as its server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowedInterface {
    /// Its present name.
    pub name: String,
    /// The interface's number, which stays when the interface gets another name. `None` if the keeper does not know
    /// the number, or no interface has it any more.
    pub index: Option<u32>,
}

impl FollowedInterface {
    /// Returns an interface that is known by its name only.
    ///
    /// ```
    /// use towpath_keeper::FollowedInterface;
    /// let interface = FollowedInterface::named("eth0");
    /// assert_eq!((interface.name.as_str(), interface.index), ("eth0", None));
    /// ```
    #[must_use]
    pub fn named(name: &str) -> FollowedInterface {
        FollowedInterface { name: name.to_owned(), index: None }
    }
}

/// Returns the interface that a keeper follows. `left`: the descriptors that the keeper gave its server, with their
/// names. `None` for a device whose keeper follows no interface.
#[must_use]
pub fn followed_interface(left: &[(String, OwnedFd)]) -> Option<FollowedInterface> {
    let (_, file) = left.iter().find(|(name, _)| name == INTERFACE)?;
    let known = Known::read(file.as_fd()).ok()?;
    let now = Netlink::open().and_then(|mut netlink| netlink.link_at(known.index));
    Some(match now {
        Ok(link) => FollowedInterface { name: link.name, index: Some(link.index) },
        Err(_) => FollowedInterface { name: known.name, index: None },
    })
}

/// Returns the name of a TAP's interface, by an open descriptor. A server may have sent a descriptor of any file, so
/// the keeper makes no request to the file, and reads the name from `/proc`. `None` for a file that is no TAP, and
/// before Linux 5.14.
fn tap_name(descriptor: BorrowedFd<'_>) -> Option<String> {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The interface that a keeper follows.
#[derive(Debug)]
pub(super) struct Interface {
    /// The name of the command line.
    configured: String,
    follows: Follows,
    /// `None` until the interface was found.
    known: Option<Known>,
    /// Reports another name; `None` where the kernel refuses.
    watch: Option<LinkWatch>,
}

impl Interface {
    pub(super) fn new(configured: &str, follows: Follows) -> Interface {
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

    /// Returns `true` if the keeper knows the interface.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Finds the interface for a server that is to start: by its number, or else by its names. Returns
    /// the file for the server, if the interface has changed. A missing interface is no error here: the
    /// server reports it. `tap`: the descriptor of the TAP that an earlier server left.
    ///
    /// # Errors
    /// An error that names the interface.
    pub(super) fn find(&mut self, tap: Option<BorrowedFd<'_>>) -> io::Result<Option<OwnedFd>> {
        let found = match (self.follows, tap) {
            (Follows::Nothing, _) => Ok(None),
            (Follows::Interface, _) => self.find_interface(),
            (Follows::Tap, Some(tap)) => self.look_at_tap(tap).inspect(|_| self.tell_other_name()),
            (Follows::Tap, None) => self.find_persistent_tap(),
        };
        found.map_err(|error| self.named(&error))
    }

    /// Returns an error with the interface's last name.
    fn named(&self, error: &io::Error) -> io::Error {
        let name = self.known.as_ref().map_or(&self.configured, |known| &known.name);
        io::Error::new(error.kind(), format!("{name}: {error}"))
    }

    /// Finds the interface of a TAP by its descriptor. Returns as `find` does.
    ///
    /// # Errors
    /// An error that names the interface.
    pub(super) fn find_tap(&mut self, tap: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        self.look_at_tap(tap).map_err(|error| self.named(&error))
    }

    fn look_at_tap(&mut self, tap: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        if self.follows != Follows::Tap {
            return Ok(None);
        }
        let mut netlink = Netlink::open().map_err(io::Error::other)?;
        for _ in 0..RENAME_ATTEMPTS {
            let Some(name) = tap_name(tap) else { break };
            match netlink.link(&name) {
                Ok(link) if link.kind.as_deref() == Some(TAP_KIND) => {
                    return self.change(Known::of(link));
                }
                // The interface's name has changed since, or the interface is in another namespace.
                Ok(_) => {}
                Err(error) if error.not_found() => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(None)
    }

    /// Finds a TAP by its number, without a descriptor that a server left. If the TAP is gone, the next server makes a
    /// TAP with the name on the command line.
    fn find_persistent_tap(&mut self) -> io::Result<Option<OwnedFd>> {
        let Some(known) = &self.known else { return Ok(None) };
        let found = Netlink::open().and_then(|mut netlink| netlink.link_at(known.index));
        match found {
            Ok(link) => {
                let changed = self.change(Known::of(link))?;
                self.tell_other_name();
                Ok(changed)
            }
            Err(error) if error.not_found() => {
                (self.known, self.watch) = (None, None);
                Ok(None)
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Logs the interface's present name, if it differs from the name on the command line.
    fn tell_other_name(&self) {
        let configured = &self.configured;
        if let Some(name) = self.other_name() {
            tracing::info!(
                device = configured,
                interface = name,
                "the next server serves {configured} under its name {name}"
            );
        }
    }

    /// Finds a host interface.
    fn find_interface(&mut self) -> io::Result<Option<OwnedFd>> {
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
        if let Some(known) = self.known.as_ref().filter(|known| known.index != index) {
            tracing::warn!(
                device = configured,
                interface = name,
                "the interface {} with the number {} was deleted, and another interface has the name {name}: \
                 the next server serves that one, with the number {index}",
                known.name,
                known.index
            );
            return self.change(found);
        }
        let changed = self.change(found)?;
        self.tell_other_name();
        Ok(changed)
    }

    /// Takes a change of the interface. Returns the file for later servers, if the interface has another name.
    ///
    /// # Errors
    /// An error that names the interface.
    pub(super) fn take_change(&mut self) -> io::Result<Option<OwnedFd>> {
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
    use towpath_device::tap::{Options, TapDevice};
    use towpath_netlink::Veth;
    use towpath_testkit::isolated;

    use super::*;

    fn interface_of(file: OwnedFd) -> Option<String> {
        followed_interface(&[(INTERFACE.to_owned(), file)]).map(|interface| interface.name)
    }

    /// The number decides, then the last name, then the name of the command line.
    #[test]
    fn an_interface_is_found_by_number_and_then_by_name() {
        isolated!(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.create_veth(&Veth::new("eth0", "far0")).unwrap();
            let mut interface = Interface::new("eth0", Follows::Interface);
            let file = interface.find(None).unwrap().unwrap();
            assert_eq!(interface.index().unwrap(), netlink.index("eth0").unwrap());
            assert_eq!(
                (interface.find(None).unwrap().is_none(), interface.other_name()),
                (true, None)
            );
            assert_eq!(interface_of(file.try_clone().unwrap()).as_deref(), Some("eth0"));
            assert!(rustix::io::write(&file, b"x").is_err(), "no server can change it");

            netlink.rename("eth0", "lan0").unwrap();
            // The file has the earlier name.
            assert_eq!(interface_of(file.try_clone().unwrap()).as_deref(), Some("lan0"));
            assert!(interface.take_change().unwrap().is_some());
            assert!(interface.take_change().unwrap().is_none());
            assert_eq!(interface.other_name(), Some("lan0"));
            netlink.create_veth(&Veth::new("eth0", "far1")).unwrap();
            assert!(interface.find(None).unwrap().is_none());

            netlink.delete_link("lan0").unwrap();
            netlink.create_veth(&Veth::new("lan0", "far2")).unwrap();
            let file = interface.find(None).unwrap().unwrap();
            assert_eq!(interface.index().unwrap(), netlink.index("lan0").unwrap());
            let mut next = Interface::new("eth0", Follows::Interface);
            next.adopt(file.as_fd());
            assert_eq!(next.index().unwrap(), netlink.index("lan0").unwrap());
            netlink.delete_link("lan0").unwrap();
            assert!(next.find(None).unwrap().is_some());
            assert_eq!(next.index().unwrap(), netlink.index("eth0").unwrap());
            netlink.delete_link("eth0").unwrap();
            assert!(next.find(None).unwrap().is_none());

            assert!(Interface::new("lo", Follows::Nothing).find(None).unwrap().is_none());
            assert_eq!(followed_interface(&[]), None);
        });
    }

    /// A keeper of several devices has one log for all interfaces.
    #[test]
    fn an_error_names_the_interface() {
        isolated!(|| {
            let mut interface = Interface::new("eth0", Follows::Interface);
            let limits = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limits }).unwrap();
            let error = interface.find(None).unwrap_err().to_string();
            setrlimit(Resource::Nofile, limits).unwrap();
            assert!(
                error.starts_with("eth0: ") && error.contains("Too many open files"),
                "{error}"
            );

            let mut netlink = Netlink::open().unwrap();
            netlink.create_veth(&Veth::new("eth0", "far0")).unwrap();
            interface.find(None).unwrap().unwrap();
            netlink.rename("eth0", "lan0").unwrap();
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limits }).unwrap();
            let error = interface.take_change().unwrap_err().to_string();
            setrlimit(Resource::Nofile, limits).unwrap();
            assert!(
                error.starts_with("eth0: ") && error.contains("Too many open files"),
                "{error}"
            );
        });
    }

    /// A TAP is found by its descriptor, and one that outlived its server by its number. If neither is there, the
    /// name of the command line counts.
    #[test]
    fn a_tap_is_found_by_its_descriptor_and_then_by_its_number() {
        isolated!(|| {
            let options = Options { name: "t0".to_owned(), offloads: true };
            let Ok(tap) = TapDevice::open(&options) else {
                println!(
                    "SKIP a_tap_is_found_by_its_descriptor_and_then_by_its_number: no TAP here"
                );
                return;
            };
            let mut netlink = Netlink::open().unwrap();
            let mut interface = Interface::new("t0", Follows::Tap);
            assert!(interface.find(None).unwrap().is_none() && !interface.is_known());
            netlink.rename("t0", "t1").unwrap();
            netlink.create_veth(&Veth::new("t0", "far0")).unwrap();
            let file = interface.find(Some(tap.as_fd())).unwrap().unwrap();
            assert_eq!(interface.other_name(), Some("t1"));
            assert_eq!(interface.index().unwrap(), netlink.index("t1").unwrap());
            let followed = followed_interface(&[(INTERFACE.to_owned(), file)]).unwrap();
            assert_eq!(followed.index, netlink.index("t1").ok());
            netlink.rename("t1", "t2").unwrap();
            assert!(interface.find(None).unwrap().is_some());
            assert_eq!(interface.other_name(), Some("t2"));
            drop(tap);
            assert!(interface.find(None).unwrap().is_none());
            assert!(!interface.is_known(), "a server makes it by the name of the command line");
            // Neither another file nor another device's keeper says anything.
            let other = File::open("/dev/null").unwrap();
            assert!(interface.find(Some(other.as_fd())).unwrap().is_none());
        });
    }
}
