//! Requests in a transmit queue. They wait their turn as packets do, and a long one is carried out
//! in several turns. The bytes that a request moves count against its queue pair's share and its
//! endpoint's rate.

use towpath_protocol::requests::Request;
use towpath_queue::Violation;

use crate::engine::apertures::requests::{Outcome, Requesting, carry_out};
use crate::engine::demux::Destination;
use crate::engine::oob::{Parts, Sender};
use crate::engine::remote::requests::admit;
use crate::engine::schedule::Stop;
use crate::engine::schedule::shape::Moment;
use crate::engine::tx::TxPath;
use crate::engine::tx::batch::Batch;
use crate::engine::tx::context::TxContext;
use crate::engine::work::Work;

/// The outcome of a request's turn.
pub(super) enum RequestTurn {
    /// The request is complete, or failed.
    Ended,
    /// The request goes out to another host, and its slot is free once that has it.
    Sent,
    /// The request goes on later.
    Later(Stop),
}

impl TxPath {
    /// Carries out the request `index` of a batch, or a piece of it.
    ///
    /// # Errors
    /// The sender's violation.
    pub(super) fn carry_out(
        &mut self,
        batch: &Batch,
        index: usize,
        context: &mut TxContext<'_>,
    ) -> Result<RequestTurn, Violation> {
        let taken = &batch.packets[index];
        let (key, queue_pair, slot) = (batch.key, batch.queue_pair, taken.first);
        let from = Destination { session: key, endpoint: taken.endpoint };
        let Some(session) = context.delivery.session(key) else { return Ok(RequestTurn::Ended) };
        let endpoint = session.endpoints.get(taken.endpoint as usize).ok_or(Violation::Endpoint)?;
        if endpoint.as_ref().is_some_and(|endpoint| endpoint.queue_pair != queue_pair) {
            return Err(Violation::Endpoint);
        }
        if session.apertures.is_empty() {
            return Err(Violation::Flags);
        }
        let request = taken.fetched.then(|| Request::from_bytes(batch.beginning(index)));
        let Some(Some(request)) = request else { return Err(Violation::Range) };
        let checked = request.check().ok_or(Violation::Flags)?;
        let sender = Sender { from, session: session.number, queue_pair, slot, may_repeat: false };
        let (sessions, notifier) = context.delivery.parts();
        let parts = &mut Parts {
            sessions,
            notifier,
            apertures: &mut *context.apertures,
            remote: &mut *context.remote,
        };
        let requesting = Requesting { sender, request: &request, checked };
        let (outcome, cost) = match carry_out(&requesting, parts) {
            (Outcome::OtherHost(qpn), _) => admit(&requesting, qpn, parts),
            carried_out => carried_out,
        };
        let copies = u64::from(matches!(outcome, Outcome::NotReady(_)));
        self.charge_moved(Work { copies, bytes: cost }, from, context);
        match outcome {
            Outcome::Ended | Outcome::OtherHost(_) => {
                context.delivery.complete((key, queue_pair), slot, 1);
                Ok(RequestTurn::Ended)
            }
            Outcome::Sent => Ok(RequestTurn::Sent),
            Outcome::More => Ok(RequestTurn::Later(Stop::Over)),
            Outcome::NotReady(until) => Ok(RequestTurn::Later(Stop::Until(until))),
        }
    }

    /// Charges what a request cost to its queue pair and to its endpoint's rate.
    fn charge_moved(&mut self, work: Work, from: Destination, context: &mut TxContext<'_>) {
        self.spent.unit += work;
        let session = context.delivery.session(from.session);
        let shape =
            session.and_then(|one| one.shapes.get_mut(from.endpoint as usize)?.as_deref_mut());
        if let Some(shape) = shape {
            // The time is right if there is a rate: see `TxPath::discover`.
            let now = self.now;
            let moment = Moment { now, tick: self.tick, since: now, ..Moment::default() };
            shape.charge_bytes(work.bytes, &moment);
        }
    }
}
