//! Preparation of a session: its memory, descriptors and mappings.
//!
//! The order of the steps matters. The application first maps the memory that it will write, while
//! a writable mapping is still possible. Then the worker of its user seals that memory against
//! every further writer, and allocates the memory that the server writes. Only then does the server
//! map all of it, the application's memory read-only. The control thread makes none of the calls
//! that an application can prolong.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::SealFlags;
use towpath_engine::account::Account;
use towpath_engine::apertures::states::APERTURE_BYTES;
use towpath_engine::oob::queue::oob_bytes;
use towpath_engine::own::{BounceFile, Offsets};
use towpath_engine::relays::Relay;
use towpath_engine::session::doorbell::Doorbell;
use towpath_engine::session::memories::{Mappings, Memories};
use towpath_engine::session::{ENDPOINT_BYTES, QUEUE_PAIR_BYTES, Session};
use towpath_memory::{FilePart, Mapping, PAGE_BYTES, SharedFile, own_words};
use towpath_protocol::layout::{ALLOCATES_SINCE, CLOSED_WORD, SessionShape};
use towpath_protocol::store::Store;

/// The memory files of a session. The last close of a file frees its memory, which takes time.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) server: SharedFile,
    pub(crate) receive_pool: SharedFile,
    pub(crate) ledger: SharedFile,
    pub(crate) application: SharedFile,
    pub(crate) transmit_pool: SharedFile,
    /// The application's armed words; `None` if the session has no tripwires.
    pub(crate) armed: Option<SharedFile>,
}

/// The names of these files in the store, after the session's.
pub(crate) const MEMORIES: [&str; 5] =
    ["server", "receive-pool", "ledger", "application", "transmit-pool"];
/// The name of the file with the armed words.
pub(crate) const ARMED: &str = "armed";
/// The names of a session's other objects in the store: its record, that of its apertures, its
/// application's process, and the descriptors that keep its pages in place.
pub(crate) const RECORD: &str = "record";
pub(crate) const APERTURES: &str = "apertures";
/// The beginning of the names of the memories that the session created; the memory's id follows.
pub(crate) const MEMORY: &str = "memory-";
pub(crate) const PROCESS: &str = "process";
pub(crate) const PINS: &str = "pins";

/// A session whose memory is not mapped yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    shape: SessionShape,
    files: Files,
    /// The memory of the session's own hardware queue.
    joined: Option<Joined>,
    /// The server's end of the doorbell.
    doorbell: OwnedFd,
    /// For each lane, readable when the application notifies its engine. The application does not
    /// have these descriptors.
    wakes: Vec<OwnedFd>,
}

/// The memory of a session's own hardware queue, and what lies where in it.
pub(crate) type Joined = (Arc<Mapping>, Offsets);

/// Returns the bytes that a session takes on a server with so many lanes. These are all of its
/// memories, and the server's own memory for as many endpoints and queue pairs as the session may
/// have.
///
/// ```
/// use towpath_protocol::layout::SessionShape;
/// use towpath_server::session_bytes;
///
/// let shape = SessionShape::new(1, 1, 64, 64, 2048, 2048)?;
/// // The data of both pools is only a part.
/// assert!(session_bytes(&shape, 1) > 2 * 64 * 2048);
/// assert!(session_bytes(&shape, 2) > session_bytes(&shape, 1));
/// # Ok::<(), towpath_protocol::layout::ShapeError>(())
/// ```
#[must_use]
pub fn session_bytes(shape: &SessionShape, lanes: usize) -> usize {
    let lane = (shape.server_words() + shape.application_words() + shape.ledger_words()) * 8
        + shape.receive_pool.pool_bytes()
        + shape.endpoints as usize * ENDPOINT_BYTES
        + shape.queue_pairs as usize * QUEUE_PAIR_BYTES;
    lane * lanes
        + shape.transmit_pool.pool_bytes()
        + oob_bytes(shape)
        + armed_bytes(shape)
        + (shape.apertures() + shape.tripwires().tripwires()) as usize * APERTURE_BYTES
}

/// Returns the bytes of a session that its worker may have to allocate for the application: those of
/// the two files that an application of an older version writes.
pub(crate) fn unfreeable_bytes(account: Account, shape: &SessionShape, lanes: usize) -> usize {
    // An administrator's applications may take all memory anyway.
    if !account.is_limited || shape.version() >= ALLOCATES_SINCE {
        return 0;
    }
    let words = shape.application_words() * 8 * lanes;
    words.next_multiple_of(PAGE_BYTES)
        + shape.transmit_pool.pool_bytes().next_multiple_of(PAGE_BYTES)
}

