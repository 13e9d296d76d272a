//! PDU endpoints: a session's endpoint that sends and receives PDUs.

use std::io::Write;
use std::time::{Duration, Instant};

use towpath_client::{Endpoint, Lost, MacAddr, QueuePair, Rule, Session};

use crate::channels::{ChannelQueue, Channels, QueueError, QueueState};
use crate::counters::{ReceiveCounters, SendCounters};
use crate::format::{ETHERTYPE, OVERHEAD_BYTES};
use crate::limits::Limits;
use crate::message::Message;
use crate::pdu::Pdu;
use crate::reassembler::Accepted;
use crate::sender::{SendError, Sender, lost};

/// The default number of fragments in the transmit queue at a time ([`Options::ahead`]): more than
/// a PDU of 64 KiB has at an MTU of 1500.
pub const MAX_AHEAD: u32 = 64;
const ETHERNET_BYTES: usize = 14;

/// Options of a PDU endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The queue pair of the session that the endpoint uses.
    pub queue_pair: QueuePair,
    /// `true` to receive PDUs to broadcast and multicast addresses too.
    pub group: bool,
    /// The limits of receiving.
    pub limits: Limits,
    /// The maximum number of fragments in the transmit queue at a time, at least 1. Further
    /// fragments wait in the endpoint, where channels take turns. A PDU of one fragment waits for
    /// at most this many fragments of other PDUs, and for one of each channel before it. At most 8
    /// longer PDUs are begun at a time. A lower value shortens that wait; a higher value saves
    /// wake-ups.
    pub ahead: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queue_pair: QueuePair::FIRST,
            group: false,
            limits: Limits::default(),
            ahead: MAX_AHEAD,
        }
    }
}

/// The reason why a PDU endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The server refused, or is gone.
    #[error(transparent)]
    Open(#[from] towpath_client::OpenError),
    /// The MTU or the session's transmit buffers have no room for a fragment.
    #[error(
        "packets of {packet_bytes} bytes have no room beyond {OVERHEAD_BYTES} bytes of headers"
    )]
    NoRoom {
        /// The longest packet that the MTU and the buffers allow, in bytes.
        packet_bytes: usize,
    },
}

/// An endpoint that sends and receives PDUs. It owns its session.
///
/// The endpoint sends waiting fragments in calls of [`flush`](PduEndpoint::flush),
/// [`receive`](PduEndpoint::receive), [`wait`](PduEndpoint::wait) and
/// [`drain`](PduEndpoint::drain), without a thread of its own. Dropping the endpoint closes its
/// session and loses unsent fragments: call [`drain`](PduEndpoint::drain) first.
#[derive(Debug)]
pub struct PduEndpoint {
    sender: Sender,
    channels: Channels,
    wants_room: bool,
}

impl PduEndpoint {
    /// Opens an endpoint of ethertype 0x88B5 for the session's own MAC address.
    ///
    /// # Errors
    /// [`OpenError`] gives the reason.
    pub fn open(mut session: Session, options: &Options) -> Result<PduEndpoint, OpenError> {
        let packet_bytes =
            (session.info().mtu + ETHERNET_BYTES).min(session.transmit_buffer_bytes());
        if packet_bytes <= OVERHEAD_BYTES {
            return Err(OpenError::NoRoom { packet_bytes });
        }
        let rule = Rule::new().ethertype(ETHERTYPE).queue_pair(options.queue_pair);
        let endpoint = session.open(&if options.group { rule.with_group() } else { rule })?;
        // A length on the wire has 16 bits.
        let chunk_bytes = (packet_bytes - OVERHEAD_BYTES).min(u16::MAX as usize);
        let sender = Sender::new(session, endpoint, chunk_bytes, options.ahead)
            .map_err(towpath_client::OpenError::Lost)?;
        Ok(PduEndpoint { sender, channels: Channels::new(options.limits), wants_room: false })
    }

