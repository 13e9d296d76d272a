//! The device as a whole: reset, link, start and stop. The queues' own registers belong to [`super::queue`].

mod reset;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::filters::Filters;
use super::interrupts::Interrupts;
use super::names::*;
use super::rss::{self, Steering};
use super::statistics::Statistics;
use crate::address::PciAddress;
use crate::registers::{GONE, Register, Registers};
use crate::signals::signal;

/// The time in which accesses of memory end.
const QUIET: Duration = Duration::from_millis(10);
/// The number of the queue that a session can have to itself, and its bit in [`Filters::open`].
pub(super) const OWN_QUEUE: u32 = 1;
const OWN: u8 = 1 << OWN_QUEUE;
/// The registers of a queue that stop it with a zero.
const QUEUE_REGISTERS: [Register; 6] = [RDLEN, RDH, RDT, TDLEN, TDH, TDT];

/// What a card signals, and how it chooses the queue of a packet.
#[derive(Debug)]
pub(super) struct Wiring {
    /// The kernel signals it at each change of the link, and the engine after a reset.
    pub(super) link: OwnedFd,
    /// The kernel signals each at the interrupts of a queue, and another queue's engine after a reset.
    pub(super) queues: Vec<Arc<OwnedFd>>,
    pub(super) steering: Steering,
    /// Shared with the address space: `true` once this process leaves the running card to the next one.
    pub(super) leaves: Arc<AtomicBool>,
}

/// An 82574L. The control thread and the engine share it.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) registers: Registers,
    address: PciAddress,
    pub(super) interrupts: Interrupts,
    /// Registers that the control thread and the engine write are written under this lock.
    filters: Mutex<Filters>,
    statistics: Mutex<Statistics>,
    /// The card's own address, once a reset has read it.
    own_address: OnceLock<[u8; 6]>,
    wiring: Wiring,
    /// The number of resets. A queue that another one's reset has stopped notices by it.
    resets: AtomicU32,
    /// `true` if a keeper holds what the next server needs to go on with the card.
    is_kept: AtomicBool,
}

impl Card {
    /// Makes a card from its registers.
    pub(super) fn new(
        registers: Registers,
        address: PciAddress,
        interrupts: Interrupts,
        wiring: Wiring,
    ) -> Card {
        Card {
            registers,
            address,
            interrupts,
            filters: Mutex::default(),
            statistics: Mutex::default(),
            own_address: OnceLock::new(),
            wiring,
            resets: AtomicU32::new(0),
            is_kept: AtomicBool::new(false),
        }
    }

    pub(super) fn link_interrupt(&self) -> &OwnedFd {
        &self.wiring.link
    }

    /// Returns what the kernel signals at the interrupts of each queue.
    pub(super) fn queue_interrupts(&self) -> &[Arc<OwnedFd>] {
        &self.wiring.queues
    }

    /// Has the control thread look at the link.
    pub(super) fn signal_link(&self) {
        signal(&self.wiring.link);
    }

    fn read(&self, register: Register) -> u32 {
        self.registers.read(register)
    }

    fn write(&self, register: Register, value: u32) {
        self.registers.write(register, value);
    }

    /// Returns the number of packets that the device dropped because its packet buffer was full; `None` while
    /// another thread reads the statistics.
    pub(super) fn missed(&self) -> Option<u64> {
        let mut sums = self.statistics.try_lock().ok()?;
        Some(sums.count_missed(&self.registers))
    }

    /// Returns what the device has counted, with the names.
    pub(super) fn statistics(&self) -> Vec<(&'static str, u64)> {
        if self.is_gone() { Vec::new() } else { self.sums().count(&self.registers, Instant::now()) }
    }

    fn sums(&self) -> MutexGuard<'_, Statistics> {
        self.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the device does not answer any more.
    pub(super) fn is_gone(&self) -> bool {
        self.read(STATUS) == GONE
    }

    /// Returns the speed of the link, in Mbit/s.
    pub(super) fn megabits(&self) -> u32 {
        match self.read(STATUS) & STATUS_SPEED {
            0 => 10,
            STATUS_SPEED_100 => 100,
            _ => 1000,
        }
    }

    /// Returns `true` if the link is up.
    pub(super) fn is_link_up(&self) -> bool {
        let status = self.read(STATUS);
        status != GONE && status & STATUS_LINK_UP != 0
    }

