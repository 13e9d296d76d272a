//! The position page: where each engine of a server stands, for its keeper and for the next server.
//!
//! A memory file that only the server writes. Its first line has the layout's version and the number
//! of lines that follow: one for each lane, and one for the control thread. Each of these holds:
//!
//! | word | holds |
//! |---|---|
//! | 0 | the number of the poll iteration |
//! | 1 | the kernel's number of the thread |
//! | 2 | the [`Phase`] in the upper half, and the session that the thread serves in the lower one |
//! | 3 | the session to which the thread delivers a packet |
//!
//! An engine stores its position before each part of a poll iteration, and a session before it reads
//! memory that the session's application writes, or delivers a packet to it. The stores order nothing.
//! The keeper reads
//! the iteration's number while the server runs. The keeper and the next server read the rest after
//! its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_memory::{Region, SharedFile, own_words, peer_words};
use towpath_queue::word::LINE_WORDS;
use towpath_queue::{OwnWords, PeerWords};

/// The name of the page in the store.
pub const POSITIONS: &str = "positions";

const LAYOUT: u64 = u64::from_le_bytes(*b"Positio2");
const ITERATION: usize = 0;
const THREAD: usize = 1;
const PLACE: usize = 2;
const RECEIVER: usize = PLACE + 1;

/// How a server crashed or hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// A crash. The position page does not say in which thread.
    InUnknownThread,
    /// The engine with this number hung, counted from 0.
    Hang(usize),
}

/// A part of a thread's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// No position: the thread has not started, has ended without a crash, or is the control thread
    /// once the sessions are restored.
    #[default]
    None,
    /// Commands of the control thread.
    Commands,
    /// From the device to the applications.
    Receive,
    /// From the applications to the device, and the device's completions.
    Transmit,
    /// Notifications, closing, and everything else of a poll iteration.
    Rest,
    /// Between two poll iterations: a sleep, or its preparation.
    Pause,
    /// The thread that starts the server restores an earlier server's sessions.
    Restore,
}

impl Phase {
    const ALL: [Phase; 7] = [
        Phase::None,
        Phase::Commands,
        Phase::Receive,
        Phase::Transmit,
        Phase::Rest,
        Phase::Pause,
        Phase::Restore,
    ];

    /// Returns `true` for a part of a poll iteration of an engine.
    pub fn is_of_an_iteration(self) -> bool {
        matches!(self, Phase::Commands | Phase::Receive | Phase::Transmit | Phase::Rest)
    }

    fn name(self) -> &'static str {
        match self {
            Phase::None => "not running",
            Phase::Commands => "commands",
            Phase::Receive => "receive",
            Phase::Transmit => "transmit",
            Phase::Rest => "rest",
            Phase::Pause => "pause",
            Phase::Restore => "restore",
        }
    }
}

/// The position of one thread, as that thread writes it. The default one is written nowhere.
#[derive(Debug, Default)]
pub struct Position {
    words: Option<OwnWords>,
    phase: u64,
    /// The session of the last delivery, as it is in its word.
    receiver: u32,
}

impl Position {
    /// Records the thread that calls this.
    pub fn start(&mut self) {
        if let Some(words) = &mut self.words {
            words.store(THREAD, rustix::thread::gettid().as_raw_nonzero().get() as u64);
        }
    }

    /// Records the beginning of a poll iteration.
    #[inline]
    pub fn iterate(&mut self, iteration: u64) {
        if let Some(words) = &mut self.words {
            words.store(ITERATION, iteration);
        }
    }

    /// Records the beginning of a phase, without a session.
    #[inline]
    pub fn begin(&mut self, phase: Phase) {
        self.phase = u64::from(phase as u32) << 32;
        self.serve(0);
    }

    /// Records the session that the thread serves from now on, and that it delivers no packet; 0 for
    /// none.
    #[inline]
    pub fn serve(&mut self, session: u32) {
        self.receiver = 0;
        if let Some(words) = &mut self.words {
            words.store_pair(PLACE, [self.phase | u64::from(session), 0]);
        }
    }

    /// Records the session to which the thread delivers a packet, which comes from the served session
    /// or from the device. It stays recorded until the next delivery or the next batch.
    #[inline]
    pub fn deliver_to(&mut self, session: u32) {
        // Most packets go to the session of the one before.
        if self.receiver == session {
            return;
        }
        self.receiver = session;
        if let Some(words) = &mut self.words {
            words.store(RECEIVER, u64::from(session));
        }
    }
}

/// Makes the page of a server with `lanes` lanes. Returns its file, and the position of each engine
/// and of the control thread.
///
/// # Errors
/// Fails if there is no memory.
pub fn create(lanes: usize) -> io::Result<(OwnedFd, Vec<Position>)> {
    let lines = lanes + 1;
    let (region, file) = Region::in_own_file("towpath-positions", (1 + lines) * LINE_WORDS * 8)?;
    let mut words = own_words(region);
    let mut head = words.split_off_front(LINE_WORDS);
    head.store(0, LAYOUT);
    head.store(1, lines as u64);
    let position = |_| {
        let words = Some(words.split_off_front(LINE_WORDS));
        Position { words, ..Position::default() }
    };
    Ok((file, (0..lines).map(position).collect()))
}

