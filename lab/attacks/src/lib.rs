//! Attacks of an unprivileged program on a server's threads, and the neighbour that measures them.
//!
//! The tests of the whole system and the benchmark start both as processes of their own users. Each
//! attack runs for a bounded time with a bounded number of kernel objects, and undoes what it did.
//!
//! | module | attacks |
//! |---|---|
//! | `doorbell` | the doorbell's locks and socket options, in a session and at its end |
//! | `waiters` | hundreds of thousands of wait-queue entries on a shared descriptor |
//! | `control` | descriptors that close slowly, unread reports, malformed messages, floods of connections, all sessions taken |
//! | `apertures` | all memories for apertures taken, very many tripwires, all connections with other hosts taken |
//! | `locks` | record locks on the state page |
//! | `removed` | memory of apertures whose pages are freed again and again |
//! | `memory` | sealing of a file that is being written, large memories, page reclaim |
//! | `shared` | freeing of a file that another user has mapped and that is being written |
//!
//! `withheld` is a page that never arrives, from a FUSE file system of the attacker's own;
//! `session` is what an attacker does with a session; `partner` is the honest application that shares memory; `sys`
//! holds the system calls.

mod apertures;
mod control;
mod doorbell;
mod locks;
mod memory;
pub mod neighbour;
mod partner;
mod removed;
mod session;
mod shared;
mod sys;
mod waiters;
mod withheld;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use withheld::fuse_is_usable;

/// An attack, named as on the command line.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// Its name.
    pub name: &'static str,
    /// The attacker needs the right to attach.
    pub attaches: bool,
    /// The attacker needs a FUSE file system of its own.
    pub needs_fuse: bool,
    /// The program, by its name, that takes the same from a neighbour without the server; `None`
    /// for such a program itself.
    pub baseline: Option<&'static str>,
    act: fn(&Field) -> io::Result<Deeds>,
}

/// An attack's deeds, as counts.
pub type Deeds = Vec<(&'static str, u64)>;

const fn attack(name: &'static str, act: fn(&Field) -> io::Result<Deeds>) -> Attack {
    Attack { name, attaches: true, needs_fuse: false, baseline: Some("busy"), act }
}

impl Attack {
    const fn with_fuse(self) -> Attack {
        Attack { needs_fuse: true, ..self }
    }

    const fn as_stranger(self) -> Attack {
        Attack { attaches: false, ..self }
    }

    /// Compares the attack with this program, which waits in the same way.
    const fn beside(self, baseline: &Attack) -> Attack {
        Attack { baseline: Some(baseline.name), ..self }
    }

    /// Names a program that does not touch the server.
    const fn alone(name: &'static str, act: fn(&Field) -> io::Result<Deeds>) -> Attack {
        Attack { baseline: None, ..attack(name, act).as_stranger() }
    }

    /// Overwrites random words of all memory that the attacker may write.
    pub const OVERWRITE: Attack = attack("overwrite", memory::overwrite);

    /// No attack, but a program that computes in `threads`, by default in one that never sleeps: it shows the
    /// scheduler's share of a neighbour's loss.
    pub const BUSY: Attack = Attack::alone("busy", busy);

    /// No attack on the server: the program builds the wait queues of `waiters-epoll` on a socket
    /// of its own. It shows the kernel's share of a neighbour's loss.
    pub const WAITERS_ALONE: Attack = Attack::alone("waiters-alone", waiters::alone);

    /// No attack on the server: the program builds the wait queues of `waiters-poll` on a socket of
    /// its own.
    pub const POLLERS_ALONE: Attack = Attack::alone("waiters-poll-alone", waiters::polls_alone);

    /// No attack on the server: the program locks a file of its own and closes copies of it, as `record-locks` makes
    /// the server close copies of a locked file.
    pub const LOCKS_ALONE: Attack = Attack::alone("record-locks-alone", locks::alone);

    /// The programs that do not touch the server. The benchmark compares each attack with one of
    /// them.
    pub const BASELINES: [Attack; 4] =
        [Attack::BUSY, Attack::WAITERS_ALONE, Attack::POLLERS_ALONE, Attack::LOCKS_ALONE];

    /// All attacks.
    pub const ALL: [Attack; 38] = [
        attack("doorbell-splice", doorbell::splice),
        attack("doorbell-read", doorbell::read).with_fuse(),
        attack("doorbell-end-splice", doorbell::end_spliced),
        attack("doorbell-end-read", doorbell::end_read).with_fuse(),
        attack("doorbell-options", doorbell::options),
        attack("waiters-epoll", waiters::epolls).beside(&Attack::WAITERS_ALONE),
        attack("waiters-poll", waiters::polls).beside(&Attack::POLLERS_ALONE),
        attack("waiters-nested", waiters::nested).beside(&Attack::POLLERS_ALONE),
        attack("waiters-control", waiters::control).beside(&Attack::WAITERS_ALONE),
        attack("waiters-wake", waiters::wake).beside(&Attack::WAITERS_ALONE),
        attack("linger", control::linger).as_stranger(),
        attack("linger-granted", control::linger),
        attack("reports", control::reports),
        attack("reports-large", control::large_reports),
        attack("malformed", control::malformed),
        attack("flood", control::flood),
        attack("flood-stranger", control::flood).as_stranger(),
        attack("flood-waiters", waiters::flood).beside(&Attack::POLLERS_ALONE).as_stranger(),
        attack("flood-nested", waiters::nested_flood).beside(&Attack::POLLERS_ALONE).as_stranger(),
        attack("hoard", control::hoard),
        attack("endpoints", control::endpoints),
        attack("mapping-write", memory::write_while_sealed).with_fuse(),
        attack("large-memories", memory::large),
        attack("small-memories", memory::come_and_go_small),
        Attack::OVERWRITE,
        attack("page-out", memory::page_out),
        attack("page-collapse", memory::collapse),
        attack("page-collapse-wide", memory::collapse_wide),
        attack("page-remove", removed::remove),
        attack("answers", control::unread_answers),
        attack("report-tail", control::report_tail),
        attack("shared-importer", shared::importer).with_fuse(),
        attack("shared-owner", shared::owner).with_fuse(),
        attack("shared-readable", shared::owner_of_readable).with_fuse(),
        attack("record-locks", locks::record_locks).beside(&Attack::LOCKS_ALONE),
        attack("memories", apertures::memories),
        attack("tripwires", apertures::tripwires),
        attack("asked", apertures::asked),
    ];

    /// Returns the attack of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Attack> {
        Attack::ALL.into_iter().chain(Attack::BASELINES).find(|one| one.name == name)
    }

    /// Attacks until the time is over or the standard input ends, and returns the attack's deeds.
    /// Must be called while the process has one thread.
    ///
    /// # Errors
    /// A refusal of the kernel or the server before the attack began.
    pub fn run(self, field: &Field) -> io::Result<Deeds> {
        sys::raise_descriptor_limit()?;
        (self.act)(field)
    }
}

