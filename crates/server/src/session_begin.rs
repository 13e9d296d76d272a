//! The beginning of sessions, once their workers have sealed and allocated the memory.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use towpath_engine::commands::Command;
use towpath_engine::relays::Relay;
use tracing::info;

use crate::connection::{Connection, State};
use crate::control::Control;
use crate::control_session::{Attaching, MappedSession, SessionPhase};
use crate::engines::Reply;
use crate::mapping_jobs::Job;
use crate::prepare::{self, Mapped};

/// The time after which a wake-up begins no further slice of a long job. Other requests wait for at most this time and one
/// slice.
const MAPPING_TIME: Duration = Duration::from_micros(100);

impl Control {
    /// Maps a session's memory, which the worker has sealed and allocated.
    pub(crate) fn memory_ready(&mut self, token: u64, outcome: Result<Vec<OwnedFd>, i32>) {
        let Some((connection, attaching)) = self.connections.take_prepared(token) else { return };
        let Attaching { session, prepared, counter } = attaching;
        let (number, worker) = (session.number, connection.application.worker);
        let account = connection.application.account;
        let outcome = outcome.map_err(std::io::Error::from_raw_os_error).and_then(|pins| {
            for pin in &pins {
                prepare::store(self.store.as_mut(), number, prepare::PINS, pin.as_fd())?;
            }
            let relay = self.workers.notified(worker).zip(counter);
            let ended = || std::io::Error::other("the worker process has ended");
            Ok((pins, relay.ok_or_else(ended)?))
        });
        let (pins, (worker, relayed)) = match outcome {
            Ok(ready) => ready,
            Err(error) => {
                let left = prepared.into_descriptors();
                return self.memory_failed(token, account, session, counter, left, &error);
            }
        };
        let relay =
            Relay { number: relayed, worker, trusted: connection.application.is_administrators() };
        let mapped = match prepared.map(number, relay) {
            Ok(mapped) => mapped,
            Err((error, left)) => {
                return self.memory_failed(token, account, session, counter, left, &error);
            }
        };
        let mappings = mapped.mappings.clone();
        connection.state = State::Mapped(Box::new(MappedSession::new(
            session,
            SessionPhase::Populating,
            mappings,
            pins,
            counter,
        )));
        self.mapping_jobs.push(account, Job::Populate { token, mapped });
    }

    /// Executes slices of long jobs, and begins none after [`MAPPING_TIME`].
    pub(crate) fn map_next_slices(&mut self) {
        let began = Instant::now();
        while !self.mapping_jobs.is_empty() && began.elapsed() < MAPPING_TIME {
            self.map_next_slice();
        }
    }

    fn map_next_slice(&mut self) {
        match self.mapping_jobs.run_next_slice() {
            None => {}
            Some(Job::Populate { token, mut mapped }) => {
                self.mapping_jobs.lock(mapped.mappings.all.iter().chain(&mapped.mappings.armed));
                self.register(&mut mapped.sessions);
                if let Some(mapped) = self.ask_for_queue(token, mapped) {
                    self.begin_session(token, mapped);
                }
            }
            Some(Job::PopulateMemory { token, .. }) => self.memory_populated(token),
            Some(Job::Release { token, mappings, sessions }) => {
                self.released(token, sessions);
                drop(mappings);
            }
        }
    }

    /// Hands a session over to the engine.
    pub(crate) fn begin_session(&mut self, token: u64, mut mapped: Mapped) {
        let connection = self.connections.get_mut(token);
        let Some(Connection { application, state: State::Mapped(begun), .. }) = connection else {
            return self.internal_error("a session without a connection begins");
        };
        application.apply_terms(&mut mapped.sessions);
        begun.phase = SessionPhase::Live;
        let session = &mut begun.session;
        if let Some(record) = &mut session.record {
            record.begin();
        }
        if self.access.allows_line(application.account.user()) {
            info!(
                session = session.number,
                name = session.name,
                uid = application.account.uid,
                pid = application.peer.pid,
                trusted = application.trusted,
                administrator = application.is_administrators(),
                "attached"
            );
        }
        self.decide_who_notifies(token);
        let parts = mapped.sessions.into_iter().map(Box::new).map(Command::AddSession).collect();
        self.engines.command_each(parts, Reply::Done(token));
    }
}
