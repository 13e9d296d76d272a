//! Attacks through memory that two users can write to: a write from a page that never arrives holds the lock of the
//! file, which the server needs to free the file's pages.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use towpath_client::{Access, Session, Sharing};
use towpath_protocol::channel::Channel;
use towpath_protocol::message::{CreateMemory, Export, Import, Message};

use crate::partner::{BYTES, End, Word, is_for_hangs, options};
use crate::session::{ask, connect};
use crate::withheld::Withheld;
use crate::{Deeds, Field, sys};

/// Memories that the attacker holds the locks of, unless the field says otherwise.
const MEMORIES: u64 = 1;
/// The time from one later attempt to share memory to the next.
const PAUSE: Duration = Duration::from_secs(2);
/// The time that the partner has for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The times in a row that a writer is asleep once it holds the lock.
const LOOKS: u32 = 5;
/// The first number of the attacker's own requests: behind those of the library.
const FIRST: u32 = 1 << 20;

/// The attacker's role.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Owner,
    /// The owner of memory that the partner may only read.
    OwnerOfReadable,
    Importer,
}

/// A session with a partner, and its control connection.
struct Sharer {
    end: End,
    control: Channel,
    sequence: u32,
}

impl Sharer {
    fn attach(field: &Field) -> io::Result<Sharer> {
        let socket = connect(&field.socket)?;
        let control = Channel::new(socket.try_clone()?);
        let session =
            Session::attach_over(socket, &options("attacker")).map_err(io::Error::other)?;
        let mut end = End::open(session, 0).map_err(io::Error::other)?;
        end.find_partner().map_err(io::Error::other)?;
        Ok(Sharer { end, control, sequence: FIRST })
    }

    fn sequence(&mut self) -> u32 {
        self.sequence += 1;
        self.sequence
    }

    /// Shares a memory with the partner. Returns the attacker's descriptor; `None` if the server refuses because it
    /// cannot free earlier memories.
    fn share(&mut self, role: Role) -> io::Result<Option<OwnedFd>> {
        match role {
            Role::Owner => self.export(Sharing::MapWrite, Access::ReadWrite),
            Role::OwnerOfReadable => self.export(Sharing::MapRead, Access::Read),
            Role::Importer => self.import(),
        }
    }

    fn export(&mut self, sharing: Sharing, access: Access) -> io::Result<Option<OwnedFd>> {
        let (sharing, access, bytes) = (sharing as u32, access as u32, BYTES as u64);
        let create = CreateMemory { bytes, sharing, sequence: self.sequence() };
        let Some((Message::Created(memory), files)) =
            ask(&self.control, &Message::CreateMemory(create))
        else {
            return Err(io::Error::other("no memory"));
        };
        let sequence = self.sequence();
        let export =
            Export { offset: 0, len: bytes, endpoint: 0, memory: memory.number, access, sequence };
        let Some((Message::Created(export), _)) = ask(&self.control, &Message::Export(export))
        else {
            return Err(io::Error::other("no aperture"));
        };
        self.end.say(Word::Import(export.key));
        match self.end.receive(PATIENCE) {
            Some(Word::Imported) => Ok(files.into_iter().next()),
            Some(Word::Refused) => Ok(None),
            _ => Err(io::Error::other("the partner imports nothing")),
        }
    }

    fn import(&mut self) -> io::Result<Option<OwnedFd>> {
        self.end.say(Word::Export);
        let Some(Word::Key(key)) = self.end.receive(PATIENCE) else {
            return Err(io::Error::other("the partner exports nothing"));
        };
        let import = Import { endpoint: 0, key, sequence: self.sequence(), reserved: 0 };
        match ask(&self.control, &Message::Import(import)) {
            Some((Message::Imported(_), files)) => Ok(files.into_iter().next()),
            Some((Message::Error(error), _)) if is_for_hangs(&error.text()) => Ok(None),
            _ => Err(io::Error::other("the import was refused")),
        }
    }
}

/// Holds the locks of memories that the attacker has imported, and detaches.
pub(crate) fn importer(field: &Field) -> io::Result<Deeds> {
    hold(field, Role::Importer)
}

/// Holds the locks of memories that the partner has imported, and detaches.
pub(crate) fn owner(field: &Field) -> io::Result<Deeds> {
    hold(field, Role::Owner)
}

/// Holds the locks of memories that the partner has imported to read, and detaches.
pub(crate) fn owner_of_readable(field: &Field) -> io::Result<Deeds> {
    hold(field, Role::OwnerOfReadable)
}

/// Writes from a page that never arrives, in a thread. Returns once that thread sleeps, with the lock.
fn write_and_wait(file: OwnedFd, from: usize) -> io::Result<()> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let _ = tell.send(rustix::thread::gettid());
        sys::write_from(file.as_fd(), from, 4096)
    });
    let writer = told.recv().map_err(io::Error::other)?;
    let path = format!("/proc/self/task/{}/stat", writer.as_raw_nonzero());
    let until = Instant::now() + PATIENCE;
    let mut asleep = 0;
    while asleep < LOOKS {
        if Instant::now() > until {
            return Err(io::Error::other("a write from the page does not wait"));
        }
        std::thread::sleep(Duration::from_millis(10));
        let stat = std::fs::read_to_string(&path)?;
        let sleeps = stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('R'));
        asleep = if sleeps { asleep + 1 } else { 0 };
    }
    Ok(())
}

fn hold(field: &Field, role: Role) -> io::Result<Deeds> {
    let page = Withheld::new(&field.fuse)?;
    let mut sharer = Sharer::attach(field)?;
    let (mut held, mut shared, mut refused) = (0, 0, 0);
    for _ in 0..field.size_or(MEMORIES) {
        // An earlier attack of the experiment may have as many locks as the server allows.
        let Some(file) = sharer.share(role)? else { break };
        let from = page.page(held as usize * 16);
        held += 1;
        write_and_wait(file, from)?;
    }
    drop(sharer);
    field.begun();
    while !field.over() {
        field.sit_for(PAUSE);
        // The partner may still release what it shared.
        let Ok(mut sharer) = Sharer::attach(field) else { continue };
        match sharer.share(role) {
            Ok(Some(_)) => shared += 1,
            Ok(None) => refused += 1,
            Err(_) => {}
        }
    }
    drop(page);
    Ok(vec![("held", held), ("shared", shared), ("refused", refused)])
}
