//! Threads that wait for sockets. 10 000 idle connections in one thread, by `Poller`, by tokio and by mio: the memory of each,
//! the calls of the allocator, and the instructions of a wait, which do not grow with the number of idle connections. And
//! wake-ups through a sleeping engine, of which none is lost. Counts, no times.
//!
//! The allocator counts for the whole process, and the instructions are those of a child, so this program has its own `main`.

mod asleep;
mod ways;
mod world;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath_testkit::{Allocations, CountingAllocator, StepWatch, Unavailable};
use world::World;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Few connections, and many.
const FEW: usize = 100;
const MANY: usize = 10_000;
/// The first argument of a child.
const CHILD: &str = "idle-child";
/// Waits of a child before those that count.
const WARM: usize = 8;
/// The most waits that are counted, until one is as short as it should be: some do what is due once in a while, such as
/// growing a list.
const COUNTED: usize = 4;

/// The most bytes and calls of the allocator for a connection, with both of its ends and their entries in both stacks.
/// docs/sockets.md has half of the bytes.
const MOST_BYTES: u64 = 3600;
const MOST_CALLS: u64 = 15;
/// The same for a registration, by the way to wait.
const MOST_OF_WAYS: [(u64, u64); 3] = [(150, 4), (320, 8), (150, 4)];
/// Descriptors of this program beside those of connections.
const OTHER_DESCRIPTORS: u64 = 100;

/// Returns the bytes in use and the calls of the allocator for each of `count` things, rounded up.
fn each(counted: Allocations, count: usize) -> (u64, u64) {
    let bytes = u64::try_from(counted.live_bytes()).unwrap_or(0);
    (bytes.div_ceil(count as u64), (counted.allocated + counted.reallocated).div_ceil(count as u64))
}

/// A connection, and its registration in each way, has a bounded size.
fn memory(names: &[&str]) {
    for (name, most) in names.iter().zip(MOST_OF_WAYS) {
        let (mut world, mut accepted) = (World::new(MANY), Vec::with_capacity(MANY));
        // What the first connections allocate for all.
        world.connect(&mut accepted, FEW);
        let before = ALLOCATOR.of_process();
        world.connect(&mut accepted, MANY - FEW);
        let between = ALLOCATOR.of_process();
        let mut waiting = ways::wait_for(name, &world, accepted);
        let after = ALLOCATOR.of_process();
        let (bytes, calls) = each(between.since(&before), MANY - FEW);
        println!("a connection, both ends: {bytes} bytes, {calls} calls of the allocator");
        assert!(bytes <= MOST_BYTES && calls <= MOST_CALLS);
        let (bytes, calls) = each(after.since(&between), MANY);
        println!("{name}, for each connection: {bytes} bytes, {calls} calls of the allocator");
        assert!(bytes <= most.0 && calls <= most.1);
        world.send();
        waiting.receive();
    }
}

/// A child that has made its connections. A byte waits to be received.
struct Counted {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Counted {
    fn start(name: &str, count: usize) -> Counted {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([CHILD, name, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let mut from = BufReader::new(child.stdout.take().unwrap());
        read_line(&mut from);
        Counted { child, to, from }
    }

    /// Has the child do its next part.
    fn go_on(&mut self) {
        self.to.write_all(b"\n").unwrap();
        read_line(&mut self.from);
    }

    /// Returns the instructions of the child for the wait for a byte. Then the next byte waits.
    fn instructions(&mut self) -> Result<u64, towpath_testkit::Error> {
        let settle = |watch: &StepWatch| {
            let (quiet, at_most) = (Duration::from_millis(20), Duration::from_secs(60));
            watch.settle(quiet, at_most).expect("the child sleeps")
        };
        let watch = StepWatch::start(self.child.id())?;
        let before = settle(&watch);
        self.go_on();
        let count = settle(&watch).since(&before).instructions;
        // The rest is not stepped through, which would take long.
        drop(watch);
        self.go_on();
        Ok(count)
    }

    fn end(mut self) {
        drop(self.to);
        assert!(self.child.wait().unwrap().success());
    }
}

fn read_line(from: &mut impl BufRead) {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    assert_eq!(line, "done\n", "the child has failed");
}

/// Makes connections, and then receives a byte or sends one, in turn, for each line.
fn child(name: &str, count: usize) {
    let (mut world, mut accepted) = (World::new(count), Vec::with_capacity(count));
    world.connect(&mut accepted, count);
    let mut waiting = ways::wait_for(name, &world, accepted);
    world.send();
    for _ in 0..WARM {
        waiting.receive();
        world.settle();
        world.send();
    }
    println!("done");
    for (_, number) in std::io::stdin().lines().zip(0_u64..) {
        if number.is_multiple_of(2) {
            waiting.receive();
        } else {
            world.settle();
            world.send();
        }
        println!("done");
    }
}

/// The instructions of a wait for a byte that was sent do not depend on the idle connections.
fn waits(names: &[&str]) -> Result<(), towpath_testkit::Error> {
    for name in names {
        let mut with_few = Counted::start(name, FEW);
        let few = with_few.instructions()?;
        with_few.end();
        let mut with_many = Counted::start(name, MANY);
        // Hash tables of another size are searched in another number of steps.
        let most = few + few / 8;
        let mut counts = Vec::new();
        while counts.len() < COUNTED && counts.iter().all(|count| *count > most) {
            counts.push(with_many.instructions()?);
        }
        with_many.end();
        println!(
            "{name}, a wait: {few} instructions with {FEW} connections, {counts:?} with {MANY}"
        );
        assert!(
            counts.iter().any(|count| *count <= most),
            "the wait grows with the idle connections"
        );
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [CHILD, name, count] => return child(name, count.parse().unwrap()),
        ["--list", ..] => return println!("memory: test\nwaits: test\nno_wake_up_is_lost: test"),
        ["no_wake_up_is_lost", ..] => return asleep::no_wake_up_is_lost(),
        _ => {}
    }
    asleep::no_wake_up_is_lost();
    println!("test no_wake_up_is_lost ... ok");
    let mut names = &ways::NAMES[..];
    // Each registration with mio has a descriptor.
    if limit.maximum.is_some_and(|most| most < MANY as u64 + OTHER_DESCRIPTORS) {
        let cause = format!("a process may have {:?} descriptors", limit.maximum);
        let remedy =
            format!("raise the hard limit: ulimit -Hn {}", MANY as u64 + OTHER_DESCRIPTORS);
        towpath_testkit::skip("mio", &Unavailable { cause, remedy });
        names = &names[..2];
    }
    memory(names);
    println!("test memory ... ok");
    match waits(names) {
        Ok(()) => println!("test waits ... ok"),
        Err(error) => match error.unavailable() {
            Some(why) => towpath_testkit::skip("waits", why),
            None => panic!("{error}"),
        },
    }
}
