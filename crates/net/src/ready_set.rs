//! The set of registrations behind a poller, and the list of registrations that may be ready.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use towpath_stack::SocketId;

use crate::lock::lock;
use crate::readiness::{Interest, Ready, Trigger};
use crate::sync::{AtomicBool, AtomicU8, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};

/// A network, as a set sees it.
pub(crate) trait Sockets: Send + Sync {
    /// Returns the conditions that hold for a socket; [`Ready::DEAD`] if the link is dead or the socket is gone.
    fn readiness(&self, id: SocketId) -> Ready;

    /// Returns `true` if no thread of the library drives the network.
    fn is_driven_by_program(&self) -> bool;

    /// Does the work that is due, without waiting.
    fn turn(&self) -> io::Result<()>;

    /// Returns a descriptor that is readable while there is work for [`Sockets::turn`].
    fn work_fd(&self) -> io::Result<BorrowedFd<'_>>;
}

/// A socket is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The token with which the socket was registered.
    pub token: u64,
    /// The conditions that hold for the socket now and that the registration's interest includes.
    pub ready: Ready,
}

/// The events that one [`Poller::wait`](crate::Poller::wait) returned, at most the list's capacity.
pub struct Events {
    events: Vec<Event>,
    capacity: usize,
    /// The members that a wait checks; empty between waits. Kept, so that a wait allocates nothing.
    asked: Vec<(Arc<Member>, Ready)>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.events).finish()
    }
}

impl Events {
    /// Creates a list for at most `capacity` events, at least 1, of one wait.
    ///
    /// ```
    /// # use towpath_net::{Events, Interest, Poller, Trigger, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// # let poller = Poller::new()?;
    /// # let mut events = Events::default();
    /// let mut events = Events::with_capacity(1);
    /// let other = UdpSocket::bind(&host, "10.0.0.1:8")?;
    /// poller.register(&socket, 1, Interest::WRITABLE, Trigger::Level)?;
    /// poller.register(&other, 2, Interest::WRITABLE, Trigger::Level)?;
    /// // The other socket's event comes with the next wait.
    /// assert_eq!(poller.wait(&mut events, None)?, 1);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Events {
        let capacity = capacity.max(1);
        Events { events: Vec::with_capacity(capacity), capacity, asked: Vec::new() }
    }

    /// Returns the events, oldest first.
    ///
    /// ```
    /// # use towpath_net::{Events, Interest, Poller, Trigger, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// # let poller = Poller::new()?;
    /// # let mut events = Events::default();
    /// poller.register(&socket, 1, Interest::WRITABLE, Trigger::Level)?;
    /// poller.wait(&mut events, None)?;
    /// for event in events.iter() {
    ///     println!("socket {}: {:?}", event.token, event.ready);
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    pub fn iter(&self) -> std::slice::Iter<'_, Event> {
        self.events.iter()
    }

    /// Returns the number of events.
    ///
    /// ```
    /// # use towpath_net::{Events, Interest, Poller, Trigger, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// # let poller = Poller::new()?;
    /// # let mut events = Events::default();
    /// poller.register(&socket, 1, Interest::WRITABLE, Trigger::Level)?;
    /// assert_eq!(poller.wait(&mut events, None)?, events.len());
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns `true` if there are none.
    ///
    /// ```
    /// # use towpath_net::{Events, Interest, Poller, Trigger, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
    /// # let poller = Poller::new()?;
    /// # let mut events = Events::default();
    /// use std::time::Duration;
    ///
    /// poller.register(&socket, 1, Interest::READABLE, Trigger::Level)?;
    /// poller.wait(&mut events, Some(Duration::ZERO))?;
    /// assert!(events.is_empty());
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

impl Default for Events {
    /// Creates a list for 1 024 events.
    fn default() -> Events {
        Events::with_capacity(1024)
    }
}

impl<'a> IntoIterator for &'a Events {
    type Item = &'a Event;
    type IntoIter = std::slice::Iter<'a, Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A socket's registration with a poller.
pub(crate) struct Member {
    set: Arc<Set>,
    network: Arc<dyn Sockets>,
    socket: SocketId,
    token: AtomicU64,
    /// The bits of the interest; 0 while the member is to have no events.
    interest: AtomicU8,
    trigger: Mutex<Trigger>,
    /// `true` while the member is in the list. Changes under the set's lock only.
    queued: AtomicBool,
}

impl Member {
    /// Creates a member of a set, which has events once [`Member::ready`] reports one.
    pub(crate) fn new(
        set: &Arc<Set>,
        (network, socket): (Arc<dyn Sockets>, SocketId),
        (token, interest, trigger): (u64, Interest, Trigger),
    ) -> Arc<Member> {
        if set.lock().enter(&network) {
            // The threads that wait have to drive it.
            set.wake_all();
        }
        Arc::new(Member {
            set: set.clone(),
            network,
            socket,
            token: AtomicU64::new(token),
            interest: AtomicU8::new(interest.bits()),
            trigger: Mutex::new(trigger),
            queued: AtomicBool::new(false),
        })
    }

