//! Registrations, waits and tasks against packets that arrive. Loom reports a thread that waits for ever.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use loom::thread;
use towpath_stack::{SocketId, Stack};

use crate::lock::lock;
use crate::readiness::{Interest, Ready, Trigger};
use crate::ready_set::{Events, Member, Set, Sockets};
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};
use crate::watchers::WatcherList;

/// A network with one socket, whose packets are counted.
struct Network {
    /// What the stack's lock protects: the packets that wait.
    waiting: Mutex<u32>,
    watchers: WatcherList,
}

impl Network {
    fn new() -> Arc<Network> {
        Arc::new(Network { waiting: Mutex::new(0), watchers: WatcherList::default() })
    }

    fn ready(waiting: u32) -> Ready {
        if waiting > 0 { Ready::READABLE } else { Ready::EMPTY }
    }

    /// Does what a round does with a packet.
    fn deliver(&self) {
        let mut waiting = lock(&self.waiting);
        *waiting += 1;
        let is_watched = self.watchers.is_watched();
        let ready = Network::ready(*waiting);
        drop(waiting);
        if is_watched {
            self.watchers.tell(ready);
        }
    }

    /// Reads all packets. Returns their number.
    fn read(&self) -> u32 {
        std::mem::take(&mut *lock(&self.waiting))
    }

    /// Does what `Poller::register` does.
    fn register(self: &Arc<Network>, set: &Arc<Set>, trigger: Trigger) -> Arc<Member> {
        let mut watchers = self.watchers.lock();
        let network: Arc<dyn Sockets> = self.clone();
        let member = Member::new(set, (network, socket()), (7, Interest::READABLE, trigger));
        watchers.members.push(member.clone());
        drop(watchers);
        member.ready(self.readiness(socket()));
        member
    }
}

impl Sockets for Network {
    fn readiness(&self, _: SocketId) -> Ready {
        Network::ready(*lock(&self.waiting))
    }

    fn is_driven_by_program(&self) -> bool {
        false
    }

    fn turn(&self) -> io::Result<()> {
        unreachable!("a thread of the library drives")
    }

    fn work_fd(&self) -> io::Result<BorrowedFd<'_>> {
        unreachable!("a thread of the library drives")
    }
}

/// Returns an id, of which the models have one.
fn socket() -> SocketId {
    let config = towpath_stack::Config::new([2, 0, 0, 0, 0, 1]);
    let mut stack = Stack::new(config, towpath_stack::Instant::from_micros(0)).unwrap();
    SocketId::Udp(stack.udp_bind("0.0.0.0:7".parse().unwrap()).unwrap())
}

/// Waits until `expected` packets are read.
fn read_all(network: &Network, set: &Set, expected: u32) {
    let (mut got, mut events) = (0, Events::with_capacity(4));
    while got < expected {
        set.wait(&mut events, None).unwrap();
        got += network.read();
    }
    assert_eq!(got, expected);
}

fn a_packet_that_arrives_during_a_registration(trigger: Trigger) {
    loom::model(move || {
        let (network, set) = (Network::new(), Arc::new(Set::new().unwrap()));
        let arrival = thread::spawn({
            let network = network.clone();
            move || network.deliver()
        });
        network.register(&set, trigger);
        read_all(&network, &set, 1);
        arrival.join().unwrap();
    });
}

#[test]
fn a_packet_during_a_registration_wakes_by_level() {
    a_packet_that_arrives_during_a_registration(Trigger::Level);
}

#[test]
fn a_packet_during_a_registration_wakes_by_an_edge() {
    a_packet_that_arrives_during_a_registration(Trigger::Edge);
}

/// Without the check of the present state, a packet that arrived before the registration wakes no thread.
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_check_at_a_registration_a_packet_is_missed() {
    loom::model(|| {
        let (network, set) = (Network::new(), Arc::new(Set::new().unwrap()));
        let arrival = thread::spawn({
            let network = network.clone();
            move || network.deliver()
        });
        let mut watchers = network.watchers.lock();
        let sockets: Arc<dyn Sockets> = network.clone();
        watchers.members.push(Member::new(
            &set,
            (sockets, socket()),
            (7, Interest::READABLE, Trigger::Edge),
        ));
        drop(watchers);
        read_all(&network, &set, 1);
        arrival.join().unwrap();
    });
}

