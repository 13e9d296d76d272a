//! The life cycle of a connection: the consequences of its state, and its end.

use super::connection::{Connection, Owner, State};
use super::receiving::AckDue;
use super::table::{Slot, Tcp};
use super::time_wait::Remains;
use crate::host::Host;
use crate::{Instant, SocketError, TcpId};

/// The maximum number of ended connections whose memory is kept for new ones.
const SPARE: usize = 256;

impl Tcp {
    /// Applies the consequences of a connection's state.
    pub(super) fn settle(&mut self, now: Instant, host: &mut Host, index: u32) {
        let Some(connection) = self.at(index) else { return };
        match connection.state {
            State::Closed if connection.reset_due && !connection.detached => {
                // The reset is still to be sent.
                self.mark(index);
            }
            State::Closed => self.retire(index),
            // The last acknowledgement goes first.
            State::TimeWait if connection.receiving.due == AckDue::No => {
                if !connection.detached {
                    let tuple = connection.tuple;
                    let stamps = (connection.origin, connection.receiving.recent);
                    let remains = Remains {
                        send_next: connection.sending.nxt,
                        receive_next: connection.receiving.nxt,
                        stamps: connection.timestamps.then_some(stamps),
                    };
                    let counters = &mut host.counters;
                    self.time_wait.insert(now, tuple, remains, &mut self.ports, counters);
                }
                self.retire(index);
            }
            State::TimeWait => self.mark(index),
            _ => {}
        }
    }

    /// Ends a connection that neither sends nor receives any more; it stays readable while the
    /// application owns it.
    fn retire(&mut self, index: u32) {
        self.detach(index);
        if self.at(index).is_some_and(|connection| connection.owner != Owner::Application) {
            self.remove(index);
        }
    }

    /// Ends a connection with a reset.
    pub(super) fn abort_now(&mut self, now: Instant, host: &mut Host, index: u32) {
        if let Some((connection, env)) = self.connection_and_env(now, host, index) {
            connection.abort(env.pool);
            connection.give_up_at = None;
            self.settle(now, host, index);
        }
    }

    /// Frees the connection's tuple: from now on the connection is only readable.
    pub(super) fn detach(&mut self, index: u32) {
        let Some(connection) = self.at(index) else { return };
        if connection.detached {
            return;
        }
        connection.detached = true;
        connection.clear_deadlines();
        let tuple = connection.tuple;
        let Some(connection) = self.slots[index as usize].connection.as_deref_mut() else { return };
        connection.sending.buffer.clear(&mut self.pool);
        connection.sending.scoreboard.clear();
        self.by_tuple.remove(&tuple);
        self.last = None;
        self.ports.remove(tuple.local);
        self.wheel.set(index, None);
    }

    /// Removes a connection completely.
    pub(super) fn remove(&mut self, index: u32) {
        self.detach(index);
        let slot = &mut self.slots[index as usize];
        let Some(mut connection) = slot.connection.take() else { return };
        if let Owner::Listener(id) = connection.owner {
            let tcp = TcpId { index, generation: slot.generation };
            self.listeners.gone(id, tcp);
        }
        connection.clear(&mut self.pool);
        if self.spare.len() < SPARE {
            self.spare.push(connection);
        }
        self.live -= 1;
        self.free.push(index);
    }

    /// Inserts a connection, and returns its id.
    pub(super) fn insert(&mut self, mut connection: Connection) -> TcpId {
        let tuple = connection.tuple;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, connection: None });
            self.slots.len() as u32 - 1
        });
        let boxed = match self.spare.pop() {
            Some(mut spare) => {
                connection.adopt(&mut spare);
                *spare = connection;
                spare
            }
            None => Box::new(connection),
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.connection = Some(boxed);
        self.live += 1;
        self.by_tuple.insert(tuple, index);
        self.ports.add(tuple.local);
        TcpId { index, generation: slot.generation }
    }

    /// Ends a connection with an error, which the stack reports to the application.
    pub(super) fn fail(&mut self, now: Instant, host: &mut Host, index: u32, error: SocketError) {
        let Some(connection) = self.at(index) else { return };
        connection.error.get_or_insert(error);
        self.abort_now(now, host, index);
        self.tell(host, index);
    }

    /// Ends a connection that the peer ended, or whose peer is unreachable even for a reset.
    pub(super) fn end(&mut self, host: &mut Host, index: u32, error: SocketError) {
        let Some(connection) = self.at(index) else { return };
        connection.error.get_or_insert(error);
        connection.state = State::Closed;
        connection.reset_due = false;
        self.tell(host, index);
        self.retire(index);
    }

    /// Resumes connections whose neighbour answered.
    pub(crate) fn resume(&mut self, ids: &[TcpId]) {
        for id in ids {
            if self.get(*id).is_ok() {
                self.mark(id.index);
            }
        }
    }

    /// Fails connections whose next hop does not answer.
    pub(crate) fn unreachable(&mut self, now: Instant, host: &mut Host, ids: &[TcpId]) {
        for id in ids {
            let Ok(connection) = self.get(*id) else { continue };
            if connection.state.is_opening() {
                self.fail(now, host, id.index, SocketError::Unreachable);
            } else if connection.state == State::Closed {
                // Only a reset was left to send.
                self.end(host, id.index, SocketError::Unreachable);
            } else {
                self.mark(id.index);
            }
        }
    }
}
