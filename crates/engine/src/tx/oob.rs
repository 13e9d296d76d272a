//! Out-of-band messages in a transmit queue. They wait their turn as packets do. None is late: an
//! endpoint's maximum delay is for packets.

use towpath_protocol::counters::OutOfBand as Count;
use towpath_protocol::oob::OobMessage;
use towpath_queue::Violation;
use zerocopy::FromBytes;

use crate::demux::Destination;
use crate::oob::{Parts, Sender};
use crate::remote::requests::{Message, send_message};
use crate::tx::batch::Batch;
use crate::tx::context::TxContext;
use crate::tx::outcome::EntryOutcome;

/// Delivers the message `index` of a batch, or drops and counts it.
pub(super) fn send(batch: &Batch, index: usize, context: &mut TxContext<'_>) -> EntryOutcome {
    try_send(batch, index, context).unwrap_or_else(EntryOutcome::Violation)
}

/// Does the same.
///
/// # Errors
/// The sender's violation.
fn try_send(
    batch: &Batch,
    index: usize,
    context: &mut TxContext<'_>,
) -> Result<EntryOutcome, Violation> {
    let taken = &batch.packets[index];
    let (key, queue_pair, slot) = (batch.key, batch.queue_pair, taken.first);
    let from = Destination { session: key, endpoint: taken.endpoint };
    let Some(session) = context.sender(key) else { return Ok(EntryOutcome::Done) };
    let endpoint = session.receive.endpoints.named(taken.endpoint)?;
    if endpoint.is_some_and(|endpoint| endpoint.queue_pair != queue_pair) {
        return Err(Violation::Endpoint);
    }
    let message = taken.fetched.then(|| OobMessage::read_from_bytes(batch.beginning(index)));
    let Some(Ok(message)) = message else { return Err(Violation::Range) };
    let number = session.number();
    let sender = Sender { from, session: number, queue_pair, slot, may_repeat: false };
    let (sessions, notifier) = context.delivery.parts();
    let (apertures, remote) = (&mut *context.apertures, &mut *context.remote);
    let parts = &mut Parts { sessions, notifier, apertures, remote };
    if let Some(connection) = parts.other_host(from, &message) {
        let sent = send_message(&sender, connection, message.payload(), parts);
        return Ok(match sent {
            Message::Sent => {
                parts.count(from, Count::Sent);
                EntryOutcome::HandedOff
            }
            Message::Done => EntryOutcome::Done,
            Message::Dropped => {
                parts.count(from, Count::DroppedFull);
                EntryOutcome::Done
            }
        });
    }
    let Some(session) = context.sender(key) else { return Ok(EntryOutcome::Done) };
    // A message that an earlier server had handled, and not completed, comes again.
    if !session.extras.oob.is_handled(queue_pair, slot, session.shape().queues.transmit()) {
        let (sessions, notifier) = context.delivery.parts();
        let (apertures, remote) = (&mut *context.apertures, &mut *context.remote);
        let parts = &mut Parts { sessions, notifier, apertures, remote };
        context.oob.send(&sender, &message, parts)?;
        if let Some(session) = context.sender(key) {
            session.extras.oob.handled(queue_pair, slot);
        }
    }
    Ok(EntryOutcome::Done)
}