/// Returns the bytes of a session's armed words; 0 if it has no tripwires.
fn armed_bytes(shape: &SessionShape) -> usize {
    shape.tripwires().owner_words() * 8
}

impl Files {
    fn new(shape: &SessionShape, lanes: usize) -> io::Result<Files> {
        let for_lanes = |name, bytes| SharedFile::create(name, bytes * lanes);
        let server = for_lanes("towpath-server-pages", shape.server_words() * 8)?;
        let receive_pool = for_lanes("towpath-receive-pool", shape.receive_pool.pool_bytes())?;
        let application = for_lanes("towpath-application-pages", shape.application_words() * 8)?;
        let transmit_pool =
            SharedFile::create("towpath-transmit-pool", shape.transmit_pool.pool_bytes())?;
        let ledger = for_lanes("towpath-ledger", shape.ledger_words() * 8)?;
        // The server's memories have all their seals from the start, so no process can seal them
        // against the server's own writing.
        server.seal_seals()?;
        receive_pool.seal_seals()?;
        ledger.seal_seals()?;
        let armed = armed_bytes(shape);
        let armed = (armed > 0).then(|| SharedFile::create("towpath-armed-words", armed));
        let armed = armed.transpose()?;
        Ok(Files { server, receive_pool, ledger, application, transmit_pool, armed })
    }

    /// Adopts the files that an earlier server left, in the order of [`MEMORIES`].
    ///
    /// # Errors
    /// Fails if one is missing, is too short or is not sealed as its server sealed it.
    pub(crate) fn adopt(
        files: [Option<OwnedFd>; MEMORIES.len()],
        armed: Option<OwnedFd>,
        shape: &SessionShape,
        lanes: usize,
    ) -> io::Result<Files> {
        let [server, receive_pool, ledger, application, transmit_pool] = files;
        let wrong = |name: &str, fault: &str| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the file {name} is {fault}"))
        };
        let adopt_named = |name: &str, file: Option<OwnedFd>, bytes: usize, seals: SealFlags| {
            let file = file.ok_or_else(|| wrong(name, "missing"))?;
            let has = rustix::fs::fcntl_get_seals(&file)?;
            let file = SharedFile::adopt(file)?;
            if file.len() < bytes || !has.contains(seals) {
                return Err(wrong(name, "too short, or not sealed as a session's memory is"));
            }
            Ok(file)
        };
        let adopt =
            |name: usize, file, bytes, seals| adopt_named(MEMORIES[name], file, bytes, seals);
        let (ours, theirs) = (SealFlags::SEAL, SealFlags::SEAL | SealFlags::FUTURE_WRITE);
        let receive_bytes = shape.receive_pool.pool_bytes() * lanes;
        let armed = match armed_bytes(shape) {
            0 => None,
            bytes => Some(adopt_named(ARMED, armed, bytes, theirs)?),
        };
        Ok(Files {
            server: adopt(0, server, shape.server_words() * 8 * lanes, ours)?,
            receive_pool: adopt(1, receive_pool, receive_bytes, ours)?,
            ledger: adopt(2, ledger, shape.ledger_words() * 8 * lanes, ours)?,
            application: adopt(3, application, shape.application_words() * 8 * lanes, theirs)?,
            transmit_pool: adopt(4, transmit_pool, shape.transmit_pool.pool_bytes(), theirs)?,
            armed,
        })
    }

    /// Closes a session that no server maps any more: its application reads the reason.
    ///
    /// # Errors
    /// Fails with the kernel's error.
    pub(crate) fn close(&self, shape: &SessionShape, lanes: usize, reason: u32) -> io::Result<()> {
        let region = self.server.map_writable()?;
        region.mapping().keep_from_children()?;
        let mut words = own_words(region);
        for lane in 0..lanes {
            words.publish(lane * shape.server_words() + CLOSED_WORD, 1 << 32 | u64::from(reason));
        }
        Ok(())
    }

    /// Maps all memories.
    ///
    /// # Errors
    /// Fails with the kernel's error.
    fn map(&self) -> io::Result<Memories> {
        let memories = Memories {
            server: self.server.map_writable()?,
            application: Arc::new(self.application.map_readable()?),
            ledger: self.ledger.map_writable()?,
            receive_pool: self.receive_pool.map_writable()?,
            transmit_pool: Arc::new(self.transmit_pool.map_readable()?),
            armed: self.map_armed()?,
        };
        for mapping in memories.mappings().all.iter().chain(&memories.armed) {
            mapping.keep_from_children()?;
        }
        Ok(memories)
    }

    /// Maps the memories of a session that this server resumes, and makes the engines' sessions,
    /// which their application has yet to claim.
    ///
    /// # Errors
    /// Fails with the kernel's error.
    pub(crate) fn map_unclaimed(
        &self,
        number: u32,
        shape: SessionShape,
        lanes: usize,
    ) -> io::Result<Mapped> {
        let mut memories = self.map()?;
        let mappings = memories.mappings();
        let session = |lane| {
            let memories = memories.split_off_lane(&shape, lane);
            Session::of_lane(number, shape, memories, Doorbell::none(), None)
        };
        Ok(Mapped { sessions: (0..lanes).map(session).collect(), mappings, joined: None })
    }

    fn map_armed(&self) -> io::Result<Option<Arc<Mapping>>> {
        self.armed.as_ref().map(|file| file.map_readable().map(Arc::new)).transpose()
    }

    fn all(&self) -> [&SharedFile; 5] {
        [&self.server, &self.receive_pool, &self.ledger, &self.application, &self.transmit_pool]
    }
}