    /// Returns how often the card was reset.
    #[inline]
    pub(super) fn resets(&self) -> u32 {
        // SYNC: an engine that sees another number sees the card stopped. Partner: the end of `reset_locked`.
        self.resets.load(Ordering::Acquire)
    }

    /// Returns the card's own address, which the first reset has read.
    pub(super) fn own_address(&self) -> [u8; 6] {
        self.own_address.get().copied().unwrap_or_default()
    }

    fn filters(&self) -> MutexGuard<'_, Filters> {
        self.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the card receive packets to an address. Returns `true` if it has room.
    pub(super) fn add_address(&self, octets: [u8; 6]) -> bool {
        self.filters().add(&self.registers, octets)
    }

    /// Returns `true` if the card has room for `wanted` more addresses after the removal of `removed` addresses.
    pub(super) fn would_have_room(&self, wanted: usize, removed: usize) -> bool {
        self.filters().would_have_room(wanted, removed)
    }

    /// Ends the reception of packets to an address.
    pub(super) fn remove_address(&self, octets: [u8; 6]) {
        self.filters().remove(&self.registers, |one| one.octets == octets);
    }

    /// Lets the card receive packets to all groups if `is_on`, or ends that.
    pub(super) fn receive_groups(&self, is_on: bool) {
        self.filters().set_groups(&self.registers, is_on);
    }

    /// Lets the card receive every packet if `is_on`, or ends that.
    pub(super) fn receive_everything(&self, is_on: bool) {
        self.filters().set_everything(&self.registers, is_on);
    }

    /// Calls `set`, which writes the registers of a queue, and starts both directions once those of all open queues are
    /// written. Does nothing if the card was reset more often than so many times: then the queue follows that
    /// reset, too.
    pub(super) fn start(&self, queue: u32, resets: u32, set: impl FnOnce()) {
        let mut filters = self.filters();
        if filters.needs_reset {
            // A session's queue that opens while the server ends.
            return;
        }
        filters.open |= 1 << queue;
        if self.resets() != resets {
            return;
        }
        set();
        filters.set |= 1 << queue;
        if filters.directs && queue == OWN_QUEUE {
            rss::direct(&self.registers, true);
        }
        self.run_if_set(&mut filters);
        drop(filters);
        self.interrupts.start(&self.registers);
        // A change of the link may have been cleared with the causes.
        self.signal_link();
    }

    /// Has queue 1, a session's own, receive all packets of IP, or none.
    pub(super) fn direct(&self, to_second: bool) {
        self.direct_locked(&mut self.filters(), to_second);
    }

    fn direct_locked(&self, filters: &mut Filters, to_second: bool) {
        filters.directs = to_second && filters.open & OWN != 0;
        // Until the queue has followed a reset, it has no ring.
        rss::direct(&self.registers, filters.directs && filters.set & OWN != 0);
        // The read returns once the device has the writes.
        let _ = self.read(STATUS);
    }

    /// Starts both directions once the registers of all open queues are written.
    fn run_if_set(&self, filters: &mut Filters) {
        if filters.open != 0 && filters.set == filters.open {
            filters.is_running = true;
            self.write(TCTL, TCTL_DEFAULT | TCTL_ENABLE);
            self.write(RCTL, filters.reception());
        }
    }

    /// Closes queue 1, a session's own, while the other one runs: the device then reaches no memory for it.
    pub(super) fn close_own(&self) {
        let mut filters = self.filters();
        filters.open &= !OWN;
        filters.set &= !OWN;
        self.direct_locked(&mut filters, false);
        if !filters.is_running && !filters.needs_reset {
            // The card waits for this queue, which has not followed a reset.
            self.run_if_set(&mut filters);
        }
        drop(filters);
        self.write(IMC, self.interrupts.causes(OWN_QUEUE, true));
        // A packet that the device took before may still be on its way into memory. No other queue uses the
        // registers below, and the caller opens this one again.
        sleep(QUIET);
        for register in QUEUE_REGISTERS {
            self.write(register.at(OWN_QUEUE, QUEUE_STRIDE), 0);
        }
    }