/// A thread of `busy`: in each period it is runnable for a part of the time, as the scheduler sees it, and then sleeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BusyThread {
    /// The part of the time, 0 to 1.
    pub runnable: f64,
    /// The time from one sleep to the next.
    pub period: Duration,
}

impl std::fmt::Display for BusyThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.4}/{}us", self.runnable, self.period.as_micros())
    }
}

impl BusyThread {
    /// Reads what [`Display`](std::fmt::Display) writes.
    fn read(text: &str) -> Option<BusyThread> {
        let (runnable, period) = text.split_once('/')?;
        let period = Duration::from_micros(period.strip_suffix("us")?.parse().ok()?);
        let runnable = runnable.parse().ok().filter(|part| (0.0..=1.0).contains(part))?;
        Some(BusyThread { runnable, period })
    }

    /// Computes and sleeps until the attack is to end. Returns how often it looked at the time.
    fn run(self, field: &Field) -> u64 {
        let (mut looks, mut since) = (0, Instant::now());
        while !field.over() {
            looks += 1;
            if self.runnable < 1.0 && since.elapsed() >= self.period.mul_f64(self.runnable) {
                std::thread::sleep(self.period.saturating_sub(since.elapsed()));
                since = Instant::now();
            }
        }
        looks
    }
}

fn busy(field: &Field) -> io::Result<Deeds> {
    field.begun();
    if field.threads.is_empty() {
        field.sit();
        return Ok(vec![("looks", 0)]);
    }
    let looks = std::thread::scope(|scope| {
        let threads: Vec<_> =
            field.threads.iter().map(|one| scope.spawn(|| one.run(field))).collect();
        threads.into_iter().map(|one| one.join().unwrap_or(0)).sum()
    });
    Ok(vec![("looks", looks)])
}

/// The target of an attack, and its duration.
#[derive(Clone, Debug)]
pub struct Field {
    socket: PathBuf,
    until: Instant,
    fuse: PathBuf,
    size: Option<u64>,
    threads: Vec<BusyThread>,
}

impl Field {
    /// Creates a field from a server's socket and the attack's longest duration.
    #[must_use]
    pub fn new(socket: &Path, at_most: Duration) -> Field {
        Field {
            socket: socket.to_owned(),
            until: Instant::now() + at_most,
            fuse: "/dev/fuse".into(),
            size: None,
            threads: vec![BusyThread { runnable: 1.0, period: Duration::from_millis(1) }],
        }
    }

    /// Opens another device node than `/dev/fuse`, which some systems close to ordinary users.
    #[must_use]
    pub fn fuse(self, node: &Path) -> Field {
        Field { fuse: node.to_owned(), ..self }
    }

    /// Uses this many kernel objects instead of the attack's own number.
    #[must_use]
    pub fn size(self, size: u64) -> Field {
        Field { size: Some(size), ..self }
    }

    /// Reads `fuse=NODE`, `size=N` and `threads=PART/PERIODus,...`.
    ///
    /// # Errors
    /// The option that is unknown.
    pub fn options(mut self, options: &[&str]) -> Result<Field, String> {
        for option in options {
            self = match option.split_once('=') {
                Some(("fuse", node)) => self.fuse(Path::new(node)),
                Some(("size", size)) => {
                    self.size(size.parse().map_err(|_| format!("no number: {option}"))?)
                }
                Some(("threads", threads)) => {
                    let each = threads.split(',').filter(|one| !one.is_empty());
                    let threads: Option<_> = each.map(BusyThread::read).collect();
                    let threads = threads.ok_or_else(|| format!("no threads: {option}"))?;
                    Field { threads, ..self }
                }
                _ => return Err(format!("no option {option}")),
            };
        }
        Ok(self)
    }

    fn size_or(&self, own: u64) -> u64 {
        self.size.unwrap_or(own)
    }

    /// Reports to the parent that the attack has begun.
    fn begun(&self) {
        println!("attacking");
    }

    /// `true` when the attack is to end.
    fn over(&self) -> bool {
        Instant::now() >= self.until || sys::input_ended()
    }

    /// Waits until the attack is to end.
    fn sit(&self) {
        self.sit_for(Duration::MAX);
    }

    /// Waits for a time, or until the attack is to end.
    fn sit_for(&self, at_most: Duration) {
        let since = Instant::now();
        while since.elapsed() < at_most && !self.over() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
