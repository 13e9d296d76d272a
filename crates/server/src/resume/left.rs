//! What an earlier server left in the store, by the names of the objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};

use towpath_protocol::peer::has_ended;
use tracing::warn;

use super::record::{Record, Recorded};
use super::settings::SETTINGS;
use crate::apertures::copy_areas::COPIES;
use crate::apertures::left::LeftApertures;
use crate::apertures::tables::{LeftMemory, RELEASED};
use crate::config::StartError;
use crate::prepare::{APERTURES, ARMED, MEMORIES, MEMORY, PINS, PROCESS, RECORD};
use crate::socket::{STORED_ADMIN_NAME, STORED_NAME};
use towpath_keeper::{END_OF_SERVER, OWN};
use towpath_protocol::position::{Crash, POSITIONS, Place, Positions};

/// The name of the state page in the store.
pub(crate) const STATE: &str = "state";
/// The beginning of the names of users' state pages.
const STATE_OF: &str = "state-";

/// Returns the name of a user's state page in the store.
pub(crate) fn state_name(uid: u32) -> String {
    format!("{STATE_OF}{uid}")
}

/// The name of the ledger of connections with other hosts in the store.
pub(crate) const RDMA: &str = "rdma";
/// The beginnings of the names of objects of sessions, and of ports.
const SESSION: &str = "session-";
const PORT: &str = "port-";
/// The beginning of the names of the device's objects.
const DEVICE: &str = "device-";
/// The beginning of the names of objects of the program that runs the server.
const PROGRAM: &str = "program-";

/// The objects of a session.
#[derive(Debug, Default)]
pub(crate) struct LeftSession {
    /// The memory files, in the order of [`MEMORIES`].
    pub(crate) files: [Option<OwnedFd>; MEMORIES.len()],
    pub(crate) record: Option<OwnedFd>,
    /// The application's process.
    pub(crate) process: Option<OwnedFd>,
    pub(crate) pins: Vec<OwnedFd>,
    pub(crate) apertures: LeftApertures,
}

/// The objects of an earlier server.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub(crate) listener: Option<OwnedFd>,
    /// The administration socket; not of a server of an earlier version.
    pub(crate) admin_listener: Option<OwnedFd>,
    pub(crate) state: Option<OwnedFd>,
    /// The state pages of users.
    pub(crate) user_states: BTreeMap<u32, OwnedFd>,
    /// The ledger of connections with other hosts.
    pub(crate) rdma: Option<OwnedFd>,
    /// The changes of the device's settings.
    pub(crate) settings: Option<OwnedFd>,
    /// Where the earlier server's threads stood.
    pub(crate) positions: Option<OwnedFd>,
    pub(crate) sessions: BTreeMap<u32, LeftSession>,
    /// Memories that their owners have released, by their ids.
    pub(crate) released: HashMap<u64, LeftMemory>,
    /// The copy areas of workers, by their names.
    pub(crate) copies: HashMap<String, Vec<OwnedFd>>,
    /// Sockets that hold ports, by their names.
    pub(crate) ports: HashMap<String, OwnedFd>,
    /// Everything else, which this server does not use.
    pub(crate) rest: Vec<(String, OwnedFd)>,
}

impl Left {
    /// Sorts the objects of a store.
    pub(crate) fn sort(objects: Vec<(String, OwnedFd)>) -> Left {
        let mut left = Left::default();
        for (name, object) in objects {
            let unused = left.put(&name, object);
            left.rest.extend(unused.map(|object| (name, object)));
        }
        left
    }

    /// Counts a crash against each session that a thread of the earlier server served, or delivered
    /// to, at its end. After a hang, only the engine that hung counts.
    pub(crate) fn count_crash(&self, crash: Crash) {
        let positions = self.positions.as_ref().map(|page| Positions::open(page.as_fd()));
        let Some(Ok(positions)) = positions else { return };
        let (from, most) = match crash {
            Crash::InUnknownThread => (0, usize::MAX),
            Crash::Hang(engine) => (engine, 1),
        };
        let served = positions.places().skip(from).take(most).flat_map(Place::sessions);
        // A session may be at several places.
        for number in served.collect::<BTreeSet<_>>() {
            let session = self.sessions.get(&number);
            if let Some(file) = session.and_then(|session| session.record.as_ref())
                && let Ok(Some(recorded)) = Recorded::read(file.as_fd())
                && let Ok(mut record) = Record::adopt(file.as_fd())
            {
                let crashes = record.crash();
                let (name, uid, pid) = (recorded.name, recorded.uid, recorded.pid);
                warn!(
                    session = number,
                    name,
                    uid,
                    pid,
                    crashes,
                    "the server crashed or hung while it served this session or delivered to it"
                );
            }
        }
    }

    /// Checks that a server with `lanes` lanes can read the record of every session whose
    /// application lives.
    ///
    /// # Errors
    /// [`StartError::NotResumed`] names a session that it cannot resume.
    pub(crate) fn check(&self, lanes: usize) -> Result<(), StartError> {
        for (number, session) in &self.sessions {
            let (Some(file), Some(process)) = (&session.record, &session.process) else { continue };
            if has_ended(process).unwrap_or(true) {
                continue;
            }
            let why = match Recorded::read(file.as_fd()) {
                Ok(Some(recorded)) if recorded.lanes != lanes => {
                    format!("it has {} lanes, and this server {lanes}", recorded.lanes)
                }
                Ok(_) => continue,
                Err(error) => format!("its record: {error}"),
            };
            return Err(StartError::NotResumed { number: *number, why });
        }
        Ok(())
    }

