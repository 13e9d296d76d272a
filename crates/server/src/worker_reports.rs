//! Reports of workers on connections.

use rustix::event::epoll;
use towpath_protocol::message::{MAX_REQUEST_BYTES, Message, MessageError, Refusal};
use tracing::warn;

use crate::control::Control;
use crate::worker::link::{Packet, Report};
use crate::worker::owner::Owner;
use crate::worker::wire::{command, report};

impl Control {
    /// Handles a report of a worker.
    pub(crate) fn on_worker_report(&mut self, worker: u64, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.workers.flush(worker);
        }
        let owner = self.workers.owner(worker);
        let is_of_pair = matches!(owner, Some(Owner::Pair(_)));
        match self.workers.receive(worker) {
            Some(Report::Message { token, wrong, body }) => self.on_message(token, wrong, &body),
            Some(Report::Ended { token }) => self.connection_ended(token),
            Some(Report::MemoryReady { token, outcome, is_unfreeable }) => {
                self.connections.prepared(token, is_unfreeable);
                self.memory_ready(token, outcome);
            }
            Some(Report::Allocated { token, outcome }) => self.memory_allocated(token, outcome),
            Some(Report::Exited) => {
                if is_of_pair {
                    self.disposal_reported(worker, true);
                }
                if let Some(user) = owner.and_then(Owner::user)
                    && !self.connections.of_worker(worker).is_empty()
                    && self.access.allows_line(user)
                {
                    warn!(
                        uid = u32::from(user),
                        "sessions closed: this user's worker process has ended"
                    );
                }
                self.workers.remove(worker);
                self.worker_ended(worker);
            }
            Some(Report::Handled) if is_of_pair => self.disposal_reported(worker, false),
            Some(Report::Handled) | None => {}
        }
    }

    /// Ends the connections of users whose workers hang. Connections of other users continue.
    pub(crate) fn give_up_workers(&mut self) {
        while let Some(worker) = self.workers.declare_one_hung() {
            let owner = self.workers.owner(worker);
            if let Some(Owner::Pair(_)) = owner {
                self.disposal_hangs(worker);
            }
            if let Some(user) = owner.and_then(Owner::user)
                && self.access.allows_line(user)
            {
                warn!(
                    uid = u32::from(user),
                    "sessions closed: an application of this user blocks the user's worker process"
                );
            }
            self.worker_ended(worker);
        }
    }

    /// Ends connections whose packets did not reach their workers.
    pub(crate) fn end_failed_connections(&mut self) {
        for (token, kind) in self.workers.take_failed() {
            if kind == command::PREPARE_OLDER {
                // The worker allocates nothing.
                self.connections.prepared(token, false);
            }
            self.tell_worker(token, Packet::new(command::CLOSE_CONNECTION, token, 0));
            self.connection_ended(token);
        }
        self.connections.forget_preparations(|worker| self.workers.owner(worker).is_some());
    }

    fn worker_ended(&mut self, worker: u64) {
        self.shared.lose_worker(worker);
        for token in self.connections.of_worker(worker) {
            self.connection_ended(token);
        }
    }

    /// Handles a message of a connection.
    fn on_message(&mut self, token: u64, wrong: u64, body: &[u8]) {
        let malformed = |text: String| Err((Refusal::Malformed, text));
        let message = match wrong {
            report::VALID => Message::decode_any(body).map_err(|error| {
                let refusal = match error {
                    MessageError::Version(_) => Refusal::Version,
                    _ => Refusal::Malformed,
                };
                (refusal, format!("control connection: {error}"))
            }),
            report::DESCRIPTORS => malformed(
                "control connection: a message with descriptors; this server takes none".into(),
            ),
            _ => malformed(format!(
                "control connection: a message too long; at most {MAX_REQUEST_BYTES} bytes"
            )),
        };
        match message {
            Ok((message, version)) => {
                if let Some(connection) = self.connections.get_mut(token) {
                    connection.application.version = version;
                }
                self.dispatch(token, message);
            }
            Err(refused) => self.cut_off(token, &refused),
        }
    }
}