    /// Reports what the socket is ready for.
    pub(crate) fn ready(self: &Arc<Member>, ready: Ready) {
        if self.wants(ready) {
            self.set.lock().add(self, &self.set);
        }
    }

    /// Returns `true` if the member has an event for what the socket is ready for.
    fn wants(&self, ready: Ready) -> bool {
        match self.interest.load(Ordering::Relaxed) {
            0 => false,
            bits => !ready.of_interest(Interest::from_bits(bits)).is_empty(),
        }
    }

    pub(crate) fn is_of(&self, set: &Arc<Set>) -> bool {
        Arc::ptr_eq(&self.set, set)
    }

    /// Changes what the member has events for.
    pub(crate) fn change(&self, token: u64, interest: Interest, trigger: Trigger) {
        let _list = self.set.lock();
        self.token.store(token, Ordering::Relaxed);
        *lock(&self.trigger) = trigger;
        self.interest.store(interest.bits(), Ordering::Relaxed);
    }

    /// Ends the membership: no event of the member follows.
    pub(crate) fn end(self: &Arc<Member>) {
        let mut list = self.set.lock();
        self.interest.store(0, Ordering::Relaxed);
        if self.queued.swap(false, Ordering::Relaxed) {
            list.ready.retain(|other| !Arc::ptr_eq(other, self));
        }
        list.leave(&self.network);
    }
}

/// The members of a set that may be ready.
#[derive(Default)]
struct List {
    ready: VecDeque<Arc<Member>>,
    members: usize,
    /// The networks that threads of the application drive, each with the number of its members.
    driven: Vec<(Arc<dyn Sockets>, usize)>,
    /// `true` if the descriptor is readable.
    signalled: bool,
    /// Threads that wait, none of which uses the descriptor.
    waiting: usize,
    /// `true` if a call of [`Poller::wake`] has ended no wait yet.
    woken: bool,
}

impl List {
    /// Counts a new member. Returns `true` if it is the first one of a network that the program drives.
    fn enter(&mut self, network: &Arc<dyn Sockets>) -> bool {
        self.members += 1;
        if !network.is_driven_by_program() {
            return false;
        }
        match self.driven.iter_mut().find(|(other, _)| Arc::ptr_eq(other, network)) {
            Some((_, members)) => {
                *members += 1;
                false
            }
            None => {
                self.driven.push((network.clone(), 1));
                true
            }
        }
    }

    /// Counts a member that leaves.
    fn leave(&mut self, network: &Arc<dyn Sockets>) {
        self.members -= 1;
        let found = self.driven.iter().position(|(other, _)| Arc::ptr_eq(other, network));
        if let Some(at) = found {
            self.driven[at].1 -= 1;
            if self.driven[at].1 == 0 {
                self.driven.swap_remove(at);
            }
        }
    }

    /// Adds a member unless it is in the list, and wakes a waiting thread.
    fn add(&mut self, member: &Arc<Member>, set: &Set) {
        if !member.queued.swap(true, Ordering::Relaxed) {
            self.ready.push_back(member.clone());
        }
        set.signal(self);
    }
}

/// What the handles of a poller share.
pub(crate) struct Set {
    fd: OwnedFd,
    /// `true` once the program has used the descriptor. Until then, nothing makes it readable.
    fd_used: AtomicBool,
    list: Mutex<List>,
    changed: Condvar,
}

impl Set {
    fn lock(&self) -> MutexGuard<'_, List> {
        lock(&self.list)
    }

