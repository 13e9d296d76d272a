//! Hardware queues that sessions have to themselves.
//!
//! The device writes received packets of such a session into the session's receive buffers, and
//! reads packets to send in the session's transmit buffers, behind headers in the bounce buffers.
//! One mapping holds all three for the device. The application has none of the bounce buffers.

mod queue;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use towpath_device::{
    Armed, Completion, Counters, DeviceError, Kick, Packet, Received, Space, SpaceId, Spaces,
};
use towpath_memory::Mapping;

use crate::clock::clock_ns;
use crate::watchdog::{Verdict, Watchdog};

pub use queue::{BounceFile, Offsets, Own, OwnPlace, OwnQueue};

/// The most packets in flight on one queue: an eighth of the bounce buffers, so that a queue that
/// stalls leaves bounce buffers for other sessions.
pub(crate) const MAX_IN_FLIGHT: usize = 128;
/// The most on all of them: half of the bounce buffers.
pub(crate) const MAX_OF_ALL: usize = 512;

/// A session's own queue under service.
struct Served {
    key: u32,
    own: OwnQueue,
    space: SpaceId,
    /// `true` for packets that the device was not told of.
    unkicked: bool,
    /// Packets that the queue has, and those that it ever completed.
    in_flight: usize,
    completed: u64,
    watchdog: Watchdog,
    /// `true` once a reset failed, or did not help. The session receives nothing there and sends
    /// nothing any more, and has to end.
    is_broken: bool,
}

impl Served {
    /// Gives the queue packets, as long as it has room. Returns how many. `others`: packets in flight
    /// on all other queues.
    fn submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
        others: usize,
    ) -> Result<usize, DeviceError> {
        let of_all = MAX_OF_ALL.saturating_sub(others).min(MAX_IN_FLIGHT);
        let room = packets.len().min(of_all.saturating_sub(self.in_flight));
        let taken = self.own.queue.tx_submit(spaces, &packets[..room])?;
        self.in_flight += taken;
        self.watchdog.sent(taken, clock_ns);
        self.unkicked |= taken > 0;
        Ok(taken)
    }

    /// Appends completions to `out`.
    fn complete(&mut self, out: &mut Vec<Completion>) -> Result<(), DeviceError> {
        let count = self.own.queue.tx_complete(out, usize::MAX)?;
        self.in_flight = self.in_flight.saturating_sub(count);
        self.completed += count as u64;
        self.watchdog.completed(count, self.in_flight as u64, clock_ns);
        Ok(())
    }
}

/// The sessions' own queues, by number.
#[derive(Default)]
pub(crate) struct OwnQueues {
    served: Vec<Option<Served>>,
    /// Packets that a queue had no room for. They end here: no other session waits for them.
    done: Vec<Completion>,
    /// Completions that the port received.
    completed: u64,
    /// The counters of queues that ended, and of `done`.
    ended: Counters,
}

/// Buffers that the reset of a queue returned: the key of its session, and their offsets.
pub(crate) type Returned = Vec<(u32, Vec<u32>)>;

/// The result of a check of all queues.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) returned: Returned,
    /// The keys of sessions whose queues stopped working.
    pub(crate) broken: Vec<u32>,
}

impl OwnQueues {
    /// Adds a session's queue, with a watchdog of its own.
    pub(crate) fn add(
        &mut self,
        key: u32,
        own: OwnQueue,
        watchdog: Watchdog,
        spaces: &mut Spaces,
    ) -> OwnPlace {
        let space = Space::new(own.memory.clone()).registered(Some(own.registration.clone()));
        let space = spaces.add(space);
        let (offsets, parts) = (own.offsets, own.parts);
        let number = self.served.iter().position(Option::is_none).unwrap_or(self.served.len());
        if number == self.served.len() {
            self.served.push(None);
        }
        self.served[number] = Some(Served {
            key,
            own,
            space,
            unkicked: false,
            in_flight: 0,
            completed: 0,
            watchdog,
            is_broken: false,
        });
        OwnPlace { number, space, offsets, parts }
    }

