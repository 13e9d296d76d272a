//! The control thread's loop: it waits in one epoll set, and handles its events.

use std::time::{Duration, Instant};

use towpath_device::DeviceError;
use towpath_engine::commands::EngineReport;
use towpath_protocol::message::{self, Message};
use towpath_queue::Violation;
use tracing::{error, info, warn};

use crate::control::Control;
use crate::control_request::Request;
use crate::control_session::Ending;
use crate::engines::Reply;
use crate::host::Host;
use crate::listeners::{ADMIN_LISTENER, LISTENER};
use crate::policy::Entrance;
use crate::wakeups::{DEVICE, HOST, KEEPER, UNCLAIMED, WAKE};

/// The time after which the control thread retries removals that the keeper had no room for.
const FLUSH: Duration = Duration::from_millis(2);

impl Control {
    /// Runs until a request stops it, or until the engine has ended by itself.
    ///
    /// # Errors
    /// Fails with the error that ended the engine.
    pub(crate) fn run(mut self) -> Result<(), DeviceError> {
        loop {
            if let Some(outcome) = self.server_run.take_outcome() {
                self.end_all();
                return outcome;
            }
            let flush = self.store.flush().then_some(FLUSH);
            let timeout = self.next_deadline().into_iter().chain(flush).min();
            let events = self.wakeups.wait(timeout).unwrap_or_else(|error| {
                warn!("control thread: epoll: {error}");
                self.stop();
                Vec::new()
            });
            for (data, flags) in events {
                match data {
                    WAKE => self.owner_requests(),
                    LISTENER => self.accept(Entrance::Applications),
                    ADMIN_LISTENER => self.accept(Entrance::Administrators),
                    DEVICE => self.device_events(),
                    HOST => self.host_events(),
                    KEEPER => self.keeper_ended(),
                    unclaimed if unclaimed & UNCLAIMED != 0 => {
                        self.end_unclaimed(unclaimed & !UNCLAIMED, "its application has ended");
                    }
                    worker => self.on_worker_report(worker, flags),
                }
            }
            self.admit_arrivals();
            // This thread reads the engine's replies even if its wake-up came with other events.
            self.engine_reports();
            self.map_next_slices();
            self.expire_unclaimed();
            self.device.expire_freed(&mut self.engines);
            self.look_up_neighbours();
            self.finish_queue_tasks();
            self.give_up_workers();
            self.start_disposals();
            self.end_failed_connections();
            self.leave_for_added_queues();
            self.access.listen_again(self.wakeups.set());
            self.check_earlier_workers();
        }
    }

    fn owner_requests(&mut self) {
        self.wakeups.clear();
        while let Some(request) = self.wakeups.next_request() {
            match request {
                Request::Adopt(socket) => {
                    if let Err((socket, entrance)) = self.adopt(socket, Entrance::Administrators) {
                        self.arrive(socket, entrance);
                    }
                }
                Request::Policy(policy, answer) => {
                    let _ = answer.send(self.set_policy(*policy));
                }
                Request::Leave => {
                    self.leave();
                }
                Request::Stop => self.stop(),
            }
        }
    }

    /// Ends the server: without a keeper, nothing could resume its sessions.
    fn keeper_ended(&mut self) {
        error!(
            "the keeper has ended, and so this server ends; start the keeper again (towpath serve or up)"
        );
        self.stop();
    }

    fn next_deadline(&self) -> Option<Duration> {
        if !self.mapping_jobs.is_empty() {
            return Some(Duration::ZERO);
        }
        if let Some(pause) = self.access.arrivals.next_admission() {
            return Some(pause);
        }
        let host = self.addresses.host().and_then(Host::next_deadline);
        let workers = self.workers.next_deadline().map(|deadline| {
            deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
        });
        let queues = self.device.own_queues().next_deadline();
        let unclaimed = self.connections.unclaimed().next_deadline();
        let freed = self.device.next_deadline();
        let listens = self.access.next_deadline();
        let shared = self.shared.next_deadline();
        [host, workers, queues, unclaimed, freed, listens, shared].into_iter().flatten().min()
    }

