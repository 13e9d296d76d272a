//! The descriptors that a keeper holds, under names.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::net::AddressFamily;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::device_objects::parse;
use super::interface::INTERFACE;
use super::options::OWN;
use super::port_holder::PORT;

/// Descriptors that the keeper needs for itself: its sockets, those of a message and of a request.
const OWN_DESCRIPTORS: usize = 32;

/// The most descriptors that a keeper holds, whatever its limit of open files is.
const MAX_DESCRIPTORS: usize = 1 << 18;

/// The beginning of names of sockets of devices, whose close servers wait for.
const SOCKET: &str = "device-socket-";
/// The beginning of names of objects that no application can reach, and whose close may wait for an RCU
/// grace period.
const OF_DEVICE: &str = "device-";

/// Returns the most descriptors that this process can hold (`FileDescriptorStoreMax`, of this
/// store).
pub(super) fn limit() -> usize {
    let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open_files = usize::try_from(open_files).unwrap_or(usize::MAX);
    open_files.saturating_sub(OWN_DESCRIPTORS).min(MAX_DESCRIPTORS)
}

/// Returns `true` for a socket whose close does not wait for an application or a peer.
fn is_of_device(socket: &OwnedFd) -> bool {
    let domain = rustix::net::sockopt::socket_domain(socket);
    domain.is_ok_and(|domain| [AddressFamily::XDP, AddressFamily::PACKET].contains(&domain))
}

/// Descriptors under names. Several may have one name.
pub(super) struct Held {
    all: BTreeMap<String, Vec<OwnedFd>>,
    count: usize,
    limit: usize,
    /// The thread that closes objects that applications can reach; `None` until it starts.
    closer: Option<Closer>,
    /// The thread that closes the devices' objects.
    device_closer: Option<Closer>,
    /// `true` if the first thread closes objects that a server waits for.
    is_awaited: bool,
}

/// Gives up all capabilities of the calling thread.
pub fn drop_capabilities() {
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    // A thread may always give up its own.
    let _ = set_capabilities(None, none);
}

/// A thread that closes descriptors.
struct Closer(Sender<Order>);

/// What such a thread is told.
enum Order {
    Close(Vec<OwnedFd>),
    /// Answer once everything before is closed.
    Answer(Sender<()>),
}

impl Closer {
    fn start(name: &str) -> io::Result<Closer> {
        let (orders, told) = channel();
        let run = move || {
            // The process may keep some, and to close takes none.
            drop_capabilities();
            for order in told {
                match order {
                    Order::Close(descriptors) => drop(descriptors),
                    // The other side may have stopped waiting.
                    Order::Answer(to) => drop(to.send(())),
                }
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Closer(orders))
    }

    fn close(&self, descriptors: Vec<OwnedFd>) {
        // The thread lives as long as this sender, so this does not fail.
        let _ = self.0.send(Order::Close(descriptors));
    }

    /// Waits until the thread has closed everything, at most until a time. Returns `true` if it has.
    fn finish(&self, until: Instant) -> bool {
        let (to, answer) = channel();
        let left = until.saturating_duration_since(Instant::now());
        self.0.send(Order::Answer(to)).is_ok() && answer.recv_timeout(left).is_ok()
    }
}

impl Held {
    /// Holds at most `limit` descriptors.
    pub(super) fn new(limit: usize) -> Held {
        Held {
            all: BTreeMap::new(),
            count: 0,
            limit,
            closer: None,
            device_closer: None,
            is_awaited: false,
        }
    }

    /// Starts the threads that close objects. A process calls this once it has given up its
    /// privileges: each thread has its own.
    ///
    /// # Errors
    /// Fails if no thread is available.
    pub(super) fn start_closers(&mut self) -> io::Result<()> {
        self.closer = Some(Closer::start("closer")?);
        self.device_closer = Some(Closer::start("device-closer")?);
        Ok(())
    }

    /// Waits until both threads have nothing to close, at most for this long. Returns `true` if they
    /// have nothing.
    pub(super) fn finish_closing(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        self.closer.iter().chain(&self.device_closer).all(|closer| closer.finish(until))
    }

    /// Returns `true` if there is room for another descriptor.
    pub(super) fn has_room(&self) -> bool {
        self.count < self.limit
    }

    /// Holds a descriptor under a name, and returns it. The caller has checked that there is room.
    pub(super) fn put(&mut self, name: String, descriptor: OwnedFd) -> Option<BorrowedFd<'_>> {
        self.count += 1;
        let all = self.all.entry(name).or_default();
        all.push(descriptor);
        all.last().map(AsFd::as_fd)
    }

