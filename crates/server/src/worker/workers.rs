//! All workers, by user.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::closes::Closes;
use super::link::{Link, Packet, Report};
use super::owner::Owner;
use super::spawner::{Spawner, pair};
use super::wire::{MAX_PACKET_BYTES, command};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use towpath_device::close_early;

/// Idle workers that the server keeps for users that return.
const IDLE: usize = 16;
/// Hung workers of users that the server waits for. The server gives up further hung workers.
const MAX_HUNG: usize = 64;
/// Hung workers that close connections unread or refuse them.
const MAX_HUNG_STRANGERS: usize = 4;
/// The longest time from one look at the workers to the next one, while a worker has a command.
const LOOK: Duration = Duration::from_secs(1);
/// The time that workers have at the server's end to execute their commands.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct One {
    link: Link,
    owner: Owner,
    /// The engine writes this eventfd to make the worker notify applications.
    notified: Arc<OwnedFd>,
    /// Connections and sessions of the worker's user.
    uses: usize,
    is_hung: bool,
    watches_room: bool,
}

/// All workers.
pub(crate) struct Workers {
    spawner: Spawner,
    /// The engines' epoll sets, into which workers enter sessions.
    engines: Vec<OwnedFd>,
    /// The control thread's own epoll set.
    epoll: Arc<OwnedFd>,
    all: BTreeMap<u64, One>,
    serving: HashMap<Owner, u64>,
    idle: VecDeque<u64>,
    next: u64,
    /// Commands to prepare memory that did not reach a worker: the connections, and the kinds.
    failed: Vec<(u64, u32)>,
    closes: Closes,
    buffer: Box<[u8; MAX_PACKET_BYTES]>,
    /// The time of the last look for workers that hang.
    looked: Instant,
}

impl Workers {
    /// Starts the threads that close descriptors.
    ///
    /// # Errors
    /// Fails if no thread is available.
    pub(crate) fn new(
        spawner: Spawner,
        engines: Vec<OwnedFd>,
        epoll: Arc<OwnedFd>,
    ) -> io::Result<Workers> {
        Ok(Workers {
            spawner,
            engines,
            epoll,
            all: BTreeMap::new(),
            serving: HashMap::new(),
            idle: VecDeque::new(),
            next: 0,
            failed: Vec::new(),
            closes: Closes::start()?,
            buffer: Box::new([0; MAX_PACKET_BYTES]),
            looked: Instant::now(),
        })
    }

    /// Closes descriptors in the thread for that.
    pub(crate) fn close(&self, descriptors: Vec<OwnedFd>) {
        self.closes.own().close(descriptors);
    }

    /// Drops a value in the thread that closes descriptors: memory whose unmapping takes long.
    pub(crate) fn drop_later(&self, value: impl Send + 'static) {
        self.closes.own().drop_later(value);
    }

    /// Returns the epoll set of a lane's engine.
    pub(crate) fn engine(&self, lane: usize) -> Option<&OwnedFd> {
        self.engines.get(lane)
    }

    /// Returns the worker of an owner, and makes a worker if there is none.
    ///
    /// # Errors
    /// Fails if descriptors are not available.
    pub(crate) fn of(&mut self, owner: Owner) -> io::Result<u64> {
        if let Some(id) = self.serving.get(&owner) {
            return Ok(*id);
        }
        let (ours, theirs) = pair()?;
        // The workers of a killed server end at once, and their applications learn of it.
        let ours = close_early(ours);
        let notified = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let id = self.next;
        epoll::add(&self.epoll, &ours, epoll::EventData::new_u64(id), epoll::EventFlags::IN)?;
        self.spawner.spawn(theirs.as_fd(), &self.engines, notified.as_fd())?;
        self.next += 1;
        let (link, uses) = (Link::new(ours, self.closes.of(owner)), 0);
        let one = One { link, owner, notified, uses, is_hung: false, watches_room: false };
        self.all.insert(id, one);
        self.serving.insert(owner, id);
        Ok(id)
    }

    /// Returns the owner whose worker refuses a user's connection: the user if it has a worker,
    /// otherwise all users that may not attach.
    pub(crate) fn to_turn_away(&self, owner: Owner) -> Owner {
        if self.serving.contains_key(&owner) { owner } else { Owner::Refused }
    }

