//! Requests in a transmit queue. They wait their turn as packets do, and a long one is carried out
//! in several turns. The bytes that a request moves count against its queue pair's share and its
//! endpoint's rate.

use towpath_protocol::requests::Request;
use towpath_queue::Violation;

use crate::apertures::requests::{Outcome, Requesting, carry_out};
use crate::demux::Destination;
use crate::remote::requests::admit;
use crate::schedule::shape::Moment;
use crate::tx::TxPath;
use crate::tx::batch::Batch;
use crate::tx::context::TxContext;
use crate::tx::outcome::EntryOutcome;
use crate::work::Work;

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
    ) -> Result<EntryOutcome, Violation> {
        let Some(sender) = context.entry_sender(batch, index)? else {
            return Ok(EntryOutcome::Done);
        };
        let from = sender.from;
        if context.sender(from.session).is_some_and(|one| one.extras.apertures.is_empty()) {
            return Err(Violation::Flags);
        }
        let request =
            batch.packets[index].fetched.then(|| Request::from_bytes(batch.beginning(index)));
        let Some(Some(request)) = request else { return Err(Violation::Range) };
        let checked = request.check().ok_or(Violation::Flags)?;
        let parts = &mut context.parts();
        let requesting = Requesting { sender, request: &request, checked };
        let (outcome, cost) = match carry_out(&requesting, parts) {
            (Outcome::OtherHost(qpn), _) => admit(&requesting, qpn, parts),
            carried_out => carried_out,
        };
        let copies = u64::from(matches!(outcome, Outcome::NotReady(_)));
        self.charge_moved(Work { copies, bytes: cost }, from, context);
        Ok(match outcome {
            Outcome::Ended | Outcome::OtherHost(_) => EntryOutcome::Done,
            Outcome::Sent => EntryOutcome::HandedOff,
            Outcome::More => {
                self.continues_at = None;
                EntryOutcome::Unfinished
            }
            Outcome::NotReady(until) => {
                self.continues_at = Some(until);
                EntryOutcome::Unfinished
            }
        })
    }

    /// Charges what a request cost to its queue pair and to its endpoint's rate.
    fn charge_moved(&mut self, work: Work, from: Destination, context: &mut TxContext<'_>) {
        self.spent.add_request(work);
        let session = context.delivery.session(from.session);
        if let Some(shape) = session.and_then(|one| one.transmit.shape(from.endpoint)) {
            // The time is right if there is a rate: see `TxPath::discover`.
            let now = self.now;
            let moment = Moment { now, tick: self.tick, since: now, ..Moment::default() };
            shape.charge_bytes(work.bytes, &moment);
        }
    }
}