    /// Closes everything under a name. An application can prolong the close of an object that it
    /// reaches, for example by record locks, so another thread closes these. A further one closes most
    /// objects of devices, since the keeper must hear of the server's end meanwhile.
    pub(super) fn remove(&mut self, name: &str) {
        let Some(removed) = self.all.remove(name) else { return };
        self.count -= removed.len();
        if name.starts_with(PORT) {
            return;
        }
        if name.starts_with(SOCKET) {
            // Of another kind, such as a TCP socket that lingers, only from a server that breaks the rules.
            let others: Vec<_> = removed.into_iter().filter(|one| !is_of_device(one)).collect();
            self.is_awaited |= !others.is_empty();
            self.close(others);
        } else if name.starts_with(OF_DEVICE) {
            if let Some(closer) = &self.device_closer {
                closer.close(removed);
            }
        } else {
            self.close(removed);
        }
    }

    /// Closes the descriptor by which a server waits for the close of the objects that it removed before.
    pub(super) fn end_barrier(&mut self, barrier: Vec<OwnedFd>) {
        if std::mem::take(&mut self.is_awaited) {
            self.close(barrier);
        }
    }

    /// Has the other thread close descriptors. Before [`Held::start_closers`], closes them itself.
    pub(super) fn close(&self, descriptors: Vec<OwnedFd>) {
        if let Some(closer) = &self.closer {
            closer.close(descriptors);
        }
    }

    /// Returns `true` if it holds nothing but the keeper's own objects.
    pub(super) fn has_none_of_servers(&self) -> bool {
        self.all.keys().all(|name| name.starts_with(OWN))
    }

    /// Closes everything but the keeper's own objects.
    pub(super) fn remove_of_servers(&mut self) {
        let names: Vec<_> =
            self.all.keys().filter(|name| !name.starts_with(OWN)).cloned().collect();
        names.iter().for_each(|name| self.remove(name));
    }

    /// Empties the store. Returns the descriptors with their names, and closes the keeper's own, except
    /// that of the interface.
    pub(super) fn drain(&mut self) -> Vec<(String, OwnedFd)> {
        let all = std::mem::take(&mut self.all);
        self.count = 0;
        let left = all.into_iter().filter(|(name, _)| !name.starts_with(OWN) || name == INTERFACE);
        left.flat_map(|(name, objects)| objects.into_iter().map(move |one| (name.clone(), one)))
            .collect()
    }

    /// Returns the object that the last server's device left under a name.
    pub(super) fn last_of_device(&self, wanted: &str) -> Option<BorrowedFd<'_>> {
        let found = self.all().filter_map(|(name, object)| {
            let (name, server) = parse(name)?;
            (name == wanted).then_some((server, object))
        });
        found.max_by_key(|(server, _)| *server).map(|(_, object)| object)
    }

    /// Returns all descriptors with their names, borrowed.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        let each = |(name, all)| <&Vec<OwnedFd>>::into_iter(all).map(move |one| (name, one));
        self.all.iter().flat_map(each).map(|(name, one): (&String, _)| (name.as_str(), one.as_fd()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn names_are_counted_and_closed() {
        let mut held = Held::new(2);
        held.start_closers().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let copy = writer.try_clone().unwrap();
        held.put("session-1".into(), writer.into());
        held.put("device-a".into(), copy.into());
        assert!(!held.has_room());
        let names: Vec<_> = held.all().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(names, ["device-a", "session-1"]);
        held.remove("none");
        assert!(!held.has_room());
        held.remove("device-a");
        held.remove("session-1");
        assert!(held.has_room() && held.count == 0);
        // Waits until the other thread has closed the last copy.
        assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
        assert!(held.finish_closing(Duration::from_secs(60)));
    }

    /// The last close of a socket with unsent data waits for its linger time.
    #[test]
    fn a_close_under_way_is_seen() {
        use rustix::net::sockopt::set_socket_linger;
        let mut held = Held::new(1);
        held.start_closers().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = listener.accept().unwrap().0;
        sender.set_nonblocking(true).unwrap();
        while io::Write::write(&mut sender, &[0; 1 << 16]).is_ok() {}
        sender.set_nonblocking(false).unwrap();
        set_socket_linger(&sender, Some(Duration::from_secs(600))).unwrap();
        held.close(vec![sender.into()]);
        assert!(!held.finish_closing(Duration::from_millis(50)));
        // A reset ends the wait.
        set_socket_linger(&receiver, Some(Duration::ZERO)).unwrap();
        drop(receiver);
        assert!(held.finish_closing(Duration::from_secs(60)));
    }
}
