//! The start of a successor: it goes on with the connections that an earlier server recorded.

use towpath_protocol::oob::PeerState;
use towpath_rdma::responder::Progress;
use towpath_rdma::{Connection as Wire, Psn};

use super::connection::{Remote, State};
use super::ledger::{Recorded, RemoteLedger};
use super::setup::TIMING;
use crate::demux::Destination;
use crate::oob::OobParts;
use crate::oob::connection::{Connection, EndpointName};

impl Remote {
    /// Makes a connection of what the ledger holds of it.
    fn of_record(one: &Recorded, place: u32, progress: Progress, now: u64) -> Remote {
        let mut remote = Remote::new(one.peer, State::Open, one.path);
        let to = (one.path, one.destination);
        let side = (one.acknowledged.next, one.reads);
        let mut wire = Wire::new(to, one.mtu, side, progress, TIMING, now);
        wire.set_resumed();
        if one.probe == Some(one.acknowledged.next) {
            // The packet that comes next was this one.
            wire.push_probe(now);
        }
        remote.wire = Some(Box::new(wire));
        (remote.owner, remote.place, remote.done) =
            (Some(one.owner), Some(place), one.acknowledged.slot);
        (remote.local_id, remote.remote_id) = (one.local_id, one.remote_id);
        (remote.transaction, remote.destination) = (one.transaction, one.destination);
        remote
    }
}

impl OobParts<'_> {
    /// Goes on with the connections that an earlier server recorded. Ends those whose endpoint has
    /// left.
    pub(crate) fn restore_remote(&mut self) {
        for (place, one) in std::mem::take(&mut self.remote.left) {
            let qpn = one.qpn;
            let Some(key) = self.sessions.key(one.owner.session) else {
                self.remote.record(Some(place), RemoteLedger::remove);
                continue;
            };
            let at = Destination { session: key, endpoint: one.owner.endpoint };
            let name = Connection::Connected(EndpointName::of_other_host(qpn));
            let queue = self.open_queue(at);
            let index = queue.and_then(|queue| {
                (queue.connection() == name && queue.may_continue()).then(|| queue.next_index())
            });
            let is_allowed = self
                .sessions
                .get(key)
                .is_some_and(|one| one.receive.endpoints.is_reachable(at.endpoint));
            // Its packets may be too long for the device by now.
            let fits = self.remote.path_mtu().is_some_and(|most| one.mtu as usize <= most.bytes());
            let index = index.filter(|_| is_allowed && fits);
            let progress = advanced(&one, index);
            let mut remote = Box::new(Remote::of_record(&one, place, progress, self.remote.now));
            remote.account = self.sessions.get(key).map(|one| one.extras.oob.account);
            let goes_on = index.is_some();
            if !goes_on {
                remote.leave(self.remote.now);
            }
            self.remote.by_local_id.insert(one.local_id, qpn);
            self.remote.by_remote_id.insert((one.peer.ip, one.remote_id), qpn);
            self.remote.record(Some(place), |ledger, place| ledger.set_progress(place, &progress));
            self.remote.put(qpn, remote);
            self.remote.make_ready(qpn);
            if goes_on && self.open_queue(at).is_some_and(|queue| !queue.is_told_connected()) {
                self.set_state(at, PeerState::Connected);
            }
        }
    }

    /// `true` if a connection with another host, that an endpoint here has, goes on.
    pub(crate) fn is_restored(&self, connection: Connection) -> bool {
        let Connection::Connected(peer) = connection else { return false };
        let one = peer.qpn().and_then(|number| self.remote.connections.get(&number));
        one.is_some_and(|one| matches!(one.state, State::Open) && one.leaves_at.is_none())
    }
}

/// Returns how far the peer's requests are carried out: one more if the message that came with the
/// next packet is in the endpoint's queue already. `index`: that of the queue's next message.
fn advanced(one: &Recorded, index: Option<u32>) -> Progress {
    let Progress { expected, messages, .. } = one.progress;
    match one.delivery {
        Some((psn, at)) if psn == expected && index == Some(at.wrapping_add(1)) => Progress {
            expected: Psn::new(expected.number().wrapping_add(1)),
            messages: (messages + 1) & 0xff_ffff,
            writing: None,
        },
        _ => one.progress,
    }
}
