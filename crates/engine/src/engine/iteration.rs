//! The engine's loop: one poll iteration after the other, and the pauses between them.

use towpath_device::DeviceError;
use towpath_protocol::counters::Device as Count;
use towpath_protocol::position::Phase;
use towpath_waiting::{Found, Next, Step};

use super::Engine;
use crate::clock::clock_ns;
use crate::commands::EngineReport;
use crate::delivery::Delivery;
use crate::oob::OobParts;
use crate::own::Checked;
use crate::remote::{self, PacketOutput};
use crate::rx;
use crate::tx::TxContext;
use crate::tx::engine_packets::EnginePacketOutput;
use crate::wait::{Leftovers, WaitContext, Woken};
use crate::watchdog::Verdict;

/// The longest time in which an engine finishes what it has begun before it leaves, in nanoseconds:
/// within the pause that an upgrade may take.
const FINISH_NS: u64 = 20_000_000;

impl Engine {
    /// Runs until the control thread stops the engine or the device fails. Then closes every
    /// session, or leaves all to the next server.
    pub fn run(mut self) {
        self.sessions.position.start();
        self.sessions.position.begin(Phase::Commands);
        self.wait.begin(&self.values, &self.port);
        // The engine first executes the commands that came before the start, such as those that add
        // resumed sessions.
        while self.execute_commands() > 0 {}
        self.remote.set_time(clock_ns());
        self.oob_parts().restore_remote();
        self.oob_parts().restore();
        let outcome = loop {
            let work = match self.poll_once() {
                Ok(_) if self.stop => break Ok(()),
                Ok(work) => work,
                Err(error) => break Err(error),
            };
            if work > 0 {
                self.counters.add(Count::BusyIterations, 1);
            }
            if let Err(error) = self.pause(work) {
                break Err(error);
            }
        };
        let outcome = outcome.and_then(|()| if self.leaves { self.finish() } else { Ok(()) });
        let fails = outcome.as_ref().is_err_and(|error| !error.is_gone());
        let leaves = self.leaves || self.has_successor && fails;
        let Engine { port, mut sessions, commands, .. } = self;
        let mut position = std::mem::take(&mut sessions.position);
        // The device stops before the control thread unmaps the memory that it reads.
        drop(port);
        for mut session in sessions.take_all().filter(|_| !leaves) {
            if let Some(doorbell) = session.close(0) {
                commands.tell(EngineReport::Closed { session: session.number(), doorbell });
            }
            commands.tell(EngineReport::Removed(session));
        }
        position.begin(Phase::None);
        commands.tell(EngineReport::Ended(outcome));
    }

    /// Delivers the packets that the engine has taken from the device, and collects the completions
    /// of those that the device has sent. The next server sends what is left.
    fn finish(&mut self) -> Result<(), DeviceError> {
        let until = clock_ns() + FINISH_NS;
        loop {
            let received = if self.rx.has_left() { self.receive()? } else { 0 };
            let completed = self.complete()?;
            self.notifier.publish(&mut self.sessions, &mut self.counters);
            self.notifier.notify_deferred(&mut self.sessions, &mut self.counters);
            let is_over = !self.rx.has_left() && self.port.in_flight() == 0;
            if received + completed == 0 && is_over || clock_ns() >= until {
                if !self.rx.has_left() {
                    // The device learns that the engine has handled all packets.
                    self.port.fill(&[]);
                }
                return Ok(());
            }
            if received + completed == 0 {
                rustix::thread::sched_yield();
            }
        }
    }

