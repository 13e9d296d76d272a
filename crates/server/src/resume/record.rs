//! The record of a session: a memory file that only servers write, and that a successor reads.
//!
//! | words | hold |
//! |---|---|
//! | 0, 1 | the layout's version; the state: 0 until the session begins |
//! | 2 to 23 | the session: number, shape, user, addresses, name |
//! | 24, 25 | the crashes of servers that served the session, and the time of the last one, in seconds of the monotonic clock |
//! | 26 | the most apertures and tripwires of the session |
//! | 32 to 543 | the user's groups, two in a word |
//! | from 544 on | [`ENDPOINT_WORDS`] words for each endpoint: state, request, settings |
//!
//! A server may be killed between any two stores. It therefore stores an endpoint's state last when
//! it opens one, and first when it closes one. For a setting, it stores the value before the bit
//! that marks the value as chosen.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use towpath_engine::clock::clock_ns;
use towpath_memory::{Mapping, SharedFile, own_words, peer_words};
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{self, Open};
use towpath_protocol::peer::Peer;
use towpath_protocol::settings::{Setting, Values};
use towpath_protocol::{OLDEST_VERSION, VERSION};
use towpath_queue::{OwnWords, PeerWords};
use zerocopy::{FromBytes, IntoBytes};

use super::addresses::RecordedAddresses;
use super::settings::SETTINGS_ROOM;
use crate::addresses::Lease;
use crate::policy::Entrance;

/// The layout of the record. A change of the record raises the number in the text.
const LAYOUT: u64 = u64::from_le_bytes(*b"Towpath2");
/// The place of the version of the protocol in the first word, beside the layout.
const VERSION_SHIFT: u32 = 32;

const STATE: usize = 1;
const NUMBER: usize = 2;
const SHAPE: usize = 3;
const USER: usize = 9;
const COUNTS: usize = 10;
const NAME: usize = 18;
const FLAGS: usize = 22;
const PID: usize = 23;
const CRASHES: usize = 24;
const CRASHED_AT: usize = 25;
/// Apertures and tripwires; 0 in a record of an older version.
const COUNTED: usize = 26;
const GROUPS: usize = 32;
const MAX_GROUPS: usize = 1024;
const ENDPOINTS: usize = GROUPS + MAX_GROUPS / 2;

/// Words of an endpoint. There is room for settings that later versions append, so later versions
/// can read this record.
const ENDPOINT_WORDS: usize = REQUEST + REQUEST_WORDS + 2 + SETTINGS_ROOM;
const REQUEST: usize = 1;
const REQUEST_WORDS: usize = size_of::<Open>() / 8;
const PRIORITY: usize = REQUEST + REQUEST_WORDS;
const CHOSEN: usize = PRIORITY + 1;
const SETTINGS: usize = CHOSEN + 1;
const _: () = assert!(Setting::ALL.len() <= SETTINGS_ROOM);

/// States of an endpoint; 0 for none.
const OPEN: u64 = 1;
const REVOKED: u64 = 2;

/// How long a crash counts against a session, in seconds.
const CRASH_SECONDS: u64 = 600;
/// No server resumes a session with this many crashes.
pub(crate) const MOST_CRASHES: u64 = 2;

/// Flags: the session shares the host's addresses; its application came by the applications' socket, or by the
/// administration socket. A record of an earlier version's server has no flag of a socket.
const SHARED: u64 = 1;
const BY_APPLICATIONS: u64 = 2;
const BY_ADMINISTRATORS: u64 = 4;
/// The session hands over to a session that replaces it.
const HANDS_OVER: u64 = 8;
/// The first bit of the slots of each queue of out-of-band messages, beside the flags.
const OOB_SHIFT: u32 = 32;

/// A session's record, as its server writes it.
#[derive(Debug)]
pub(crate) struct Record {
    words: OwnWords,
}

/// What a record says of a session.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) number: u32,
    pub(crate) shape: SessionShape,
    pub(crate) lanes: usize,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) pid: i32,
    /// The socket by which the application came.
    pub(crate) entrance: Entrance,
    pub(crate) name: String,
    pub(crate) addresses: RecordedAddresses,
    /// `true` if the session hands over to a session that replaces it.
    pub(crate) hands_over: bool,
    /// The crashes of servers that served the session, lately.
    pub(crate) crashes: u64,
    words: PeerWords,
}