    fn engine_reports(&mut self) {
        while let Some(report) = self.engines.next_report(self.device.name()) {
            match report {
                EngineReport::Done { ticket } => {
                    if let Some(reply) = self.engines.executed(ticket) {
                        self.reply(reply);
                    }
                }
                EngineReport::Closed { session, doorbell } => {
                    self.lane_closed(session, doorbell);
                }
                EngineReport::Removed(session) => self.session_ended(session),
                EngineReport::NeighbourWanted(request) => self.queue_neighbour_request(request),
                EngineReport::Violated { session, violation } => {
                    self.log_violation(session, violation)
                }
                EngineReport::Stalled { packets } => warn!(
                    device = self.device.log_name(),
                    packets, "the device stalled: it is reset, and what it kept is sent again"
                ),
                EngineReport::Recovered { resets } => {
                    info!(device = self.device.log_name(), resets, "the device works again");
                }
                // Announcements arrive on one lane, so the other engines do not know of the claim.
                EngineReport::FreedClaimed { mac } => {
                    self.device.stop_answering_for(&mut self.engines, mac);
                }
                EngineReport::Aperture(report) => self.aperture_report(&report),
                EngineReport::Ceded { hardware, queue } => self.ceded(hardware, queue),
                EngineReport::OwnQueueBroke { session } => self.own_queue_broke(session),
                EngineReport::Ended(outcome) => {
                    let fails = outcome.as_ref().is_err_and(|error| !error.is_gone());
                    if fails && self.store.outlives_server() {
                        self.server_run.set_leaves(true);
                    }
                    self.server_run.set_ended(self.engines.engine_ended(outcome));
                    // Every session needs all engines, so the other engines end.
                    self.stop();
                }
            }
        }
    }

    fn reply(&mut self, reply: Reply) {
        let (token, message) = match reply {
            Reply::Done(token) => (token, Message::Done),
            Reply::Closed(token, rule) => {
                if let (Some(host), Some(rule)) = (self.addresses.host_mut(), rule) {
                    host.release(&rule);
                }
                let Some(token) = token else { return };
                (token, Message::Done)
            }
            Reply::Opened(token, endpoint, port) => {
                let port = u32::from(port);
                (token, Message::Opened(message::Opened { endpoint, port }))
            }
            Reply::MemoryCreated(token, number) => return self.answer_memory(token, number),
            Reply::MemoryUnused(memory) => return self.unmap(memory),
            Reply::MemoryRemoved(token, number) => {
                self.release_memory(token, number);
                (token, Message::Done)
            }
            Reply::Exported(token, number) => return self.answer_export(token, number),
            Reply::Imported(token, number) => return self.answer_import(token, number),
            Reply::TripwireSet(token, number) => {
                (token, Message::Created(message::Created { number, key: 0 }))
            }
            Reply::TripwireImported(token, created, armed) => {
                return self.answer_with(token, &Message::Created(created), vec![armed], 0);
            }
            Reply::Claimed(token, handed) => return self.answer_attached(token, handed),
            Reply::FlagRemoved(uid, page) => return self.dispose_of_user_page(uid, *page),
            Reply::Nothing => return,
        };
        self.answer(token, &message);
    }

    pub(crate) fn log_violation(&mut self, session: u32, violation: Violation) {
        let Some((token, connection)) = self.connections.of_session_mut(session) else { return };
        if self.access.allows_line(connection.application.account.user()) {
            let name = connection.session().map(|session| &session.name);
            warn!(session, name, %violation, "closed: its application broke the protocol");
        }
        // One lane's engine closed the session. An unclaimed session has no doorbell, so this thread ends it.
        self.end_unclaimed(token, "its memory breaks the protocol");
        self.end_session(token, 0, Ending::AtOnce);
    }
}