impl Prepared {
    /// Makes the memory files and descriptors of a session for so many lanes, and stores those that
    /// must outlive the server. Returns the descriptors for the application, in the order of the
    /// attached message.
    ///
    /// # Errors
    /// Fails if memory or descriptors are not available.
    pub(crate) fn new(
        number: u32,
        (shape, lanes): (SessionShape, usize),
        state: &OwnedFd,
        store: &mut dyn Store,
    ) -> io::Result<(Prepared, Vec<OwnedFd>)> {
        let files = Files::new(&shape, lanes)?;
        let (doorbell, theirs) = towpath_protocol::doorbell::pair()?;
        for (memory, file) in MEMORIES.into_iter().zip(files.all()) {
            store.put(&stored_name(number, memory), file.as_fd())?;
        }
        if let Some(armed) = &files.armed {
            store.put(&stored_name(number, ARMED), armed.as_fd())?;
        }
        let mut handed = vec![
            files.server.read_only()?,
            files.receive_pool.read_only()?,
            state.try_clone()?,
            files.application.as_fd().try_clone_to_owned()?,
            files.transmit_pool.as_fd().try_clone_to_owned()?,
            theirs,
        ];
        if let Some(armed) = &files.armed {
            handed.push(armed.as_fd().try_clone_to_owned()?);
        }
        let mut wakes = Vec::with_capacity(lanes);
        for _ in 0..lanes {
            let (wake, event) = wake()?;
            wakes.push(wake);
            handed.push(event);
        }
        Ok((Prepared { shape, files, joined: None, doorbell, wakes }, handed))
    }

    /// Maps the buffers of the session, and the bounce buffers behind them, for a hardware queue of
    /// the session's own. The kernel pins such memory for writing, so this comes before the worker
    /// seals the transmit pool against further writers. The server itself writes nothing there.
    ///
    /// # Errors
    /// Fails if there is no memory.
    pub(crate) fn join(&mut self, bounce: &BounceFile) -> io::Result<()> {
        let (receive, transmit) = (&self.files.receive_pool, &self.files.transmit_pool);
        let whole = |file| FilePart { file, offset: 0, len: SharedFile::len(file) };
        let mapping = Mapping::joined(&[whole(receive), whole(transmit), bounce.part()])?;
        mapping.keep_from_children()?;
        let end = receive.len() + transmit.len();
        u32::try_from(mapping.len()).map_err(|_| rustix::io::Errno::FBIG)?;
        let offsets = Offsets { transmit: receive.len() as u32, bounce: end as u32 };
        self.joined = Some((Arc::new(mapping), offsets));
        Ok(())
    }

    /// Returns the files that the worker needs to prepare the session's memory, in the worker's
    /// order.
    ///
    /// # Errors
    /// Fails if descriptors are not available.
    pub(crate) fn files_to_prepare(&self) -> io::Result<Vec<OwnedFd>> {
        let files = self.files.all().into_iter().map(AsFd::as_fd);
        files.chain(self.wakes.iter().map(AsFd::as_fd)).map(|fd| fd.try_clone_to_owned()).collect()
    }

    /// Returns the file with the armed words, which the worker seals.
    ///
    /// # Errors
    /// Fails if descriptors are not available.
    pub(crate) fn armed(&self) -> io::Result<Option<OwnedFd>> {
        let armed = self.files.armed.as_ref();
        armed.map(|file| file.as_fd().try_clone_to_owned()).transpose()
    }