    /// Removes a queue of which no packet is in flight.
    pub(crate) fn remove(&mut self, number: usize) -> Option<OwnQueue> {
        let served = self.served.get_mut(number)?.take()?;
        add_counters(&mut self.ended, &served.own.queue.counters());
        while self.served.pop_if(|last| last.is_none()).is_some() {}
        Some(served.own)
    }

    /// Returns `true` if there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.served.is_empty()
    }

    /// Returns one more than the highest number of a queue.
    #[inline]
    pub(crate) fn end(&self) -> usize {
        self.served.len()
    }

    /// Returns the key of a queue's session, and its memory.
    pub(crate) fn get(&self, number: usize) -> Option<(u32, &Arc<Mapping>)> {
        let served = self.served.get(number)?.as_ref()?;
        Some((served.key, &served.own.memory))
    }

    /// Returns the number of the queue whose memory is a data space.
    #[inline]
    pub(crate) fn of_space(&self, space: SpaceId) -> Option<usize> {
        self.served.iter().position(|one| one.as_ref().is_some_and(|one| one.space == space))
    }

    /// Gives a queue receive buffers, by their offsets. Returns how many it took.
    pub(crate) fn fill(&mut self, number: usize, spaces: &mut Spaces, offsets: &[u32]) -> usize {
        let Some(served) = self.working(number) else { return 0 };
        let taken = served.own.queue.rx_fill(spaces, served.space, offsets);
        if taken > 0 {
            // The kernel drops what it cannot place, and asks for nothing.
            let _ = served.own.queue.kick(spaces, Kick::Rx);
        }
        taken
    }

    /// Appends received packets of a queue to `out`.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn poll(
        &mut self,
        number: usize,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let Some(served) = self.working(number) else { return Ok(0) };
        served.own.queue.rx_poll(spaces, out, budget)
    }

    /// Gives packets to a queue, and drops those that it has no room for. So a session whose queue
    /// is stuck delays no other one.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn submit(
        &mut self,
        number: usize,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<(), DeviceError> {
        let mut taken = 0;
        let in_flight = self.in_flight();
        let served = self.served.get_mut(number).and_then(Option::as_mut);
        if let Some(served) = served.filter(|served| !served.is_broken) {
            let others = in_flight - served.in_flight;
            taken = served.submit(spaces, packets, others)?;
            if taken < packets.len() {
                // The kernel takes what is in the ring, and most likely sends it at once.
                served.own.queue.kick(spaces, Kick::Tx)?;
                served.complete(&mut self.done)?;
                taken += served.submit(spaces, &packets[taken..], others)?;
            }
        }
        for packet in &packets[taken..] {
            self.ended.tx_dropped += 1;
            self.done.push(Completion::dropped(packet.token));
        }
        Ok(())
    }

    /// Tells the device of packets that it does not know of.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn kick(&mut self, spaces: &mut Spaces) -> Result<(), DeviceError> {
        for served in self.served.iter_mut().flatten() {
            if std::mem::take(&mut served.unkicked) {
                served.own.queue.kick(spaces, Kick::Tx)?;
            }
        }
        Ok(())
    }

    /// Appends the completions of packets to `out`. Returns their number.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn complete(&mut self, out: &mut Vec<Completion>) -> Result<usize, DeviceError> {
        let before = out.len();
        out.append(&mut self.done);
        for served in self.served.iter_mut().flatten() {
            served.complete(out)?;
        }
        let count = out.len() - before;
        self.completed += count as u64;
        Ok(count)
    }

    /// Returns the number of packets without a completion, and that of completions.
    #[inline]
    pub(crate) fn counts(&self) -> (u64, u64) {
        ((self.in_flight() + self.done.len()) as u64, self.completed)
    }

    /// Returns the number of packets that queues have.
    #[inline]
    fn in_flight(&self) -> usize {
        self.served.iter().flatten().map(|served| served.in_flight).sum()
    }

    /// Returns `true` if a queue works.
    pub(crate) fn works(&self, number: usize) -> bool {
        let served = self.served.get(number).and_then(Option::as_ref);
        served.is_some_and(|served| !served.is_broken)
    }

    /// Checks whether the queues complete packets, and resets those that have stalled. A queue is
    /// broken if the reset fails, or if it stalls again before it completes a packet. Then its
    /// session ends, and no other session is affected.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn check(&mut self, among: impl Fn(u32) -> bool) -> Result<Checked, DeviceError> {
        let mut checked = Checked::default();
        let wanted = |served: &&mut Served| !served.is_broken && among(served.key);
        for served in self.served.iter_mut().flatten().filter(wanted) {
            let (out, completed) = (served.in_flight as u64, served.completed);
            let Verdict::Stalled { new } =
                served.watchdog.after_iteration(out, completed, clock_ns)
            else {
                continue;
            };
            let hardware = served.own.hardware;
            let mut buffers = Vec::new();
            let outcome = served.own.queue.reset(&mut buffers);
            served.unkicked = false;
            served.complete(&mut self.done)?;
            served.watchdog.restart(served.completed);
            checked.returned.push((served.key, buffers));
            match outcome {
                Ok(()) if new => tracing::warn!(hardware, "a session's hardware queue stalled"),
                outcome => {
                    let why =
                        outcome.err().map_or("a reset did not help".into(), |e| e.to_string());
                    tracing::warn!(hardware, "a session's hardware queue stopped working: {why}");
                    served.is_broken = true;
                    checked.broken.push(served.key);
                }
            }
        }
        Ok(checked)
    }

    /// Returns the time of the watchdogs' next check, in nanoseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let working = self.served.iter().flatten().filter(|served| !served.is_broken);
        working.filter_map(|served| served.watchdog.next_due(served.in_flight as u64)).min()
    }

    /// Starts the watchdogs anew, after a change of the link.
    pub(crate) fn restart_watchdogs(&mut self) {
        self.served.iter_mut().flatten().for_each(|one| one.watchdog.restart(one.completed));
    }

    /// Records a sleep of the engine, after which the watchdogs read the clock.
    pub(crate) fn slept(&mut self) {
        self.served.iter_mut().flatten().for_each(|served| served.watchdog.slept());
    }

    /// Applies changed settings of the watchdogs.
    pub(crate) fn set_watchdog(&mut self, to: impl Fn() -> Watchdog) {
        self.served.iter_mut().flatten().for_each(|served| served.watchdog.change(to()));
    }

    /// Returns the descriptor that becomes readable when a queue has work.
    pub(crate) fn sleep_fd(&self, number: usize) -> Option<BorrowedFd<'_>> {
        self.served.get(number)?.as_ref()?.own.queue.sleep_fd()
    }

    /// Asks all queues to end the engine's sleep.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn arm(&mut self) -> Result<Armed, DeviceError> {
        let mut armed = if self.done.is_empty() { Armed::Sleep } else { Armed::Work };
        for served in self.served.iter_mut().flatten().filter(|served| !served.is_broken) {
            if served.own.queue.arm(false)? == Armed::Work {
                armed = Armed::Work;
            }
        }
        Ok(armed)
    }

    /// Returns a queue that works.
    fn working(&mut self, number: usize) -> Option<&mut Served> {
        self.served.get_mut(number)?.as_mut().filter(|served| !served.is_broken)
    }

    /// Adds the drivers' counters to `counters`.
    pub(crate) fn count(&self, counters: &mut Counters) {
        add_counters(counters, &self.ended);
        for served in self.served.iter().flatten() {
            add_counters(counters, &served.own.queue.counters());
        }
    }
}

fn add_counters(to: &mut Counters, one: &Counters) {
    to.rx_packets += one.rx_packets;
    to.rx_bytes += one.rx_bytes;
    to.rx_dropped += one.rx_dropped;
    to.tx_packets += one.tx_packets;
    to.tx_bytes += one.tx_bytes;
    to.tx_dropped += one.tx_dropped;
    to.system_calls += one.system_calls;
    to.resets += one.resets;
}