    /// Returns `true` if so many connections of a worker wait that it should get no more: its user connects again and
    /// again, and prolongs each end.
    pub(crate) fn is_flooded(&self, id: u64) -> bool {
        let Some(one) = self.all.get(&id) else { return false };
        self.closes.are_flooded(one.owner, one.link.waiting(), || self.waiting())
    }

    /// Returns `true` if the server still closes so many connections of a user that it should admit no more.
    pub(crate) fn has_too_many_closes(&self, owner: Owner) -> bool {
        self.closes.are_too_many(owner, || self.waiting())
    }

    /// Returns the commands of all workers that wait.
    fn waiting(&self) -> usize {
        self.all.values().map(|one| one.link.waiting()).sum()
    }

    /// Has a worker that does nothing else close connections unread. The application's waiters on a connection prolong its
    /// close, and before Linux 6.16 also descriptors that it sent, by hours.
    pub(crate) fn close_unread(&mut self, sockets: Vec<OwnedFd>) {
        self.closes.count_unread(sockets.len());
        self.close_by(Owner::Unread, sockets, 0);
    }

    /// Returns the number of connections that were closed unread, and of descriptors that threads close.
    pub(crate) fn closed(&self) -> (u64, u64) {
        self.closes.counts()
    }

    /// Returns `true` if so many connections wait to be closed unread that the server should accept no more.
    pub(crate) fn is_behind(&self) -> bool {
        let unread = self.serving.get(&Owner::Unread).and_then(|id| self.all.get(id));
        self.closes.are_behind(unread.map_or(0, |one| one.link.waiting()))
    }

    /// Returns `true` if the server has to wait before it can make a worker for an owner.
    pub(crate) fn must_wait_for(&self, owner: Owner) -> bool {
        !self.serving.contains_key(&owner) && !self.spawner.has_room()
    }

    /// Returns the owner of a worker.
    pub(crate) fn owner(&self, id: u64) -> Option<Owner> {
        self.all.get(&id).map(|one| one.owner)
    }

    /// Returns the eventfd by which the engine calls a worker.
    pub(crate) fn notified(&self, id: u64) -> Option<Arc<OwnedFd>> {
        self.all.get(&id).map(|one| one.notified.clone())
    }

    /// Returns `true` if a worker of this user hangs.
    pub(crate) fn has_hung(&self, owner: Owner) -> bool {
        self.all.values().any(|one| one.is_hung && one.owner == owner)
    }

    /// Gives a command to a worker. If that worker is gone or lost, another worker closes the
    /// command's descriptors.
    pub(crate) fn tell(&mut self, id: u64, owner: Owner, packet: Packet) {
        let id = match self.all.get(&id) {
            Some(one) if !one.is_hung => id,
            _ => return self.lose(owner, packet),
        };
        self.push(id, packet);
    }

    /// Has a worker free the memory of files, and close them. Applications of a user can reach them.
    pub(crate) fn dispose(&mut self, owner: Owner, descriptors: Vec<OwnedFd>) {
        self.close_by(owner, descriptors, command::WIPE);
    }

    /// Has a worker close descriptors that applications of a user can reach. `flags`: those of [`command::DISPOSE`].
    pub(crate) fn close_by(&mut self, owner: Owner, descriptors: Vec<OwnedFd>, flags: u64) {
        if descriptors.is_empty() {
            return;
        }
        let Ok(id) = self.of(owner) else {
            // Without a worker, a thread closes them.
            return self.closes.close_without_worker(owner, descriptors);
        };
        self.push(id, Packet::new(command::DISPOSE, 0, flags).with(descriptors));
    }

    /// Has a worker free the memory of files, and close them. The worker has finished once it
    /// [is idle](Workers::is_idle) or gone.
    pub(crate) fn wipe(&mut self, id: u64, files: Vec<OwnedFd>) {
        self.push(id, Packet::new(command::DISPOSE, 0, command::WIPE).with(files));
    }

    /// Returns `true` if a worker was declared hung.
    pub(crate) fn is_hung(&self, id: u64) -> bool {
        self.all.get(&id).is_some_and(|one| one.is_hung)
    }

    /// Returns `true` if a worker has executed all of its commands, or is gone.
    pub(crate) fn is_idle(&self, id: u64) -> bool {
        self.all.get(&id).is_none_or(|one| one.link.is_idle())
    }

