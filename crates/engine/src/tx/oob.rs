//! Out-of-band messages in a transmit queue. They wait their turn as packets do. None is late: an
//! endpoint's maximum delay is for packets.

use towpath_protocol::counters::OutOfBand as Count;
use towpath_protocol::oob::OobMessage;
use towpath_queue::Violation;
use zerocopy::FromBytes;

use crate::oob::Sender;
use crate::remote::requests::{Message, send_message};
use crate::tx::batch::Batch;
use crate::tx::context::TxContext;
use crate::tx::outcome::EntryOutcome;

/// Delivers the message `index` of a batch, or drops and counts it.
///
/// # Errors
/// The sender's violation.
pub(super) fn send(
    batch: &Batch,
    index: usize,
    context: &mut TxContext<'_>,
) -> Result<EntryOutcome, Violation> {
    let Some(sender) = context.entry_sender(batch, index)? else { return Ok(EntryOutcome::Done) };
    let Sender { from, queue_pair, slot, .. } = sender;
    let message =
        batch.packets[index].fetched.then(|| OobMessage::read_from_bytes(batch.beginning(index)));
    let Some(Ok(message)) = message else { return Err(Violation::Range) };
    let parts = &mut context.parts();
    if let Some(connection) = parts.other_host(from, &message) {
        return Ok(match send_message(&sender, connection, message.payload(), parts) {
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
    let Some(session) = context.sender(from.session) else { return Ok(EntryOutcome::Done) };
    // A message that an earlier server had handled, and not completed, comes again.
    if !session.extras.oob.is_handled(queue_pair, slot, session.shape().queues.transmit()) {
        context.oob.send(&sender, &message, &mut context.parts())?;
        if let Some(session) = context.sender(from.session) {
            session.extras.oob.handled(queue_pair, slot);
        }
    }
    Ok(EntryOutcome::Done)
}