/// Where a thread stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The number of the poll iteration.
    pub iteration: u64,
    /// The kernel's number of the thread; 0 before it has started.
    pub thread: u64,
    /// What it does.
    pub phase: Phase,
    /// The session that the thread serves; 0 for none.
    pub session: u32,
    /// The session to which it delivers a packet; 0 for none.
    pub receiver: u32,
}

impl Place {
    /// Returns the sessions that the thread serves or delivers to, each once.
    pub fn sessions(self) -> impl Iterator<Item = u32> {
        let receiver = Some(self.receiver).filter(|receiver| *receiver != self.session);
        [Some(self.session), receiver].into_iter().flatten().filter(|session| *session != 0)
    }
}

/// A position page, as another process reads it.
#[derive(Debug)]
pub struct Positions {
    words: PeerWords,
    lines: usize,
}

impl Positions {
    /// Maps the page of another process.
    ///
    /// # Errors
    /// Fails with the kernel's error, or if the file is no such page.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Positions> {
        let mapping = SharedFile::adopt(file.as_fd().try_clone_to_owned()?)?.map_readable()?;
        mapping.keep_from_children()?;
        let words = peer_words(&Arc::new(mapping));
        let most = (words.len() / LINE_WORDS).saturating_sub(1);
        let lines = usize::try_from(words.fetch(1)).unwrap_or(usize::MAX);
        if words.fetch(0) != LAYOUT || lines > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no position page"));
        }
        Ok(Positions { words, lines })
    }

    /// Returns the places of the threads: of the engines, and at last of the control thread.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        (0..self.lines).map(|line| {
            let at = (1 + line) * LINE_WORDS;
            let place = self.words.fetch(at + PLACE);
            let phase = Phase::ALL.get((place >> 32) as usize).copied().unwrap_or_default();
            Place {
                iteration: self.words.fetch(at + ITERATION),
                thread: self.words.fetch(at + THREAD),
                phase,
                session: place as u32,
                receiver: self.words.fetch(at + RECEIVER) as u32,
            }
        })
    }

    /// Returns the places of the engines.
    pub fn engines(&self) -> impl Iterator<Item = Place> + '_ {
        self.places().take(self.lines.saturating_sub(1))
    }

    /// Returns the places of the threads that run, in words.
    pub fn describe(&self) -> String {
        let control = self.lines.saturating_sub(1);
        let places = self.places().enumerate().filter(|(_, place)| place.phase != Phase::None);
        let each = places.map(|(line, place)| {
            let thread = if line == control { "control".into() } else { format!("engine {line}") };
            let named = |before: &str, session: u32| match session {
                0 => String::new(),
                session => format!(" {before} session {session}"),
            };
            let (session, receiver) = (named("of", place.session), named("to", place.receiver));
            format!("{thread}: {}{session}{receiver}", place.phase.name())
        });
        each.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_reads_the_positions() {
        let (file, mut positions) = create(2).unwrap();
        let read = Positions::open(file.as_fd()).unwrap();
        assert_eq!(read.describe(), "");
        positions[1].start();
        positions[1].iterate(7);
        positions[1].begin(Phase::Transmit);
        positions[1].serve(3);
        positions[1].deliver_to(4);
        assert_eq!(read.describe(), "engine 1: transmit of session 3 to session 4");
        let sessions = |line| read.places().nth(line).unwrap().sessions().collect::<Vec<_>>();
        assert_eq!((sessions(0), sessions(1)), (vec![], vec![3, 4]));
        positions[1].deliver_to(3);
        assert_eq!(sessions(1), [3], "a session that sends to itself");
        positions[1].serve(3);
        positions[2].begin(Phase::Restore);
        assert_eq!(read.describe(), "engine 1: transmit of session 3, control: restore");
        positions[1].serve(0);
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        let place = Place { iteration: 7, thread, phase: Phase::Transmit, session: 0, receiver: 0 };
        assert_eq!(read.places().nth(1), Some(place));
        assert_eq!(read.places().count(), 3);
        positions[1].begin(Phase::None);
        assert_eq!(read.describe(), "control: restore");
    }

    #[test]
    fn another_file_is_refused() {
        let (_, file) = Region::in_own_file("other", 64).unwrap();
        assert!(Positions::open(file.as_fd()).is_err());
        let pipe = io::pipe().unwrap().0;
        assert!(Positions::open(pipe.as_fd()).is_err());
    }

    #[test]
    fn a_position_that_is_written_nowhere() {
        let mut position = Position::default();
        position.start();
        position.iterate(1);
        position.begin(Phase::Receive);
        position.serve(1);
        position.deliver_to(2);
    }
}