    /// Begins a PDU of `len` bytes to a MAC address and channel, for writing in place. Takes
    /// buffers for the whole PDU, or none.
    ///
    /// A channel with waiting fragments leaves an eighth of the buffers to other channels.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn message(
        &mut self,
        to: impl Into<MacAddr>,
        channel: u32,
        len: usize,
    ) -> Result<Message<'_>, SendError> {
        self.sender.reserve(channel, len)?;
        Ok(Message::new(&mut self.sender, to.into(), channel, len))
    }

    /// Sends a PDU from `bytes`, with one copy. Returns its number.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_bytes(
        &mut self,
        to: impl Into<MacAddr>,
        channel: u32,
        bytes: &[u8],
    ) -> Result<u32, SendError> {
        let mut message = self.message(to, channel, bytes.len())?;
        // The message has room for exactly these bytes.
        let _ = message.write_all(bytes);
        Ok(message.send()?)
    }

    /// Returns `true` if the endpoint would accept a PDU of `len` bytes on that channel now.
    #[must_use]
    pub fn has_room(&mut self, channel: u32, len: usize) -> bool {
        len <= self.max_pdu_bytes() && self.sender.has_room(channel, len) == Ok(true)
    }

    /// Returns the length of the longest PDU that can be sent, in bytes: 65 536, or the capacity of
    /// all transmit buffers.
    #[must_use]
    pub fn max_pdu_bytes(&self) -> usize {
        self.sender.max_pdu_bytes()
    }

    /// Returns the maximum number of PDU bytes in one fragment.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.sender.chunk_bytes
    }

    /// Returns the number of fragments that wait for their turn and are not in the transmit queue
    /// yet.
    #[must_use]
    pub fn waiting_fragments(&self) -> usize {
        self.sender.turns.len()
    }

    /// Puts fragments into the transmit queue, channels in turn, up to [`Options::ahead`].
    /// Publishes them to the server, and notifies the server if it sleeps.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn flush(&mut self) -> Result<(), Lost> {
        self.sender.flush()
    }

    /// Examines at most `budget` received packets. Passes each complete PDU to `each`, or puts it
    /// into the queue of its channel ([`PduEndpoint::open_queue`]). Returns the number of packets:
    /// less than `budget` if no more wait.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(Pdu<'_>)) -> Result<usize, Lost> {
        let now = Instant::now();
        let (channels, own) = (&mut self.channels, self.sender.endpoint.id());
        channels.expire(now);
        let queue_pair = self.sender.endpoint.queue_pair();
        let got = self.sender.session.receiver().receive(queue_pair, budget, |received| {
            if received.endpoint() != own {
                channels.count_other_endpoint();
                return;
            }
            match channels.accept(now, received.parts()) {
                Ok(Accepted::InPlace(fragment)) => each(Pdu::in_place(fragment, received)),
                Ok(Accepted::Reassembled(fragment, bytes)) => {
                    each(Pdu::reassembled(fragment, bytes));
                }
                // Each drop has a counter.
                Ok(Accepted::Waits | Accepted::Queued(_)) | Err(_) => {}
            }
        });
        let got = got.map_err(lost)?;
        if self.sender.turns.len() > 0 {
            self.flush()?;
        }
        Ok(got)
    }

    /// Gives a channel a receive queue of its own, with its own buffers: [`PduEndpoint::receive`]
    /// puts the channel's PDUs there, and the application takes them with [`PduEndpoint::take`] or
    /// [`PduEndpoint::take_from`].
    ///
    /// ```no_run
    /// use towpath_pdu::{ChannelQueue, Options, PduEndpoint, Session};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let session = Session::attach("/run/towpath/tap0.sock", &Default::default())?;
    /// let mut pdus = PduEndpoint::open(session, &Options::default())?;
    /// // While both have PDUs, three bytes of the video for one of the rest.
    /// pdus.open_queue(&ChannelQueue::new(1).pdus(256).bytes(8 << 20).weight(3))?;
    /// pdus.open_queue(&ChannelQueue::new(2).pdus(32))?;
    /// loop {
    ///     pdus.wait(None)?;
    ///     // Channels without a queue deliver here.
    ///     while pdus.receive(64, |pdu| println!("channel {}: not open", pdu.channel()))? == 64 {}
    ///     while pdus.take(16, |pdu| println!("{} bytes on {}", pdu.len(), pdu.channel())) == 16 {
    ///         // Keeps the session's receive buffers empty during a long series.
    ///         pdus.receive(64, |_| {})?;
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn open_queue(&mut self, queue: &ChannelQueue) -> Result<(), QueueError> {
        self.channels.open(queue)
    }

    /// Closes a channel's queue, and drops its PDUs. Returns the state before that; `None` if the
    /// channel has no queue.
    pub fn close_queue(&mut self, channel: u32) -> Option<QueueState> {
        self.channels.close(channel)
    }

    /// Returns the state of a channel's queue; `None` if the channel has no queue.
    #[must_use]
    pub fn queue_state(&self, channel: u32) -> Option<QueueState> {
        self.channels.state(channel)
    }

    /// Passes at most `budget` queued PDUs to `each`, channels in proportion to their weights, and
    /// returns their number ([`Channels::take`]). A PDU that stays in its queue does not end a later
    /// [`PduEndpoint::wait`].
    pub fn take(&mut self, budget: usize, each: impl FnMut(Pdu<'_>)) -> usize {
        self.channels.take(budget, each)
    }

    /// Passes at most `budget` PDUs of one channel's queue to `each`, and returns their number.
    pub fn take_from(&mut self, channel: u32, budget: usize, each: impl FnMut(Pdu<'_>)) -> usize {
        self.channels.take_from(channel, budget, each)
    }

    /// Makes the next [`PduEndpoint::wait`] return also when buffers become free.
    pub fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Waits for received packets or, on request, for free buffers. Meanwhile the endpoint sends
    /// waiting fragments, and gives up incomplete PDUs whose time has expired. Returns `false` on a
    /// timeout; `None` never times out, and zero only checks. `true` is no promise: the packets may
    /// complete no PDU, and the buffers may be too few.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Lost> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            self.flush()?;
            let now = Instant::now();
            self.channels.expire(now);
            if self.wants_room || self.sender.turns.len() > 0 {
                let queue_pair = self.sender.endpoint.queue_pair();
                self.sender.session.sender().want_room(queue_pair).map_err(lost)?;
            }
            let next = [until, self.channels.deadline()].into_iter().flatten().min();
            let left = next.map(|next| next.saturating_duration_since(now));
            if self.sender.session.wait(left)? {
                self.wants_room = false;
                self.flush()?;
                return Ok(true);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
        }
    }

    /// Waits until the server has completed all accepted PDUs, and passes PDUs received meanwhile
    /// to `each`. Returns `false` on a timeout.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn drain(
        &mut self,
        timeout: Duration,
        mut each: impl FnMut(Pdu<'_>),
    ) -> Result<bool, Lost> {
        let until = Instant::now().checked_add(timeout);
        loop {
            self.flush()?;
            let queue_pair = self.sender.endpoint.queue_pair();
            let unsent = self.sender.session.sender().unsent(queue_pair).map_err(lost)?;
            if self.sender.turns.len() == 0 && unsent == 0 {
                return Ok(true);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            self.want_room();
            self.wait(left)?;
            self.receive(self.sender.slots as usize, &mut each)?;
        }
    }

    /// Returns how many transmit buffers are free, as last reclaimed. Sending and
    /// [`PduEndpoint::has_room`] reclaim those that the server has completed.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn free_buffers(&mut self) -> Result<usize, Lost> {
        self.sender.session.sender().free_buffers()
    }

    /// Returns the session, for its counters and other information.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.sender.session
    }

    /// Returns this endpoint's handle in its session.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.sender.endpoint
    }

    /// Returns the number of incomplete received PDUs of all channels without a queue.
    #[must_use]
    pub fn partials(&self) -> usize {
        self.channels.shared().waiting()
    }

    /// Returns the counters of receiving on all channels without a queue.
    #[must_use]
    pub fn received(&self) -> ReceiveCounters {
        self.channels.shared().counters()
    }

    /// Returns the counters of sending.
    #[must_use]
    pub fn sent(&self) -> SendCounters {
        self.sender.sent
    }
}