/// What a record says of an endpoint.
#[derive(Debug)]
pub(crate) struct RecordedEndpoint {
    /// The request, with the port that the server chose.
    pub(crate) request: Open,
    pub(crate) revoked: bool,
    pub(crate) settings: Values,
    pub(crate) granted_priority: u64,
}

fn endpoint(number: u32) -> usize {
    ENDPOINTS + number as usize * ENDPOINT_WORDS
}

fn bytes(shape: &SessionShape) -> usize {
    endpoint(shape.endpoints) * 8
}

/// Returns the first word of a record of a session whose application speaks this version.
fn first_word(version: u16) -> u64 {
    LAYOUT ^ u64::from(version) << VERSION_SHIFT
}

/// Returns the version in the first word of a record.
///
/// # Errors
/// Fails with the reason why this server cannot read the record.
fn version_in(first: u64) -> Result<u16, String> {
    let version = u16::try_from((first ^ LAYOUT) >> VERSION_SHIFT).unwrap_or(0);
    if first != first_word(version) {
        return Err("a record of another layout: its server was of another version".to_owned());
    }
    if (OLDEST_VERSION..=VERSION).contains(&version) {
        return Ok(version);
    }
    Err(format!(
        "its application speaks version {version} of the protocol, and this server \
         {OLDEST_VERSION} to {VERSION}"
    ))
}

/// Returns the flag of the socket by which an application came.
fn flag_of(entrance: Entrance) -> u64 {
    match entrance {
        Entrance::Applications => BY_APPLICATIONS,
        Entrance::Administrators => BY_ADMINISTRATORS,
        Entrance::Earlier => 0,
    }
}