fn packets_between_waits(trigger: Trigger) {
    loom::model(move || {
        let (network, set) = (Network::new(), Arc::new(Set::new().unwrap()));
        network.register(&set, trigger);
        let arrivals = thread::spawn({
            let network = network.clone();
            move || {
                network.deliver();
                network.deliver();
            }
        });
        read_all(&network, &set, 2);
        arrivals.join().unwrap();
    });
}

#[test]
fn packets_between_waits_wake_by_level() {
    packets_between_waits(Trigger::Level);
}

#[test]
fn packets_between_waits_wake_by_edges() {
    packets_between_waits(Trigger::Edge);
}

/// A one-shot member that is enabled again after each read.
#[test]
fn a_one_shot_member_misses_nothing_once_it_is_enabled() {
    loom::model(|| {
        let (network, set) = (Network::new(), Arc::new(Set::new().unwrap()));
        let member = network.register(&set, Trigger::OneShot);
        let arrivals = thread::spawn({
            let network = network.clone();
            move || {
                network.deliver();
                network.deliver();
            }
        });
        let (mut got, mut events) = (0, Events::with_capacity(4));
        while got < 2 {
            set.wait(&mut events, None).unwrap();
            got += network.read();
            member.change(7, Interest::READABLE, Trigger::OneShot);
            member.ready(network.readiness(socket()));
        }
        arrivals.join().unwrap();
    });
}

#[test]
fn no_event_follows_the_end_of_a_member() {
    loom::model(|| {
        let (network, set) = (Network::new(), Arc::new(Set::new().unwrap()));
        network.register(&set, Trigger::Level);
        let arrival = thread::spawn({
            let network = network.clone();
            move || network.deliver()
        });
        network.watchers.end();
        let mut events = Events::with_capacity(4);
        assert_eq!(set.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        arrival.join().unwrap();
        assert_eq!(set.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
    });
}

/// Of two threads that wait, one gets the event of a packet, and the other one that of the next.
#[test]
fn two_threads_share_the_events_of_a_set() {
    loom::model(|| {
        let (network, set) = (Network::new(), Arc::new(Set::new().unwrap()));
        network.register(&set, Trigger::OneShot);
        let waiting = thread::spawn({
            let set = set.clone();
            move || set.wait(&mut Events::with_capacity(4), None).unwrap()
        });
        network.deliver();
        set.wake();
        let mine = set.wait(&mut Events::with_capacity(4), Some(Duration::ZERO)).unwrap();
        // The wake or the event ended the other thread's wait.
        assert!(mine + waiting.join().unwrap() <= 1);
    });
}

/// A task's waker, which sets a flag.
struct Task {
    is_woken: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        let guard = lock(&self.lock);
        self.is_woken.store(true, Ordering::Relaxed);
        self.changed.notify_one();
        drop(guard);
    }
}

#[test]
fn a_packet_during_a_tasks_poll_wakes_it() {
    loom::model(|| {
        let network = Network::new();
        let arrival = thread::spawn({
            let network = network.clone();
            move || network.deliver()
        });
        let task = Arc::new(Task {
            is_woken: AtomicBool::new(false),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        });
        let waker = Waker::from(task.clone());
        let mut got = 0;
        while got == 0 {
            got += network.read();
            if got > 0 {
                break;
            }
            network.watchers.lock().tasks.add(Interest::READABLE, &waker);
            // What arrived before the task was known woke nothing.
            got += network.read();
            if got > 0 {
                break;
            }
            let mut guard = lock(&task.lock);
            while !task.is_woken.swap(false, Ordering::Relaxed) {
                guard = task.changed.wait(guard).unwrap();
            }
        }
        arrival.join().unwrap();
    });
}
