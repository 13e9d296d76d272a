//! A received segment and its connection: what follows once the connection has processed the segment.

use super::answer::Reply;
use super::connection::{Connection, Owner, State};
use super::process_segment::Verdict;
use super::segment::{HEADER_BYTES, RST, Segment};
use super::table::Tcp;
use crate::Instant;
use crate::host::Host;
use crate::ip;

/// A connection's state before a segment.
#[derive(Clone, Copy)]
struct Before {
    state: State,
    /// Received bytes that the application has not read.
    unread: usize,
    /// Written bytes that the peer has not acknowledged.
    unacknowledged: usize,
}

impl Before {
    fn of(connection: &Connection) -> Before {
        Before {
            state: connection.state,
            unread: connection.receiving.buffer.len(),
            unacknowledged: connection.sending.buffer.len(),
        }
    }
}

impl Tcp {
    /// Passes a segment to its connection.
    pub(super) fn process(
        &mut self,
        now: Instant,
        host: &mut Host,
        index: u32,
        seg: &Segment,
        data: &[u8],
    ) {
        host.counters.tcp_visits += 1;
        let Some((connection, mut env)) = self.connection_and_env(now, host, index) else { return };
        let before = Before::of(connection);
        let verdict = connection.process_segment(&mut env, seg, data);
        match verdict {
            Verdict::None => self.follow_up(now, host, index, before),
            Verdict::Refuse(number) => {
                let tuple = connection.tuple;
                if host.may_refuse(now) {
                    host.counters.tcp_resets_sent += 1;
                    let reply = Reply::closed(number, seg.end(), RST);
                    self.send_reply(now, host, &tuple, reply, None);
                }
                // Its SYN may be due again.
                self.mark(index);
            }
            Verdict::Failed(error) => {
                host.counters.tcp_resets_received += 1;
                self.end(host, index, error);
            }
        }
    }

    /// Applies the consequences of a segment that the connection has processed.
    fn follow_up(&mut self, now: Instant, host: &mut Host, index: u32, before: Before) {
        if self.at(index).is_some_and(|c| c.read_shut || c.owner == Owner::None) {
            self.discard(now, host, index);
        }
        self.mark(index);
        let most = host.config.tcp.send_buffer_bytes;
        let Some(connection) = self.at(index) else { return };
        let after = Before::of(connection);
        let changed = after.state != before.state;
        let wanted = connection.wants_room && connection.sending.has_much_room(most);
        // A close may wait until the peer has everything.
        let is_done =
            connection.sending.finish && before.unacknowledged > 0 && after.unacknowledged == 0;
        let room = wanted || is_done;
        if room {
            connection.wants_room = false;
        }
        if let Some(size) = connection.take_found_mss() {
            let remote = connection.tuple.remote.ip();
            let mtu = size + ip::header_len(remote) + HEADER_BYTES;
            host.counters.tcp_black_holes += 1;
            host.paths.lower(now, remote, mtu);
        }
        let connected = before.state.is_opening() && !after.state.is_opening();
        if connected {
            host.counters.tcp_connected += 1;
        }
        if after.unread > before.unread || room || changed {
            self.tell(host, index);
        }
        if after.state.is_over() {
            self.settle(now, host, index);
        }
    }

    /// Discards data that the application will never read. If the application has dropped the
    /// connection, the data is lost, and the stack sends a reset (RFC 9293, 3.6.1, and RFC 2525,
    /// 2.17).
    pub(super) fn discard(&mut self, now: Instant, host: &mut Host, index: u32) {
        let Some((connection, env)) = self.connection_and_env(now, host, index) else { return };
        if connection.receiving.discard(env.pool) > 0 && connection.owner == Owner::None {
            self.abort_now(now, host, index);
        }
    }
}