/// Returns the socket by which an application came. Both flags mean the one with fewer rights.
fn entrance_of(flags: u64) -> Entrance {
    match flags & (BY_APPLICATIONS | BY_ADMINISTRATORS) {
        0 => Entrance::Earlier,
        BY_ADMINISTRATORS => Entrance::Administrators,
        _ => Entrance::Applications,
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Record {
    /// Makes the record of a session that is about to begin, and the file for the store.
    ///
    /// # Errors
    /// Fails if there is no memory.
    pub(crate) fn create(
        number: u32,
        shape: &SessionShape,
        lanes: usize,
        peer: &Peer,
        entrance: Entrance,
        name: &str,
        lease: &Lease,
    ) -> io::Result<(Record, OwnedFd)> {
        let file = SharedFile::create("towpath-record", bytes(shape))?;
        file.seal_seals()?;
        let region = file.map_writable()?;
        region.mapping().keep_from_children()?;
        let mut words = own_words(region);
        words.store(0, first_word(shape.version()));
        words.store(NUMBER, pair(number, lanes as u32));
        let queues = shape.queues;
        for (index, value) in (SHAPE..).zip([
            shape.queue_pairs,
            shape.endpoints,
            queues.transmit(),
            queues.receive(),
            shape.transmit_pool.data_bytes(),
            shape.receive_pool.data_bytes(),
        ]) {
            words.store(index, value.into());
        }
        words.store(USER, pair(peer.uid, peer.gid));
        words.store(PID, peer.pid as u32 as u64);
        let groups = &peer.groups[..peer.groups.len().min(MAX_GROUPS)];
        words.store(COUNTS, groups.len() as u64);
        for (index, two) in (GROUPS..).zip(groups.chunks(2)) {
            words.store(index, pair(two[0], two.get(1).copied().unwrap_or(0)));
        }
        let name: [u8; 32] = message::fixed_name(name);
        for (index, eight) in (NAME..).zip(name.as_chunks::<8>().0) {
            words.store(index, u64::from_le_bytes(*eight));
        }
        let addresses = RecordedAddresses::of(lease);
        let oob = shape.oob().map_or(0, |oob| u64::from(oob.slots()));
        let flags = if addresses.shared { SHARED } else { 0 } | flag_of(entrance);
        words.store(FLAGS, flags | oob << OOB_SHIFT);
        words.store(COUNTED, pair(shape.apertures(), shape.tripwires().tripwires()));
        addresses.write(&mut words);
        Ok((Record { words }, file.into()))
    }

    /// Adopts the record of a session that this server resumes.
    ///
    /// # Errors
    /// Fails with the kernel's error if the file cannot be mapped.
    pub(crate) fn adopt(file: BorrowedFd<'_>) -> io::Result<Record> {
        let region = SharedFile::adopt(file.try_clone_to_owned()?)?.map_writable()?;
        region.mapping().keep_from_children()?;
        Ok(Record { words: own_words(region) })
    }

    /// Records the socket by which the session's application came again.
    pub(crate) fn set_entrance(&mut self, entrance: Entrance) {
        let others = self.words.get(FLAGS) & !(BY_APPLICATIONS | BY_ADMINISTRATORS);
        self.words.publish(FLAGS, others | flag_of(entrance));
    }

    /// Records that the session hands over to a session that replaces it.
    pub(crate) fn hand_over(&mut self) {
        self.words.publish(FLAGS, self.words.get(FLAGS) | HANDS_OVER);
    }

    /// Records that the session has begun: a successor can resume it from now on.
    pub(crate) fn begin(&mut self) {
        self.words.publish(STATE, 1);
    }

    /// Records that the session is over.
    pub(crate) fn end(&mut self) {
        self.words.publish(STATE, 0);
    }

    /// Records that a server crashed while it served the session. Returns how many did lately.
    pub(crate) fn crash(&mut self) -> u64 {
        let now = clock_ns() / 1_000_000_000;
        let lately = now.saturating_sub(self.words.get(CRASHED_AT)) < CRASH_SECONDS;
        let crashes = if lately { self.words.get(CRASHES) + 1 } else { 1 };
        self.words.store(CRASHED_AT, now);
        self.words.publish(CRASHES, crashes);
        crashes
    }

    /// Records an endpoint that opens. `request`: the application's, with the port that the server
    /// chose.
    pub(crate) fn open(
        &mut self,
        number: u32,
        request: &Open,
        settings: &Values,
        granted_priority: u64,
    ) {
        let at = endpoint(number);
        self.words.publish(at, 0);
        for (index, eight) in (at + REQUEST..).zip(request.as_bytes().as_chunks::<8>().0) {
            self.words.store(index, u64::from_le_bytes(*eight));
        }
        self.set(number, settings, granted_priority);
        self.words.publish(at, OPEN);
    }

    /// Records an endpoint's settings.
    pub(crate) fn set(&mut self, number: u32, settings: &Values, granted_priority: u64) {
        let at = endpoint(number);
        self.words.store(at + PRIORITY, granted_priority);
        let mut chosen = 0;
        for (index, (setting, _)) in Setting::ALL.iter().enumerate() {
            self.words.store(at + SETTINGS + index, settings.get(*setting));
            chosen |= u64::from(settings.is_chosen(*setting)) << index;
        }
        self.words.store(at + CHOSEN, chosen);
    }

    /// Records that the server closed an endpoint because the policy changed.
    pub(crate) fn revoke(&mut self, number: u32) {
        self.words.publish(endpoint(number), REVOKED);
    }

    /// Records that an endpoint is closed.
    pub(crate) fn close(&mut self, number: u32) {
        self.words.publish(endpoint(number), 0);
    }
}

impl Recorded {
    /// Reads a record that an earlier server left. Returns `None` if its session had not begun.
    ///
    /// # Errors
    /// Fails with the reason why the record cannot be used.
    pub(crate) fn read(file: BorrowedFd<'_>) -> io::Result<Option<Recorded>> {
        let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let file = SharedFile::adopt(file.try_clone_to_owned()?)?;
        if file.len() < ENDPOINTS * 8 {
            return Err(wrong(format!("a record of {} bytes", file.len())));
        }
        let mapping: Mapping = file.map_readable()?;
        mapping.keep_from_children()?;
        let words = peer_words(&std::sync::Arc::new(mapping));
        let get = |index| words.fetch(index);
        let version = version_in(get(0)).map_err(wrong)?;
        if words.observe(STATE) != 1 {
            return Ok(None);
        }
        let (number, lanes) = halves(get(NUMBER));
        let of_shape = |index| u32::try_from(get(SHAPE + index)).unwrap_or(u32::MAX);
        let [pairs, endpoints, transmit, receive, sent, received] = std::array::from_fn(of_shape);
        let shape = SessionShape::new(pairs, endpoints, transmit, receive, sent, received)
            .and_then(|shape| shape.with_oob((get(FLAGS) >> OOB_SHIFT) as u32))
            .and_then(|shape| {
                shape.with_apertures(get(COUNTED) as u32, (get(COUNTED) >> 32) as u32)
            })
            .map(|shape| shape.of_version(version))
            .and_then(|shape| shape.check_lanes(lanes as usize).map(|()| shape))
            .map_err(|error| wrong(error.to_string()))?;
        if file.len() < bytes(&shape) || number == 0 {
            return Err(wrong(format!(
                "a record of {} bytes for {endpoints} endpoints",
                file.len()
            )));
        }
        let (uid, gid) = halves(get(USER));
        let count = usize::try_from(get(COUNTS)).unwrap_or(usize::MAX);
        if count > MAX_GROUPS {
            return Err(wrong(format!("a record of {count} groups")));
        }
        let groups = (0..count).map(|index| {
            let (even, odd) = halves(get(GROUPS + index / 2));
            if index % 2 == 0 { even } else { odd }
        });
        let mut name = [0; 32];
        for (index, eight) in (NAME..).zip(name.as_chunks_mut::<8>().0) {
            *eight = get(index).to_le_bytes();
        }
        let addresses = RecordedAddresses::read(&words, get(FLAGS) & SHARED != 0);
        Ok(Some(Recorded {
            number,
            shape,
            lanes: lanes as usize,
            uid,
            gid,
            groups: groups.collect(),
            pid: get(PID) as i32,
            entrance: entrance_of(get(FLAGS)),
            name: message::shown_name(&name),
            addresses,
            hands_over: get(FLAGS) & HANDS_OVER != 0,
            crashes: get(CRASHES),
            words,
        }))
    }

    /// Returns an endpoint of the session.
    pub(crate) fn endpoint(&self, number: u32) -> Option<RecordedEndpoint> {
        if number >= self.shape.endpoints {
            return None;
        }
        let at = endpoint(number);
        let state = self.words.observe(at);
        if !matches!(state, OPEN | REVOKED) {
            return None;
        }
        let mut request = [0; size_of::<Open>()];
        for (index, eight) in (at + REQUEST..).zip(request.as_chunks_mut::<8>().0) {
            *eight = self.words.fetch(index).to_le_bytes();
        }
        let chosen = self.words.fetch(at + CHOSEN);
        let mut settings = Values::default();
        for (index, (setting, _)) in Setting::ALL.iter().enumerate() {
            if chosen >> index & 1 != 0 {
                // A value that is out of range leaves the default one.
                let _ = settings.set(*setting, self.words.fetch(at + SETTINGS + index));
            }
        }
        Some(RecordedEndpoint {
            request: Open::read_from_bytes(&request).ok()?,
            revoked: state == REVOKED,
            settings,
            granted_priority: self.words.fetch(at + PRIORITY),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;
    use crate::addresses::{Holder, Pool, Subnet, Subnets};
    use crate::policy::Terms;

    fn shape() -> SessionShape {
        SessionShape::new(3, 5, 16, 32, 2048, 1024).unwrap()
    }

    fn lease() -> Lease {
        let ipv4 = Some(Subnet::new("10.9.0.1".parse().unwrap(), 24));
        let ipv6 = Some(Subnet::new("fd09::1".parse().unwrap(), 64));
        let subnets = Subnets { ipv4, ipv6 };
        let mut pool = Pool::new(subnets, [2, 0, 0, 0, 0, 1]).unwrap();
        let holder = Holder { uid: 7, name: "name".into() };
        pool.lease(&holder, None, &Terms::administrator()).unwrap()
    }

    fn peer(groups: usize) -> Peer {
        Peer { uid: 7, gid: 8, groups: (0..groups as u32).collect(), pid: 9, process: None }
    }

    fn create(groups: usize) -> (Record, OwnedFd) {
        let entrance = Entrance::Administrators;
        Record::create(6, &shape(), 2, &peer(groups), entrance, "näme", &lease()).unwrap()
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for groups in [0, 1, 2, 1024] {
            let (mut record, file) = create(groups);
            assert!(Recorded::read(file.as_fd()).unwrap().is_none(), "the session has not begun");
            record.begin();
            let mut settings = Values::default();
            settings.set(Setting::Weight, 5).unwrap();
            let request =
                Open { given: 48, protocol: 17, port: 80, sequence: 3, ..Open::default() };
            record.open(4, &request, &settings, 2);
            record.open(1, &request, &settings, 2);
            record.close(1);
            let read = Recorded::read(file.as_fd()).unwrap().unwrap();
            assert_eq!((read.number, read.lanes, read.shape), (6, 2, shape()));
            assert_eq!((read.uid, read.gid, read.pid), (7, 8, 9));
            assert_eq!(read.groups, peer(groups).groups);
            assert_eq!(read.name, "näme");
            assert_eq!(read.addresses, RecordedAddresses::of(&lease()));
            let endpoint = read.endpoint(4).unwrap();
            assert_eq!((endpoint.request, endpoint.revoked), (request, false));
            assert_eq!((endpoint.settings, endpoint.granted_priority), (settings, 2));
            assert!([0, 1, 2, 3, 5, u32::MAX].iter().all(|one| read.endpoint(*one).is_none()));
            // A successor goes on with the same record.
            let mut next = Record::adopt(file.as_fd()).unwrap();
            let came = || {
                let read = Recorded::read(file.as_fd()).unwrap().unwrap();
                assert_eq!((read.shape, read.addresses.shared), (shape(), false));
                read.entrance
            };
            assert_eq!(came(), Entrance::Administrators);
            for entrance in [Entrance::Applications, Entrance::Earlier, Entrance::Administrators] {
                next.set_entrance(entrance);
                assert_eq!(came(), entrance);
            }
            assert!(!Recorded::read(file.as_fd()).unwrap().unwrap().hands_over);
            next.hand_over();
            assert!(Recorded::read(file.as_fd()).unwrap().unwrap().hands_over);
            assert_eq!(came(), Entrance::Administrators);
            next.revoke(4);
            assert!(read.endpoint(4).unwrap().revoked);
            next.end();
            assert!(Recorded::read(file.as_fd()).unwrap().is_none());
        }
    }

    #[test]
    fn records_of_other_layouts_and_lengths_are_named() {
        let other = SharedFile::create("other", ENDPOINTS * 8).unwrap();
        let error = Recorded::read(other.as_fd()).unwrap_err().to_string();
        assert!(error.contains("another layout"), "{error}");
        let short = SharedFile::create("short", 1).unwrap();
        let mut words = own_words(short.map_writable().unwrap());
        words.store(0, LAYOUT);
        words.store(STATE, 1);
        assert!(Recorded::read(short.as_fd()).is_err());
        let pipe = std::io::pipe().unwrap().0;
        assert!(Recorded::read(pipe.as_fd()).is_err());
    }

    proptest! {
        /// Whatever a record contains, reading it is an error or gives a session within the limits.
        #[test]
        fn any_words_are_read_or_refused(
            changed in proptest::collection::vec((2..ENDPOINTS + 5 * ENDPOINT_WORDS, any::<u64>()), 0..40)
        ) {
            let (mut record, file) = create(3);
            record.begin();
            for (word, value) in changed {
                record.words.store(word, value);
            }
            if let Ok(Some(read)) = Recorded::read(file.as_fd()) {
                prop_assert!(read.number != 0 && read.groups.len() <= MAX_GROUPS);
                prop_assert!(read.shape.check_lanes(read.lanes).is_ok());
                for number in 0..read.shape.endpoints.min(100) {
                    read.endpoint(number);
                }
            }
        }
    }
}
