//! The ends of connections with other hosts, and the record of how far each has come.

use towpath_protocol::oob::PeerState;
use towpath_protocol::requests::RequestFault;
use towpath_rdma::Ended;
use towpath_rdma::requester::Fault;

use super::connection::{Remote, State};
use super::host::{Attendance, ConnectionHost};
use crate::demux::Destination;
use crate::oob::OobParts;
use crate::oob::connection::{Connection, EndpointName};

/// Ends and forgets a connection that was taken out of the table. `state`: what its endpoint is told.
pub(super) fn end(qpn: u32, mut one: Box<Remote>, state: PeerState, parts: &mut OobParts<'_>) {
    parts.remote.drop_taken(qpn, &one);
    one.fail_pending(one.fault(), parts);
    disconnect_owner(qpn, &one, state, parts);
}

/// Tells the endpoint of a connection that it has ended, unless it has left already.
pub(super) fn disconnect_owner(qpn: u32, one: &Remote, state: PeerState, parts: &mut OobParts<'_>) {
    let Some(owner) = one.owner else { return };
    let Some(key) = parts.sessions.key(owner.session) else { return };
    let at = Destination { session: key, endpoint: owner.endpoint };
    let name = EndpointName::of_other_host(qpn);
    let is_its = parts.open_queue(at).is_some_and(|queue| {
        [Connection::Connected(name), Connection::Requested(name)].contains(&queue.connection())
    });
    if is_its {
        parts.end(at, state);
    }
}

impl Remote {
    fn attendance(&self) -> Attendance {
        match (self.is_removed, self.leaves_at) {
            (true, _) => Attendance::Removed,
            (false, Some(_)) => Attendance::Left,
            (false, None) => Attendance::Present,
        }
    }

    /// Lets both sides of the connection work on the memory of its endpoint.
    pub(super) fn with_wire(
        &mut self,
        qpn: u32,
        parts: &mut OobParts<'_>,
        work: impl FnOnce(&mut towpath_rdma::Connection, &mut ConnectionHost<'_, '_>),
    ) {
        let attendance = self.attendance();
        let (Some(wire), Some(owner)) = (&mut self.wire, self.owner) else { return };
        let (peer, place, pending, done) =
            (self.peer, self.place, &mut self.pending, &mut self.done);
        let copies = &mut self.copies;
        let probed = wire.probe();
        let host = &mut ConnectionHost {
            owner,
            qpn,
            peer,
            pending,
            done,
            place,
            attendance,
            copies,
            parts,
        };
        work(wire, host);
        // Before a packet leaves that depends on it.
        let (progress, probe) = (wire.progress(), wire.probe());
        if self.recorded != Some(progress) {
            self.recorded = Some(progress);
            parts.remote.record(place, |ledger, place| ledger.set_progress(place, &progress));
        }
        if let Some(psn) = probe.filter(|_| probe != probed) {
            parts.remote.record(place, |ledger, place| ledger.set_probe(place, psn));
        }
    }

    /// Returns `true` if the endpoint has closed the connection, and everything that it sent before
    /// is acknowledged, or has had its time.
    pub(super) fn may_leave(&self, now: u64) -> bool {
        let Some(until) = self.leaves_at else { return false };
        let is_sent = self.wire.as_ref().is_none_or(|wire| wire.requester().is_empty());
        match self.state {
            State::Open => is_sent && !self.copies.is_placing() || now >= until,
            // The other host does not have the answer yet.
            State::Answered(_) => now >= until,
            _ => false,
        }
    }

    /// Returns why the oldest request fails if the connection ends now. The peer's refusal of it may
    /// have come together with the message that ends the connection.
    fn fault(&self) -> RequestFault {
        let ended = self.wire.as_ref().and_then(|wire| wire.why_ended());
        ended.map_or(RequestFault::Closed, |ended| told(ended).0)
    }

    /// Fails the requests that are not acknowledged: the first for this reason.
    pub(super) fn fail_pending(&mut self, fault: RequestFault, parts: &mut OobParts<'_>) {
        let Some(owner) = self.owner else { return };
        let attendance = self.attendance();
        for one in self.pending.drain(..) {
            if attendance.records(owner, parts) {
                one.fail(fault, owner, parts);
            } else {
                one.forget(owner, parts);
            }
        }
    }
}

