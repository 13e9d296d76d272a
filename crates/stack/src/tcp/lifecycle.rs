//! The life cycle of a connection: the consequences of its state, and its end.

use smoltcp::socket::tcp::State;

use super::connection::{Connection, Owner};
use super::table::{Slot, Tcp};
use crate::host::Host;
use crate::{Instant, SocketError, TcpId};

impl Tcp {
    /// Applies the consequences of a connection's new state.
    pub(super) fn settle(&mut self, now: Instant, host: &mut Host, index: u32) {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        match connection.state() {
            State::SynSent | State::SynReceived => {}
            // The peer answered our SYN-ACK with a reset.
            State::Listen => self.remove(host, index),
            State::Closed => {
                // If this side gave up, the reset is still to be sent.
                if connection.socket().remote_endpoint().is_some() && !connection.detached {
                    return self.mark(index);
                }
                self.detach(host, index);
                let Some(connection) = self.slots[index as usize].connection.as_ref() else {
                    return;
                };
                if connection.owner != Owner::Application {
                    self.remove(host, index);
                }
            }
            State::TimeWait => {
                let finished = connection.path.sent_to.is_some();
                let poll_at = self.interface.poll_at(now.to_smoltcp(), connection.sockets());
                // Only the end of TIME-WAIT is left: no acknowledgement waits.
                let soon = now + host.config.tcp.ack_delay;
                let quiet = poll_at.is_none_or(|at| at > soon.to_smoltcp());
                if finished && quiet && !connection.detached {
                    let (tuple, sent_to) = (connection.tuple, connection.path.sent_to.unwrap_or(0));
                    let acknowledged = connection.acknowledged;
                    let orphan = connection.owner != Owner::Application;
                    let counters = &mut host.counters;
                    let remains = (sent_to, acknowledged);
                    self.time_wait.insert(now, tuple, remains, &mut self.ports, counters);
                    self.detach(host, index);
                    if orphan {
                        self.remove(host, index);
                    }
                }
            }
            _ => {
                if !connection.established {
                    connection.established = true;
                    connection.give_up_at = None;
                    if let Owner::Listener(id) = connection.owner {
                        let generation = self.slots[index as usize].generation;
                        let id = (id, TcpId { index, generation });
                        if !self.listeners.established(host, id.0, id.1) {
                            self.abort_now(now, host, index);
                        }
                    } else {
                        host.counters.tcp_connected += 1;
                    }
                }
            }
        }
    }

    /// Ends a connection with a reset.
    pub(super) fn abort_now(&mut self, now: Instant, host: &mut Host, index: u32) {
        if let Some(connection) = self.slots[index as usize].connection.as_mut() {
            if !matches!(connection.state(), State::Closed | State::TimeWait) {
                host.counters.tcp_resets_sent += 1;
            }
            connection.socket_mut().abort();
            connection.give_up_at = None;
            self.settle(now, host, index);
        }
    }

    /// Frees the connection's tuple: from now on the connection is only readable.
    pub(super) fn detach(&mut self, _: &mut Host, index: u32) {
        if let Some(connection) = self.slots[index as usize].connection.as_mut()
            && !connection.detached
        {
            connection.detached = true;
            connection.give_up_at = None;
            self.by_tuple.remove(&connection.tuple);
            self.ports.remove(connection.tuple.local);
            self.wheel.set(index, None);
        }
    }

    /// Removes a connection completely.
    pub(super) fn remove(&mut self, host: &mut Host, index: u32) {
        self.detach(host, index);
        let slot = &mut self.slots[index as usize];
        if let Some(connection) = slot.connection.take() {
            if let Owner::Listener(id) = connection.owner {
                let id = (id, TcpId { index, generation: slot.generation });
                self.listeners.gone(id.0, id.1, connection.established);
            }
            self.live -= 1;
            self.free.push(index);
        }
    }

    /// Inserts a connection, and returns its id.
    pub(super) fn insert(&mut self, connection: Connection) -> TcpId {
        let tuple = connection.tuple;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, connection: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.connection = Some(Box::new(connection));
        self.live += 1;
        self.by_tuple.insert(tuple, index);
        self.ports.add(tuple.local);
        TcpId { index, generation: slot.generation }
    }

    /// Ends a connection with an error, which the stack reports to the application.
    pub(super) fn fail(&mut self, now: Instant, host: &mut Host, index: u32, error: SocketError) {
        if let Some(connection) = self.slots[index as usize].connection.as_mut() {
            connection.error.get_or_insert(error);
            if connection.state() == State::SynSent {
                // The peer agreed to nothing, so there is nothing to reset.
                connection.socket_mut().close();
                connection.detached = true;
                self.by_tuple.remove(&connection.tuple);
                self.ports.remove(connection.tuple.local);
                self.wheel.set(index, None);
                if connection.owner == Owner::None {
                    return self.remove(host, index);
                }
            } else {
                self.abort_now(now, host, index);
            }
            self.tell(host, index);
        }
    }

    /// Ends a connection whose peer is unreachable, even for a reset.
    pub(super) fn strand(&mut self, host: &mut Host, index: u32) {
        let Some(connection) = self.slots[index as usize].connection.as_mut() else { return };
        connection.error.get_or_insert(SocketError::Unreachable);
        connection.socket_mut().abort();
        self.detach(host, index);
        self.tell(host, index);
        let Some(connection) = self.slots[index as usize].connection.as_ref() else { return };
        if connection.owner != Owner::Application {
            self.remove(host, index);
        }
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
            if connection.connecting() {
                self.fail(now, host, id.index, SocketError::Unreachable);
            } else if connection.state() == State::Closed {
                // Only a reset was left to send.
                self.strand(host, id.index);
            } else {
                self.mark(id.index);
            }
        }
    }
}