    /// Returns `true` if both directions run, with tags apart from packets, and a queue with these rings, which an
    /// earlier server has set.
    pub(super) fn runs_with(&self, queue: u32, rx: (u64, u32), tx: (u64, u32)) -> bool {
        let is_on = self.read(RCTL) & RCTL_ENABLE != 0
            && self.read(TCTL) & TCTL_ENABLE != 0
            && self.read(CTRL) & CTRL_VLAN_MODE != 0;
        let is = |(at, bytes): (u64, u32), [low, high, size]: [Register; 3]| {
            let read = |register: Register| self.read(register.at(queue, QUEUE_STRIDE));
            let found = u64::from(read(low)) | u64::from(read(high)) << 32;
            found == at && read(size) == bytes
        };
        // A card that is gone has all of these bits.
        let answers = !self.is_gone();
        answers && is_on && is(rx, [RDBAL, RDBAH, RDLEN]) && is(tx, [TDBAL, TDBAH, TDLEN])
    }

    /// Goes on with the running card of an earlier server, and with all that it receives. `own_address`: the
    /// card's own address, in whose place filters are.
    pub(super) fn go_on(&self, own_address: [u8; 6]) {
        let _ = self.own_address.set(own_address);
        self.filters().go_on(&self.registers);
        // The link may have changed while no server ran.
        self.signal_link();
    }

    /// Ends the reception of what only an earlier server received.
    pub(super) fn remove_left_filters(&self) {
        self.filters().remove_left(&self.registers);
    }