    /// Enters an object. Returns it if this server does not use it.
    fn put(&mut self, name: &str, object: OwnedFd) -> Option<OwnedFd> {
        if let Some(part) = name.strip_prefix(SESSION) {
            let (number, part) = part.split_once('-')?;
            let Ok(number) = number.parse() else { return Some(object) };
            return self.sessions.entry(number).or_default().put(part, object);
        }
        match name {
            STORED_NAME => self.listener.replace(object),
            STORED_ADMIN_NAME => self.admin_listener.replace(object),
            STATE => self.state.replace(object),
            RDMA => self.rdma.replace(object),
            SETTINGS => self.settings.replace(object),
            POSITIONS => self.positions.replace(object),
            // The pipe of the earlier server. This server's has the same name.
            END_OF_SERVER => None,
            // The device has taken its objects already, and the others are not for the server.
            _ if [DEVICE, OWN, PROGRAM].iter().any(|start| name.starts_with(start)) => None,
            _ if name.starts_with(STATE_OF) => match name[STATE_OF.len()..].parse() {
                Ok(uid) => self.user_states.insert(uid, object),
                Err(_) => Some(object),
            },
            _ if name.starts_with(RELEASED) => match LeftMemory::read(name, object) {
                Ok((id, memory)) => self.released.insert(id, memory).map(LeftMemory::into_file),
                Err(object) => Some(object),
            },
            _ if name.starts_with(COPIES) => {
                self.copies.entry(name.to_owned()).or_default().push(object);
                None
            }
            _ if name.starts_with(PORT) => self.ports.insert(name.to_owned(), object),
            _ => Some(object),
        }
    }
}

impl LeftSession {
    /// Returns the session's record, if it can be read.
    pub(crate) fn recorded(&self) -> Option<Recorded> {
        Recorded::read(self.record.as_ref()?.as_fd()).ok()?
    }

    /// Returns `true` if the session's application has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| has_ended(process).unwrap_or(false))
    }

    fn put(&mut self, part: &str, object: OwnedFd) -> Option<OwnedFd> {
        if let Some(at) = MEMORIES.iter().position(|memory| *memory == part) {
            return self.files[at].replace(object);
        }
        match part {
            RECORD => self.record.replace(object),
            PROCESS => self.process.replace(object),
            PINS => {
                self.pins.push(object);
                None
            }
            ARMED => self.apertures.armed.replace(object),
            APERTURES => self.apertures.record.replace(object),
            _ => match part.strip_prefix(MEMORY).map(|id| u64::from_str_radix(id, 16)) {
                Some(Ok(id)) => {
                    self.apertures.memories.entry(id).or_default().push(object);
                    None
                }
                _ => Some(object),
            },
        }
    }

    /// Returns all descriptors, some of which an application can reach.
    pub(crate) fn into_descriptors(self) -> Vec<OwnedFd> {
        let LeftSession { files, record, process, pins, apertures } = self;
        let LeftApertures { record: objects, armed, memories } = apertures;
        let sessions = files.into_iter().flatten().chain(record).chain(process).chain(pins);
        let memories = memories.into_values().flatten();
        sessions.chain(objects).chain(armed).chain(memories).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_sorted_by_their_names() {
        let object = |name: &str| (name.to_owned(), std::io::pipe().unwrap().0.into());
        let left = Left::sort(
            [
                "session-7-server",
                "session-7-ledger",
                "session-7-pins",
                "session-7-pins",
                "session-7-record",
                "session-12-process",
                "listener",
                "state",
                "state",
                "port-tcp-127.0.0.1-80",
                "device-memory",
                "program-policy",
                "session-x-server",
                "session-7-unknown",
                "session-7-armed",
                "session-7-apertures",
                "session-7-memory-6f",
                "session-7-memory-6f",
                "released-memory-70-1000",
                "released-memory-71-1000-1001",
                "released-memory-72",
                "session-7-memory-x",
            ]
            .map(object)
            .into(),
        );
        assert_eq!(left.sessions.keys().copied().collect::<Vec<_>>(), [7, 12]);
        assert_eq!(left.sessions[&7].files.iter().flatten().count(), 2);
        assert!(left.sessions[&7].record.is_some() && left.sessions[&12].process.is_some());
        assert_eq!(left.sessions[&7].pins.len(), 2);
        let apertures = &left.sessions[&7].apertures;
        assert!(apertures.armed.is_some() && apertures.record.is_some());
        assert_eq!(apertures.memories[&0x6f].len(), 2);
        assert_eq!(
            left.released.keys().copied().collect::<BTreeSet<_>>(),
            BTreeSet::from([0x70, 0x71])
        );
        assert!(left.listener.is_some() && left.state.is_some());
        assert_eq!(left.ports.len(), 1);
        let rest: Vec<_> = left.rest.iter().map(|(name, _)| &name[..]).collect();
        let unused = [
            "state",
            "session-x-server",
            "session-7-unknown",
            "released-memory-72",
            "session-7-memory-x",
        ];
        assert_eq!(rest, unused);
    }
}