/// Returns why the oldest request fails, and what the endpoint is told.
pub(super) fn told(ended: Ended) -> (RequestFault, PeerState) {
    match ended {
        Ended::Failed(Fault::Access | Fault::Peer) => (RequestFault::Peer, PeerState::Closed),
        Ended::Failed(Fault::NotReady) => (RequestFault::NotReady, PeerState::Closed),
        Ended::Failed(Fault::Local) => (RequestFault::Local, PeerState::Closed),
        Ended::Refused => (RequestFault::Closed, PeerState::Closed),
        Ended::Dead => (RequestFault::Closed, PeerState::Gone),
    }
}

#[cfg(test)]
mod tests {
    use towpath_packet::roce::{Aeth, Bth, Extension, NakCode, Opcode, Segment, Syndrome};
    use towpath_rdma::requester::{Work, WorkKind};
    use towpath_rdma::responder::Progress;
    use towpath_rdma::{
        Access, Connection, Delivery, Host, NotCopied, NotReady, Psn, Range, Timing,
    };

    use super::super::connection::Attempt;
    use super::super::inbox::FRAME_BYTES;
    use super::*;

    /// A host without memory, whose requests have bytes.
    struct Bare;

    impl Host for Bare {
        fn check(&mut self, _: Range, _: Access) -> Result<(), towpath_rdma::Refused> {
            Err(towpath_rdma::Refused)
        }

        fn place(&mut self, _: Range, _: &[u8]) -> Result<(), NotCopied> {
            Err(NotCopied::Refused)
        }

        fn fetch(&mut self, _: Range, _: &mut [u8]) -> Result<(), NotCopied> {
            Err(NotCopied::Refused)
        }

        fn deliver(&mut self, _: Psn, _: Delivery<'_>) -> Result<(), NotReady> {
            Err(NotReady)
        }

        fn load(&mut self, _: u64, _: u64, _: &mut [u8]) -> Result<(), NotCopied> {
            Ok(())
        }

        fn store(&mut self, _: u64, _: u64, _: &[u8]) -> Result<(), NotCopied> {
            Ok(())
        }

        fn complete(&mut self, _: u64, _: Psn) {}
    }

    /// Returns a connection that has sent a request.
    fn sent(one: &Remote) -> Box<Connection> {
        let timing = Timing { quiet: 1 << 40, dead: 1 << 40, not_ready: 1 << 40 };
        let progress = Progress { expected: Psn::new(0), messages: 0, writing: None };
        let mut wire = Connection::new((one.path, 9), 256, (Psn::new(5), 1), progress, timing, 0);
        wire.set_ready();
        let (id, kind, bytes, key, address) = (0, WorkKind::Write, 8, 1, 0);
        wire.push(Work { id, kind, bytes, key, address }, bytes, 0);
        assert!(wire.transmit(&mut Bare, 0, &mut [0; FRAME_BYTES]).is_some());
        Box::new(wire)
    }

    /// The other host answers the request.
    fn answer(wire: &mut Connection, syndrome: Syndrome) {
        let aeth = Aeth { syndrome, msn: 1 };
        let bth = Bth::new(Opcode::Acknowledge, 9, 5);
        let extension = Extension { aeth: Some(aeth), ..Extension::default() };
        assert!(wire.receive(&Segment { bth, extension, payload: &[] }, false, &mut Bare, 1));
    }

    /// The other host refuses a request, and ends the connection at once.
    #[test]
    fn a_request_that_was_refused_before_the_end_fails_for_that_reason() {
        let mut one = Remote::for_tests();
        assert_eq!(one.fault(), RequestFault::Closed);
        let mut wire = sent(&one);
        answer(&mut wire, Syndrome::Nak(NakCode::RemoteAccess));
        one.wire = Some(wire);
        assert_eq!(one.fault(), RequestFault::Peer);
    }

    /// What was sent before a close goes out, for as long as it may.
    #[test]
    fn a_closed_connection_leaves_once_all_is_acknowledged_or_its_time_is_over() {
        let mut one = Remote::for_tests();
        one.wire = Some(sent(&one));
        one.state = State::Open;
        assert!(!one.may_leave(u64::MAX), "it is not closed");
        one.leaves_at = Some(100);
        assert!(!one.may_leave(99), "a request is not acknowledged");
        assert!(one.may_leave(100));
        answer(one.wire.as_mut().unwrap(), Syndrome::Ack { credits: 31 });
        assert!(one.may_leave(1));
        let attempt = |one: &Remote| match &one.state {
            State::Left(attempt) => attempt.message.as_ref().clone(),
            _ => panic!("it has not left"),
        };
        one.leave(1);
        assert!(!one.may_leave(u64::MAX), "it has left");
        one.state = State::Answered(Attempt::new(attempt(&one), 1));
        assert!(!one.may_leave(99), "the other host may not have the answer");
        assert!(one.may_leave(100));
    }
}