    /// Notes that a keeper holds what the next server needs to go on with the card.
    pub(super) fn set_kept(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Leaves the running card to the next process, if that can go on with it: from now on, [`Card::stop`] does
    /// nothing, and no memory is unmapped.
    pub(super) fn leave(&self) {
        if self.is_kept.load(Ordering::Relaxed) {
            self.wiring.leaves.store(true, Ordering::Relaxed);
        }
    }

    /// Leaves the card in a panic. A packet may be its cause, so the next server drops those that wait.
    pub(super) fn leave_in_panic(&self) {
        if std::thread::panicking() {
            self.leave();
        }
    }

    /// Returns `true` if this process leaves the card to the next one.
    pub(super) fn leaves(&self) -> bool {
        self.wiring.leaves.load(Ordering::Relaxed)
    }

    /// Stops both directions, and all interrupts. Does nothing once this process leaves the card.
    pub(super) fn stop(&self) {
        if self.leaves() {
            return;
        }
        let mut filters = self.filters();
        (filters.is_running, filters.needs_reset) = (false, true);
        (filters.open, filters.set) = (0, 0);
        self.mask_interrupts();
        self.stop_queues();
    }

    fn mask_interrupts(&self) {
        self.write(IMC, u32::MAX);
        self.write(EIAC, 0);
        self.write(IAM, 0);
        // Reading clears the causes. On some models, only a write clears them.
        let _ = self.read(ICR);
        self.write(ICR, u32::MAX);
    }

    /// Stops both directions, and waits for accesses of memory to end, and for interrupts that are deferred: QEMU 7
    /// aborts if its vectors are taken away before.
    fn stop_queues(&self) {
        self.write(RCTL, 0);
        self.registers.change(TCTL, TCTL_ENABLE, 0);
        let _ = self.read(STATUS);
        sleep(QUIET.max(self.interrupts.longest()));
        for queue in 0..2 {
            for register in QUEUE_REGISTERS {
                self.write(register.at(queue, QUEUE_STRIDE), 0);
            }
        }
    }
}

/// Makes a card over plain memory, in which no register changes by itself.
#[cfg(test)]
pub(super) fn double() -> Card {
    double_of(2)
}

/// Makes such a card with so many queues, over which it spreads packets.
#[cfg(test)]
pub(super) fn double_of(queues: usize) -> Card {
    let spread = Steering::Spread([5; 10]);
    double_with(queues, if queues > 1 { spread } else { Steering::First })
}

/// Makes such a card with an engine's queue and a session's.
#[cfg(test)]
pub(super) fn double_with_own() -> Card {
    double_with(2, Steering::Directed)
}

#[cfg(test)]
fn double_with(queues: usize, steering: Steering) -> Card {
    let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let queues = (0..queues).map(|_| Arc::new(event())).collect();
    let leaves = Arc::default();
    let wiring = Wiring { link: event(), queues, steering, leaves };
    let address = "0000:00:03.0".parse().unwrap();
    let registers = Registers::double(0x20000);
    registers.write(CTRL, CTRL_VLAN_MODE);
    Card::new(registers, address, Interrupts::vectors(2, 2), wiring)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::PciError;

    #[test]
    fn a_card_that_does_not_answer_is_reported() {
        let card = double();
        card.write(STATUS, GONE);
        assert!(card.is_gone() && !card.is_link_up());
        let error = card.reset().unwrap_err();
        assert!(matches!(error, PciError::NoAnswer { .. }), "{error}");
    }

    #[test]
    fn a_reset_without_an_end_is_reported() {
        let error = double().reset().unwrap_err().to_string();
        assert!(error.contains("reading its settings") && error.contains("20 ms"), "{error}");
    }

    #[test]
    fn a_reset_sets_every_register_that_matters() {
        let card = double();
        card.write(EECD, EECD_AUTO_READ_DONE);
        for stale in [RCTL, RDT, TDT, TDLEN.at(1, QUEUE_STRIDE), MRQC, MTA.at(127, 4), EIAC] {
            card.write(stale, 7);
        }
        assert!(card.add_address([2, 3, 4, 5, 6, 7]));
        card.write(RAL, 0x1234_5452);
        card.write(RAH, RAH_VALID | 0x9a78);
        card.reset().unwrap();
        assert_eq!(card.own_address(), [0x52, 0x54, 0x34, 0x12, 0x78, 0x9a]);
        for stale in [RCTL, RDT, TDT, TDLEN.at(1, QUEUE_STRIDE), MTA.at(127, 4), EIAC] {
            assert_eq!(card.read(stale), 0, "{stale:?}");
        }
        assert_eq!((card.read(MRQC), card.resets()), (MRQC_BOTH, 1));
        assert_eq!((card.read(VET), card.read(IMC)), (0x8100, u32::MAX));
        assert_eq!((card.read(RAL), card.read(RAH)), (0x0504_0302, 0x8000_0706));
        assert_eq!(card.read(RAH.at(1, 8)), 0);
        assert_eq!(card.read(TARC.at(1, QUEUE_STRIDE)) & 1 << 10, 1 << 10);
    }

    #[test]
    fn filters_of_an_earlier_server_hold_until_the_end_of_its_sessions() {
        let earlier = double();
        let address = |number: u8| [2, 0, 0, 0, 0, number];
        assert!((0..16).all(|number| earlier.add_address(address(number))));
        assert!(!earlier.would_have_room(1, 0) && !earlier.would_have_room(2, 1));
        assert!(earlier.would_have_room(2, 2));
        earlier.start(0, 0, || ());
        earlier.receive_groups(true);
        let card = double();
        for at in (0..0x20000).step_by(4).map(Register) {
            card.write(at, earlier.read(at));
        }
        card.go_on([9; 6]);
        assert_eq!(card.own_address(), [9; 6]);
        assert!(card.would_have_room(16, 0) && !card.would_have_room(17, 0));
        // The same place, and that of a filter which no resumed session needs.
        assert!(card.add_address(address(3)) && card.add_address(address(16)));
        card.receive_everything(true);
        assert_eq!(card.read(RAH.at(3, 8)), RAH_VALID | 3 << 8);
        assert_eq!(card.read(RAH.at(0, 8)), RAH_VALID | 16 << 8);
        assert_ne!(card.read(RCTL) & RCTL_ALL_MULTICAST, 0);
        card.remove_left_filters();
        let valid = (0..16).filter(|index| card.read(RAH.at(*index, 8)) & RAH_VALID != 0);
        assert_eq!(valid.collect::<Vec<_>>(), [0, 3]);
        card.receive_everything(false);
        assert_eq!(card.read(RCTL), RCTL_LONG | RCTL_STRIP_CRC | RCTL_ENABLE);
        card.set_kept();
        card.leave();
        card.stop();
        assert_ne!(card.read(RCTL), 0);
    }

    /// A session's own queue receives all packets of IP while it is open and its session alone, also after a
    /// reset.
    #[test]
    fn packets_are_directed_to_an_open_queue() {
        let card = double_with_own();
        card.write(EECD, EECD_AUTO_READ_DONE);
        card.reset().unwrap();
        let table = || card.read(RETA.at(31, 4));
        card.start(0, card.resets(), || ());
        card.direct(true);
        assert_eq!((card.read(MRQC), table()), (MRQC_BOTH, 0), "no such queue is open");
        let opens = || card.start(1, card.resets(), || card.write(RDLEN.at(1, QUEUE_STRIDE), 8192));
        opens();
        card.direct(true);
        assert_eq!(table(), 0x8080_8080);
        assert_ne!(card.read(RCTL) & RCTL_ENABLE, 0);
        card.reset().unwrap();
        assert_eq!(table(), 0, "the queue has not followed the reset");
        opens();
        assert_eq!((table(), card.read(RCTL)), (0x8080_8080, 0));
        card.start(0, card.resets(), || ());
        card.direct(false);
        assert_eq!(table(), 0);
        card.direct(true);
        card.close_own();
        assert_eq!((table(), card.read(RDLEN.at(1, QUEUE_STRIDE))), (0, 0));
        assert_ne!(card.read(RCTL) & RCTL_ENABLE, 0, "the engine's queue goes on");
    }

    /// A reset stops the card until all open queues have followed it, or are closed.
    #[test]
    fn a_card_does_not_wait_for_a_queue_that_closes() {
        let card = double_with_own();
        card.write(EECD, EECD_AUTO_READ_DONE);
        card.start(0, card.resets(), || ());
        card.start(1, card.resets(), || ());
        card.reset_once(0).unwrap();
        card.start(0, card.resets(), || ());
        assert_eq!(card.read(RCTL), 0);
        card.close_own();
        assert_ne!(card.read(RCTL) & RCTL_ENABLE, 0);
        // One that opens while the server ends does not start the card.
        card.stop();
        card.start(1, card.resets(), || panic!("the card has stopped"));
        card.close_own();
        assert_eq!(card.read(RCTL), 0);
    }

    /// The card runs again once both queues have set their registers.
    #[test]
    fn a_reset_stops_both_queues_once() {
        let card = double();
        card.write(EECD, EECD_AUTO_READ_DONE);
        card.start(0, card.resets(), || ());
        assert_ne!(card.read(RCTL) & RCTL_ENABLE, 0);
        card.start(1, card.resets(), || ());
        card.reset_once(0).unwrap();
        card.start(1, 0, || panic!("the registers of a queue that has not followed the reset"));
        card.reset_once(0).unwrap();
        assert_eq!((card.resets(), card.read(RCTL)), (1, 0));
        for queue in card.queue_interrupts() {
            assert!(rustix::io::read(&**queue, &mut [0; 8]).is_ok(), "its engine sleeps on");
        }
        card.start(1, card.resets(), || ());
        assert_eq!((card.read(RCTL) & RCTL_ENABLE, card.read(TCTL) & TCTL_ENABLE), (0, 0));
        card.start(0, card.resets(), || ());
        assert_ne!(card.read(RCTL) & RCTL_ENABLE, 0);
        assert_ne!(card.read(TCTL) & TCTL_ENABLE, 0);
    }

    #[test]
    fn a_card_with_other_rings_is_not_gone_on_with() {
        let card = double();
        for (register, value) in [
            (RCTL, RCTL_ENABLE),
            (TCTL, TCTL_ENABLE),
            (RDBAH, 1),
            (RDLEN, 8192),
            (TDBAL, 0x2000),
            (TDBAH, 1),
            (TDLEN, 8192),
        ] {
            card.write(register, value);
        }
        let (rx, tx) = ((1 << 32, 8192), ((1 << 32) + 0x2000, 8192));
        assert!(card.runs_with(0, rx, tx));
        assert!(!card.runs_with(0, (0, 8192), tx) && !card.runs_with(0, rx, (tx.0, 4096)));
        card.write(TCTL, 0);
        assert!(!card.runs_with(0, rx, tx), "it does not send");
        card.write(TCTL, TCTL_ENABLE);
        card.write(CTRL, 0);
        assert!(!card.runs_with(0, rx, tx), "it leaves tags in packets");
        card.write(CTRL, CTRL_VLAN_MODE);
        card.write(STATUS, GONE);
        assert!(!card.runs_with(0, rx, tx), "it does not answer");
    }
}