    /// Runs one poll iteration and returns the amount of work done.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub fn poll_once(&mut self) -> Result<usize, DeviceError> {
        self.iteration += 1;
        self.sessions.position.iterate(self.iteration);
        if self.remote.is_on() {
            // For all that commands, requests and packets do with connections in this iteration.
            self.remote.set_time(self.wait.take_time());
        }
        self.sessions.position.begin(Phase::Commands);
        let ticks = self.wait.ticks();
        self.tx.count_ticks(ticks);
        let mut work = self.execute_commands();
        self.sessions.position.begin(Phase::Receive);
        self.sessions.meter.begin(self.iteration);
        let began = self.sessions.meter.now();
        let received = self.receive()?;
        self.sessions.meter.received(began);
        self.sessions.position.begin(Phase::Transmit);
        if self.flows.freed_mut().has_pending() {
            self.answer_for_freed_leases()?;
        }
        let sent = self.transmit()? + self.serve_other_hosts()?;
        self.found = Found { packets: received + sent, received, work: 0 };
        work += received + sent;
        work += self.complete()?;
        self.sessions.position.begin(Phase::Rest);
        work += self.check_device()?;
        self.notifier.publish(&mut self.sessions, &mut self.counters);
        self.notifier.notify_deferred(&mut self.sessions, &mut self.counters);
        work += self.close_condemned();
        if !self.draining.is_empty() {
            work += self.continue_draining(work > 0);
        }
        work += self.continue_closing();
        if self.apertures.has_ending() {
            work += self.apertures.remove_ended(&mut self.sessions);
        }
        work += usize::from(self.has_commands_left());
        self.sessions.iteration_over(work);
        if work > 0 {
            self.counters.beat(self.iteration);
        }
        // An engine that never sleeps publishes the driver's own counters periodically, and more often after its
        // start: the new server then counts the packets that a kill lost, and another kill would lose these counts.
        if self.iteration.is_multiple_of(4096) || self.iteration.is_power_of_two() {
            self.publish_counts();
        }
        Ok(work)
    }

    /// Takes a batch from the device and delivers it.
    fn receive(&mut self) -> Result<usize, DeviceError> {
        let mut delivery = Delivery::new(
            &mut self.sessions,
            &mut self.notifier,
            &mut self.software,
            self.receive_budget,
            self.iteration,
        );
        let (port, flows, counters) = (&mut self.port, &mut self.flows, &mut self.counters);
        let inbox = &mut self.inbox;
        let received = self.rx.poll(port, flows, &mut delivery, inbox, counters)?;
        if port.own().0.is_empty() {
            return Ok(received);
        }
        Ok(received + self.own_rx.poll(port, flows, &mut delivery, counters)?)
    }

    /// Takes packets from the sessions, and delivers them or hands them to the device.
    pub(super) fn transmit(&mut self) -> Result<usize, DeviceError> {
        if self.sessions.must_ask() {
            self.ask()?;
        }
        self.tx.discover(&mut self.port, &mut self.sessions)?;
        while let Some((session, number)) = self.sessions.take_tripped() {
            let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
            self.apertures.trip(session, number, sessions, notifier);
        }
        let delivery = Delivery::new(
            &mut self.sessions,
            &mut self.notifier,
            &mut self.software,
            self.receive_budget,
            self.iteration,
        );
        let outcome = self.tx.transmit(&mut TxContext {
            port: &mut self.port,
            memories: &self.memories,
            flows: &mut self.flows,
            oob: &self.oob,
            apertures: &mut self.apertures,
            remote: &mut self.remote,
            delivery,
            counters: &mut self.counters,
        });
        for request in self.tx.take_neighbour_requests() {
            self.commands.tell(EngineReport::NeighbourWanted(request));
        }
        outcome
    }

    /// Sends the answers to packets for the addresses of freed leases. Reports the leases with addresses that other
    /// hosts have claimed.
    #[cold]
    fn answer_for_freed_leases(&mut self) -> Result<(), DeviceError> {
        let (now, freed) = (clock_ns(), self.flows.freed_mut());
        while let Some(mac) = freed.take_claimed() {
            self.commands.tell(EngineReport::FreedClaimed { mac });
        }
        let output = &mut EnginePacketOutput { tx: &mut self.tx, port: &mut self.port };
        while let Some(answer) = freed.next_answer(now) {
            // The peer of an answer without room repeats its packet.
            if output.has_room() {
                output.send(answer.frame())?;
                self.counters.add(Count::FreedAnswers, 1);
            }
        }
        Ok(())
    }

    /// Receives and sends packets of connections with other hosts.
    fn serve_other_hosts(&mut self) -> Result<usize, DeviceError> {
        if !self.remote.is_on() || self.inbox.is_empty() && self.remote.is_idle() {
            return Ok(0);
        }
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let (apertures, remote) = (&mut self.apertures, &mut self.remote);
        let parts = &mut OobParts { sessions, notifier, apertures, remote };
        let output = &mut EnginePacketOutput { tx: &mut self.tx, port: &mut self.port };
        remote::poll(&mut self.inbox, &self.oob, parts, output, &mut self.counters)
    }

    /// Gives the device what waits for it, and collects its completions.
    fn complete(&mut self) -> Result<usize, DeviceError> {
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        self.tx.complete(&mut self.port, sessions, notifier, &mut self.counters)
    }

    /// Checks whether the device completes packets, and resets a stalled one. Returns the amount of
    /// work done.
    #[inline]
    fn check_device(&mut self) -> Result<usize, DeviceError> {
        if !self.port.own().0.is_empty() {
            let reset = self.check_own_queues()?;
            if reset > 0 {
                return Ok(reset);
            }
        }
        match self.port.check(self.sessions.has_ending()) {
            Verdict::Fine => Ok(0),
            Verdict::Stalled { new } => {
                if new {
                    let packets = self.port.in_flight();
                    self.commands.tell(EngineReport::Stalled { packets });
                }
                self.reset_device()
            }
            Verdict::Recovered { resets } => {
                self.commands.tell(EngineReport::Recovered { resets });
                Ok(0)
            }
        }
    }

    /// Checks whether sessions' own queues complete packets. Returns the number of queues that were
    /// reset: these have packets to send again, and no buffers to receive into.
    fn check_own_queues(&mut self) -> Result<usize, DeviceError> {
        let sessions = &self.sessions;
        let ends = |key| sessions.get(key).is_some_and(|session| session.is_closing());
        let Checked { returned, broken } = self.port.check_own(ends)?;
        let count = returned.len();
        rx::own::take_back(returned, &mut self.sessions);
        for key in broken {
            let Some(session) = self.sessions.get(key) else { continue };
            if let Some(own) = session.extras.own.place()
                && let Some(fd) = self.port.own_sleep_fd(own.number)
            {
                // Nothing takes its events any more.
                self.wait.wakes().forget_own(fd);
            }
            self.commands.tell(EngineReport::OwnQueueBroke { session: session.number() });
        }
        Ok(count)
    }

    /// Resets the device, and sends the packets that it kept once more.
    #[cold]
    pub(super) fn reset_device(&mut self) -> Result<usize, DeviceError> {
        let (mut buffers, mut completions) = (Vec::new(), Vec::new());
        self.port.reset(&mut buffers, &mut completions)?;
        self.rx.take_back(&self.port, &buffers);
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let kept = self.tx.complete_all(&completions, sessions, notifier, &mut self.counters);
        self.publish_counts();
        Ok(kept)
    }

    /// Continues, spins or sleeps after a poll iteration that did `work`, as the strategy says.
    pub(crate) fn pause(&mut self, work: usize) -> Result<(), DeviceError> {
        self.sessions.position.begin(Phase::Pause);
        // Taken events count as work, even if they led to no packet.
        let events = self.sessions.has_left();
        let found = Found { work: work.max(usize::from(events)), ..self.found };
        let next = self.wait.after(found, self.is_drained());
        if matches!(next, Next::Take(Step::Poll)) {
            return Ok(());
        }
        if !matches!(next, Next::Take(Step::Spin { .. })) {
            self.publish_counts();
        }
        let left = self.leftovers();
        let (port, sessions) = (&mut self.port, &mut self.sessions);
        let context = &mut WaitContext { port, sessions, counters: &mut self.counters };
        let mut woken = self.wait.sleep(next, &left, context)?;
        while woken != Woken::Poll && !self.stop {
            if woken == Woken::Commands {
                if self.remote.is_on() {
                    self.remote.set_time(clock_ns());
                }
                self.execute_commands();
                if self.stop {
                    break;
                }
                self.wait.executed();
            }
            let commands = self.commands.has_left() || self.tx.has_to_recheck();
            let (port, sessions) = (&mut self.port, &mut self.sessions);
            let context = &mut WaitContext { port, sessions, counters: &mut self.counters };
            woken = self.wait.continue_throttled(commands, context)?;
        }
        self.note_commands();
        Ok(())
    }

    /// Asks for notifications without a sleep.
    pub(super) fn ask(&mut self) -> Result<(), DeviceError> {
        let (port, sessions) = (&mut self.port, &mut self.sessions);
        self.wait.ask(&mut WaitContext { port, sessions, counters: &mut self.counters })?;
        self.note_commands();
        Ok(())
    }

    /// Returns `true` if a sleep may begin.
    #[cfg(test)]
    pub(crate) fn is_idle(&mut self) -> bool {
        !self.has_commands_left() && !self.rx.has_left() && self.sessions.is_idle()
    }

    fn note_commands(&mut self) {
        if self.wait.take_commands() {
            self.commands.arrived();
        }
    }

    /// Returns `true` if the poll iteration left nothing behind that another one could take up at
    /// once. A batch that was not full took every packet there was.
    fn is_drained(&self) -> bool {
        !self.rx.was_full()
            && !self.rx.has_left()
            && !self.own_rx.was_full()
            && !self.own_rx.has_left()
            && !self.sessions.has_left()
            && !self.has_commands_left()
            && !self.tx.can_transmit(&self.port)
            && !(self.remote.has_work() && self.tx.has_room(&self.port))
    }

    /// Returns what the poll iteration left behind.
    fn leftovers(&self) -> Leftovers {
        let watchdog = self.port.next_due(self.sessions.has_ending());
        let own = self.own_rx.next_due();
        let remote = self.remote.next_due();
        let draining = self.draining.next_due();
        let due = [self.notifier.next_due(), self.tx.next_due(), watchdog, own, remote, draining];
        Leftovers {
            commands: self.has_commands_left(),
            received: self.rx.has_left() || self.own_rx.has_left(),
            to_send: self.tx.can_transmit(&self.port)
                || self.remote.has_work() && self.tx.has_room(&self.port),
            tick: self.tx.waits_for_tick(),
            for_room: self.tx.waits_for_room() || self.remote.has_work() && self.tx.is_link_up(),
            due: due.into_iter().flatten().min(),
        }
    }
}