    /// Wakes a waiting thread, and makes the descriptor readable.
    fn signal(&self, list: &mut List) {
        if list.waiting > 0 {
            self.changed.notify_one();
        }
        if !list.signalled && self.fd_used.load(Ordering::Relaxed) {
            list.signalled = true;
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable if no member is in the list.
    fn settle(&self, list: &mut List) {
        if list.signalled && list.ready.is_empty() && !list.woken {
            list.signalled = false;
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}

impl Set {
    /// Creates a set without members.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub(crate) fn new() -> io::Result<Set> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Set {
            fd,
            fd_used: AtomicBool::new(false),
            list: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Waits until a member is ready, [`Set::wake`] is called, or the timeout has passed. Replaces the contents of
    /// `events`. Returns their number.
    pub(crate) fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        events.events.clear();
        let until = timeout.map(|timeout| Instant::now().checked_add(timeout));
        // A network that the application drives makes progress with each wait, also while events wait.
        let mut has_driven = false;
        loop {
            let mut list = self.lock();
            loop {
                if std::mem::take(&mut list.woken) {
                    self.settle(&mut list);
                    return Ok(0);
                }
                let must_drive = !list.driven.is_empty() && !has_driven;
                if !list.ready.is_empty() && !must_drive {
                    break;
                }
                let left = match until {
                    None | Some(None) => None,
                    Some(Some(until)) => Some(until.saturating_duration_since(Instant::now())),
                };
                if left == Some(Duration::ZERO) && !must_drive {
                    self.settle(&mut list);
                    return Ok(0);
                }
                if list.driven.is_empty() {
                    list = self.sleep(list, left);
                } else {
                    has_driven = true;
                    list = self.drive(list, left)?;
                }
            }
            self.collect(list, events);
            if !events.is_empty() {
                return Ok(events.len());
            }
        }
    }

    /// Ends a wait of one thread, now or the next one.
    pub(crate) fn wake(&self) {
        let mut list = self.lock();
        list.woken = true;
        self.signal(&mut list);
    }

    /// Ends the sleep of all threads that wait, which look at the list again.
    fn wake_all(&self) {
        let mut list = self.lock();
        self.changed.notify_all();
        self.signal(&mut list);
    }

    /// Returns the numbers of members, and of those that may be ready.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let list = self.lock();
        (list.members, list.ready.len())
    }

    fn sleep<'a>(
        &'a self,
        mut list: MutexGuard<'a, List>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, List> {
        list.waiting += 1;
        let mut list = match left {
            None => self.changed.wait(list).unwrap_or_else(PoisonError::into_inner),
            Some(left) => {
                let waited = self.changed.wait_timeout(list, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        list.waiting -= 1;
        list
    }

    /// Drives the networks that threads of the application drive. If no member is ready then, waits for a change, for
    /// further work or for `left`.
    fn drive<'a>(
        &'a self,
        list: MutexGuard<'a, List>,
        left: Option<Duration>,
    ) -> io::Result<MutexGuard<'a, List>> {
        let networks: Vec<Arc<dyn Sockets>> =
            list.driven.iter().map(|(network, _)| network.clone()).collect();
        drop(list);
        self.use_fd();
        let mut fds = vec![PollFd::new(&self.fd, PollFlags::IN)];
        for network in &networks {
            let work = network.work_fd()?;
            // A dead link has no work; its sockets have events.
            if network.turn().is_ok() {
                fds.push(PollFd::from_borrowed_fd(work, PollFlags::IN));
            }
        }
        let mut list = self.lock();
        if !list.ready.is_empty() || list.woken || left == Some(Duration::ZERO) {
            return Ok(list);
        }
        self.settle(&mut list);
        drop(list);
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(self.lock()),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the descriptor become readable with each event from now on.
    pub(crate) fn use_fd(&self) {
        if !self.fd_used.swap(true, Ordering::Relaxed) {
            let mut list = self.lock();
            if !list.ready.is_empty() || list.woken {
                self.signal(&mut list);
            }
        }
    }

    /// Asks the members in the list what they are ready for, as far as `events` has room.
    fn collect(&self, mut list: MutexGuard<'_, List>, events: &mut Events) {
        let count = list.ready.len().min(events.capacity);
        events.asked.extend(list.ready.drain(..count).map(|member| {
            member.queued.store(false, Ordering::Relaxed);
            (member, Ready::EMPTY)
        }));
        drop(list);
        for (member, ready) in &mut events.asked {
            *ready = member.network.readiness(member.socket);
        }
        let mut list = self.lock();
        for (member, ready) in &events.asked {
            let ready = *ready;
            // The member may have left the set, or changed, since this thread released the lock.
            if !member.wants(ready) {
                continue;
            }
            let interest = Interest::from_bits(member.interest.load(Ordering::Relaxed));
            let token = member.token.load(Ordering::Relaxed);
            match *lock(&member.trigger) {
                Trigger::Edge => {}
                Trigger::OneShot => member.interest.store(0, Ordering::Relaxed),
                Trigger::Level => list.add(member, self),
            }
            events.events.push(Event { token, ready: ready.of_interest(interest) });
        }
        if !list.ready.is_empty() && list.waiting > 0 {
            self.changed.notify_one();
        }
        self.settle(&mut list);
        drop(list);
        // Without the lock: this may drop the last handle of a member.
        events.asked.clear();
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