    /// Returns a descriptor by which other applications read the armed words.
    ///
    /// # Errors
    /// Fails if descriptors are not available.
    pub(crate) fn readable_armed(&self) -> io::Result<Option<OwnedFd>> {
        self.files.readable_armed()
    }

    /// Maps the words that the application writes, as the application does before the worker seals them.
    #[cfg(all(test, towpath_simulation))]
    pub(crate) fn application_words(&self) -> io::Result<towpath_queue::OwnWords> {
        Ok(own_words(self.files.application.map_writable()?))
    }

    /// Returns a duplicate of the server's end of the doorbell.
    ///
    /// # Errors
    /// Fails if descriptors are not available.
    pub(crate) fn doorbell(&self) -> io::Result<OwnedFd> {
        self.doorbell.try_clone()
    }

    /// Maps all memory, once the worker has sealed and allocated it, and makes the
    /// engines' sessions. The server's parts are not populated yet. The store keeps the memory
    /// files.
    ///
    /// # Errors
    /// Fails with the descriptors to dispose of if mapping fails.
    pub(crate) fn map(
        self,
        number: u32,
        relay: Relay,
    ) -> Result<Mapped, (io::Error, Vec<OwnedFd>)> {
        let memories = match self.files.map() {
            Ok(memories) => memories,
            Err(error) => return Err((error, self.into_descriptors())),
        };
        let Prepared { shape, joined, doorbell, wakes, .. } = self;
        let mappings = memories.mappings();
        let doorbell = Doorbell::new(doorbell, relay);
        let mut memories = memories;
        let session = |(lane, wake)| {
            let memories = memories.split_off_lane(&shape, lane);
            Session::of_lane(number, shape, memories, doorbell.clone(), Some(wake))
        };
        let sessions = wakes.into_iter().enumerate().map(session).collect();
        Ok(Mapped { sessions, mappings, joined })
    }

    /// Returns every descriptor that an application can reach.
    pub(crate) fn into_descriptors(self) -> Vec<OwnedFd> {
        let mut all = self.files.into_descriptors();
        all.push(self.doorbell);
        all.extend(self.wakes);
        all
    }
}

impl Files {
    /// Returns every descriptor, which an application can reach.
    pub(crate) fn into_descriptors(self) -> Vec<OwnedFd> {
        let Files { server, receive_pool, ledger, application, transmit_pool, armed } = self;
        let all = [server, receive_pool, ledger, application, transmit_pool];
        all.into_iter().chain(armed).map(OwnedFd::from).collect()
    }

    /// Returns a descriptor by which other applications read the armed words.
    ///
    /// # Errors
    /// Fails if descriptors are not available.
    pub(crate) fn readable_armed(&self) -> io::Result<Option<OwnedFd>> {
        self.armed.as_ref().map(SharedFile::read_only).transpose()
    }
}

/// A mapped session.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// The parts of the session, one for each lane.
    pub(crate) sessions: Vec<Session>,
    pub(crate) mappings: Mappings,
    /// The memory of the session's own hardware queue.
    pub(crate) joined: Option<Joined>,
}

/// Makes the descriptors by which an application notifies an engine. Returns the engine's and the
/// application's.
pub(crate) fn wake() -> io::Result<(OwnedFd, OwnedFd)> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    // The engine never touches the eventfd itself, to which the application may attach any number
    // of waiters. The engine waits for an epoll instance of the server's own. The server enters the
    // eventfd there now, while no other waiter is attached.
    let wake = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&wake, &event, epoll::EventData::new_u64(0), edge)?;
    Ok((wake, event))
}

/// Returns the name of a session's memory in the store.
pub(crate) fn stored_name(number: u32, memory: &str) -> String {
    format!("session-{number}-{memory}")
}

/// Removes a session's objects from the store. Returns the store's own descriptors of its memories,
/// the server pages first.
pub(crate) fn remove_stored(store: &mut dyn Store, number: u32) -> Vec<OwnedFd> {
    let memories = MEMORIES.iter().chain([&ARMED]);
    let memories = memories.flat_map(|memory| store.remove(&stored_name(number, memory)));
    let memories = memories.collect();
    // No application can prolong the close of these.
    for other in [RECORD, APERTURES, PROCESS, PINS] {
        store.remove(&stored_name(number, other));
    }
    memories
}

/// Stores another object of a session.
///
/// # Errors
/// Fails if the store cannot keep it.
pub(crate) fn store(
    store: &mut dyn Store,
    number: u32,
    name: &str,
    object: BorrowedFd<'_>,
) -> io::Result<()> {
    store.put(&stored_name(number, name), object)
}
