//! Out-of-band messages in a transmit queue. They wait their turn as packets do. None is late: an
//! endpoint's maximum delay is for packets.

use towpath_protocol::counters::OutOfBand as Count;
use towpath_protocol::oob::OobMessage;
use towpath_queue::Violation;
use zerocopy::FromBytes;

use crate::engine::demux::Destination;
use crate::engine::oob::{Parts, Sender};
use crate::engine::remote::requests::{Message, send_message};
use crate::engine::tx::batch::Batch;
use crate::engine::tx::context::TxContext;

/// Delivers the message `index` of a batch, or drops and counts it.
///
/// # Errors
/// The sender's violation.
pub(super) fn send(
    batch: &Batch,
    index: usize,
    context: &mut TxContext<'_>,
) -> Result<(), Violation> {
    let taken = &batch.packets[index];
    let (key, queue_pair, slot) = (batch.key, batch.queue_pair, taken.first);
    let from = Destination { session: key, endpoint: taken.endpoint };
    let Some(session) = context.delivery.session(key) else { return Ok(()) };
    let endpoint = session.endpoints.get(taken.endpoint as usize).ok_or(Violation::Endpoint)?;
    if endpoint.as_ref().is_some_and(|endpoint| endpoint.queue_pair != queue_pair) {
        return Err(Violation::Endpoint);
    }
    let message = taken.fetched.then(|| OobMessage::read_from_bytes(batch.beginning(index)));
    let Some(Ok(message)) = message else { return Err(Violation::Range) };
    let number = session.number;
    let sender = Sender { from, session: number, queue_pair, slot, may_repeat: false };
    let (sessions, notifier) = context.delivery.parts();
    let (apertures, remote) = (&mut *context.apertures, &mut *context.remote);
    let parts = &mut Parts { sessions, notifier, apertures, remote };
    if let Some(connection) = parts.other_host(from, &message) {
        let sent = send_message(&sender, connection, message.payload(), parts);
        match sent {
            Message::Sent => parts.count(from, Count::Sent),
            Message::Done => {}
            Message::Dropped => parts.count(from, Count::DroppedFull),
        }
        if sent != Message::Sent {
            context.delivery.complete((key, queue_pair), slot, 1);
        }
        return Ok(());
    }
    let Some(session) = context.delivery.session(key) else { return Ok(()) };
    // A message that an earlier server had handled, and not completed, comes again.
    if !session.oob.is_handled(queue_pair, slot, session.shape.queues.transmit()) {
        let (sessions, notifier) = context.delivery.parts();
        let (apertures, remote) = (&mut *context.apertures, &mut *context.remote);
        let parts = &mut Parts { sessions, notifier, apertures, remote };
        context.oob.send(&sender, &message, parts)?;
        if let Some(session) = context.delivery.session(key) {
            session.oob.handled(queue_pair, slot);
        }
    }
    context.delivery.complete((key, queue_pair), slot, 1);
    Ok(())
}