    fn push(&mut self, id: u64, packet: Packet) {
        let Some(one) = self.all.get_mut(&id) else { return };
        for packet in packet.split() {
            one.link.push(packet);
        }
        self.watch_room(id);
        self.rest(id);
    }

    /// Gives up a packet that its worker does not get. Another worker closes its descriptors.
    fn lose(&mut self, owner: Owner, packet: Packet) {
        // The connection of another command has ended with its worker, and the command has left no
        // account.
        if packet.head.kind == command::PREPARE_OLDER {
            self.failed.push((packet.head.token, packet.head.kind));
        }
        if let Owner::Pair(_) = owner {
            // `apertures::disposals` still has the file, and tries again.
            return self.close(packet.descriptors);
        }
        // Only what was to be freed is freed: the session may still have its memories.
        let wipes = packet.head.kind == command::DISPOSE;
        let flags = if wipes { packet.head.value & command::WIPE } else { 0 };
        self.close_by(owner, packet.descriptors, flags);
    }

    /// Returns the connections whose packets the kernel refused or whose worker ended or hung before
    /// it got a command to prepare memory, and the kinds of these commands.
    pub(crate) fn take_failed(&mut self) -> Vec<(u64, u32)> {
        let mut failed = std::mem::take(&mut self.failed);
        failed.extend(self.all.values_mut().flat_map(|one| one.link.take_failed()));
        failed
    }

    /// Sends packets that had no room before.
    pub(crate) fn flush(&mut self, id: u64) {
        if let Some(one) = self.all.get_mut(&id) {
            one.link.flush();
            self.watch_room(id);
        }
    }

    fn watch_room(&mut self, id: u64) {
        let Some(one) = self.all.get_mut(&id) else { return };
        let wants = !one.is_hung && !one.link.flush();
        if wants != one.watches_room {
            one.watches_room = wants;
            let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
            let flags = if wants { both } else { epoll::EventFlags::IN };
            let _ = epoll::modify(&self.epoll, one.link.fd(), epoll::EventData::new_u64(id), flags);
        }
    }

    /// Receives one report of a worker.
    pub(crate) fn receive(&mut self, id: u64) -> Option<Report> {
        let one = self.all.get_mut(&id)?;
        let report = one.link.receive(&mut self.buffer);
        self.rest(id);
        report
    }

    /// Counts a connection or session of the worker's user that begins or ends.
    pub(crate) fn count(&mut self, id: u64, comes: bool) {
        if let Some(one) = self.all.get_mut(&id) {
            one.uses = if comes { one.uses + 1 } else { one.uses.saturating_sub(1) };
            self.rest(id);
        }
    }

    /// Keeps a worker whose user has gone, up to the limit of idle workers.
    fn rest(&mut self, id: u64) {
        let Some(one) = self.all.get(&id) else { return };
        let parks = one.uses == 0 && one.link.is_idle() && !one.is_hung;
        let at = self.idle.iter().position(|other| *other == id);
        match (parks, at) {
            (true, None) => self.idle.push_back(id),
            (false, Some(at)) => drop(self.idle.remove(at)),
            _ => {}
        }
        if self.idle.len() > IDLE
            && let Some(oldest) = self.idle.pop_front()
        {
            self.remove(oldest);
        }
    }

    /// Returns the time of the next look for workers that hang; `None` while none has a command.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let serving = self.all.values().filter(|one| !one.is_hung);
        let deadline = serving.filter_map(|one| one.link.deadline()).min()?;
        Some(deadline.min(self.looked + LOOK))
    }

    /// Excuses the workers for a time in which this thread did not run either: the machine or the container was stopped.
    fn excuse_stop(&mut self) {
        let gap = self.looked.elapsed();
        self.looked = Instant::now();
        if gap > 2 * LOOK {
            self.all.values_mut().for_each(|one| one.link.excuse(gap));
        }
    }

    /// Declares a late worker hung, if a worker is late. The server expects nothing more of a hung worker.
    pub(crate) fn declare_one_hung(&mut self) -> Option<u64> {
        self.excuse_stop();
        let now = Instant::now();
        // A worker with unread reports has made progress.
        let hangs = |one: &One| {
            let is_late = one.link.deadline().is_some_and(|at| at <= now);
            is_late && !one.is_hung && !one.link.has_report()
        };
        let (id, one) = self.all.iter_mut().find(|(_, one)| hangs(one))?;
        let id = *id;
        one.is_hung = true;
        one.link.say_no_more();
        let (owner, unsent) = (one.owner, one.link.unsent());
        self.serving.remove(&owner);
        for packet in unsent {
            self.lose(owner, packet);
        }
        let is_strangers = |owner| matches!(owner, Owner::Refused | Owner::Unread);
        let most = if is_strangers(owner) { MAX_HUNG_STRANGERS } else { MAX_HUNG };
        // Those of pairs of users have limits: `apertures::disposals`.
        let counts = |one: &One| {
            let is_alike = is_strangers(one.owner) == is_strangers(owner);
            one.is_hung && is_alike && !matches!(one.owner, Owner::Pair(_))
        };
        if self.all.values().filter(|one| counts(one)).count() > most {
            let oldest = self.all.iter().find(|(_, one)| counts(one)).map(|(id, _)| *id);
            self.remove(oldest.unwrap_or(id));
        }
        Some(id)
    }

    /// Removes a worker, which ends when it notices.
    pub(crate) fn remove(&mut self, id: u64) {
        let Some(mut one) = self.all.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, one.link.fd());
        if self.serving.get(&one.owner) == Some(&id) {
            self.serving.remove(&one.owner);
        }
        self.idle.retain(|other| *other != id);
        self.failed.append(&mut one.link.take_failed());
        for packet in one.link.unsent() {
            self.lose(one.owner, packet);
        }
    }

    /// Makes all workers execute their commands and end, without waiting for hung workers.
    /// `leaves`: another server follows at once, so this waits for none. The workers end by
    /// themselves.
    pub(crate) fn end(&mut self, leaves: bool) {
        self.end_processes(leaves);
        // The close of the descriptors of unsent commands may take long.
        let unsent = self.all.values_mut().flat_map(|one| one.link.unsent());
        let unsent = unsent.flat_map(|packet| packet.descriptors).collect();
        self.closes.of(Owner::Refused).close(unsent);
    }

    fn end_processes(&mut self, leaves: bool) {
        let until = Instant::now() + if leaves { Duration::ZERO } else { SHUTDOWN_TIMEOUT };
        if leaves {
            self.spawner.leave();
        }
        for one in self.all.values_mut() {
            if one.link.flush() {
                one.link.say_no_more();
            }
        }
        while !self.all.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or_default();
            let fds: Vec<BorrowedFd<'_>> = self.all.values().map(|one| one.link.fd()).collect();
            let mut polled: Vec<_> =
                fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            if !matches!(poll(&mut polled, Some(&timeout)), Ok(1..)) {
                return;
            }
            drop(polled);
            let (buffer, unsent) = (&mut self.buffer, self.closes.of(Owner::Refused));
            self.all.retain(|_, one| {
                let gone = loop {
                    match one.link.receive(buffer) {
                        Some(Report::Exited) => break true,
                        Some(_) => {}
                        None => break false,
                    }
                };
                if gone {
                    let packets = one.link.unsent().into_iter();
                    packets.for_each(|packet| unsent.close(packet.descriptors));
                } else if one.link.flush() {
                    one.link.say_no_more();
                }
                !gone
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use towpath_engine::account::Account;

    use super::*;
    use crate::worker::link::PATIENCE;
    use crate::worker::pair::Pair;

    const USER: Owner = Owner::User(7);

    fn user(uid: u32) -> Account {
        Account { uid, group: None, is_limited: true }
    }

    /// Fills the channel of a worker with commands to prepare memory. Returns the worker, and the
    /// tokens of the commands that had no room.
    fn crowd(workers: &mut Workers) -> (u64, Vec<(u64, u32)>) {
        let id = workers.of(USER).unwrap();
        let waiting = |workers: &Workers| workers.all[&id].link.waiting() as u64;
        let mut token = 0;
        while waiting(workers) < 3 {
            workers.tell(id, USER, Packet::new(command::PREPARE_OLDER, token, 0));
            token += 1;
        }
        assert!(token > 3, "there was room for some");
        (id, (token - 3..token).map(|token| (token, command::PREPARE_OLDER)).collect())
    }

    fn without_process() -> (Workers, OwnedFd) {
        let (spawner, kept) = Spawner::without_process().unwrap();
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        (Workers::new(spawner, Vec::new(), epoll).unwrap(), kept)
    }

    impl Workers {
        fn hang(&mut self, owner: Owner) -> u64 {
            let id = self.of(owner).unwrap();
            self.wipe(id, vec![std::io::pipe().unwrap().0.into()]);
            self.all.get_mut(&id).unwrap().link.delay();
            assert_eq!(self.declare_one_hung(), Some(id));
            id
        }
    }

    /// After a stop of the machine, each worker has its time again.
    #[test]
    fn a_worker_does_not_hang_while_the_server_is_stopped() {
        let (mut workers, _kept) = without_process();
        let id = workers.of(USER).unwrap();
        assert!(workers.next_deadline().is_none());
        workers.wipe(id, vec![std::io::pipe().unwrap().0.into()]);
        assert!(workers.next_deadline().is_some_and(|at| at <= Instant::now() + LOOK));
        workers.all.get_mut(&id).unwrap().link.delay();
        workers.looked -= PATIENCE;
        assert_eq!(workers.declare_one_hung(), None);
        // A gap before the command counts for nothing.
        workers.looked -= 10 * PATIENCE;
        assert_eq!(workers.declare_one_hung(), None);
        workers.all.get_mut(&id).unwrap().link.delay();
        assert_eq!(workers.declare_one_hung(), Some(id));
    }

    /// The server gives up the oldest of too many hung workers of users, and none because of those of two users.
    #[test]
    fn hung_workers_of_pairs_displace_none() {
        let (mut workers, _kept) = without_process();
        workers.hang(USER);
        let pairs: Vec<u64> = (0..MAX_HUNG as u32 + 1)
            .map(|uid| workers.hang(Owner::Pair(Pair::of(user(7), user(100 + uid)))))
            .collect();
        assert!(workers.has_hung(USER) && pairs.iter().all(|id| workers.is_hung(*id)));
        for uid in 0..MAX_HUNG as u32 {
            workers.hang(Owner::User(100 + uid));
        }
        assert!(!workers.has_hung(USER) && pairs.iter().all(|id| workers.is_hung(*id)));
    }

    #[test]
    fn without_a_worker_a_thread_closes() {
        let (mut workers, kept) = without_process();
        drop(kept);
        for owner in [Owner::Unread, USER] {
            let (mut reader, writer) = std::io::pipe().unwrap();
            match owner {
                Owner::Unread => workers.close_unread(vec![writer.into()]),
                _ => workers.close_by(owner, vec![writer.into()], 0),
            }
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
        assert_eq!(workers.closed(), (1, 2));
    }

    /// No other worker wipes a file that a worker of two users did not get.
    #[test]
    fn a_file_of_a_lost_worker_of_two_users_is_closed() {
        let (mut workers, _kept) = without_process();
        let id = workers.of(Owner::Pair(Pair::of(user(7), user(8)))).unwrap();
        let mut readers = Vec::new();
        while workers.all[&id].link.waiting() < 3 {
            let (reader, writer) = std::io::pipe().unwrap();
            readers.push(reader);
            workers.wipe(id, vec![writer.into()]);
        }
        workers.remove(id);
        assert!(workers.all.is_empty());
        for mut reader in readers.split_off(readers.len() - 3) {
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn commands_that_a_lost_worker_did_not_get_are_reported() {
        for is_hung in [false, true] {
            let (mut workers, _kept) = without_process();
            let (id, unsent) = crowd(&mut workers);
            assert_eq!(workers.take_failed(), []);
            if is_hung {
                workers.all.get_mut(&id).unwrap().link.delay();
                assert_eq!(workers.declare_one_hung(), Some(id));
            } else {
                workers.remove(id);
            }
            assert_eq!(workers.take_failed(), unsent, "{is_hung}");
            assert_eq!(workers.take_failed(), []);
            // The worker gets no later command, either.
            workers.tell(id, USER, Packet::new(command::PREPARE_OLDER, 9999, 0));
            workers.tell(id, USER, Packet::new(command::CLOSE_CONNECTION, 9999, 0));
            assert_eq!(workers.take_failed(), [(9999, command::PREPARE_OLDER)]);
        }
    }
}
