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
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use towpath_pdu::{Options, PduEndpoint, Session};
    ///
    /// let session = Session::attach("/run/towpath/tap0.sock", &Default::default())?;
    /// // Also PDUs to groups.
    /// let pdus = PduEndpoint::open(session, &Options { group: true, ..Options::default() })?;
    /// println!("at most {} bytes per PDU", pdus.max_pdu_bytes());
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::Write;
    ///
    /// // 40 000 bytes on channel 7.
    /// let mut message = pdus.message([2, 0, 0, 0, 0, 9], 7, 40_000)?;
    /// message.write_all(&[0x5a; 40_000])?;
    /// message.send()?;
    /// pdus.flush()?;
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let id = pdus.send_bytes([2, 0, 0, 0, 0, 9], 7, b"hello")?;
    /// pdus.flush()?;
    /// println!("sent PDU {id}");
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let picture = [0; 50_000];
    /// while !pdus.has_room(7, picture.len()) {
    ///     pdus.want_room();
    ///     pdus.wait(None)?;
    /// }
    /// pdus.send_bytes([2, 0, 0, 0, 0, 9], 7, &picture)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn has_room(&mut self, channel: u32, len: usize) -> bool {
        len <= self.max_pdu_bytes() && self.sender.has_room(channel, len) == Ok(true)
    }

    /// Returns the length of the longest PDU that can be sent, in bytes: 65 536, or the capacity of
    /// all transmit buffers.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let file = std::fs::read("picture.jpeg")?;
    /// for part in file.chunks(pdus.max_pdu_bytes()) {
    ///     pdus.send_bytes([2, 0, 0, 0, 0, 9], 7, part)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn max_pdu_bytes(&self) -> usize {
        self.sender.max_pdu_bytes()
    }

    /// Returns the maximum number of PDU bytes in one fragment.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// // PDUs of at most this length are sent in one packet, and received in place.
    /// let part = vec![0; pdus.chunk_bytes()];
    /// pdus.send_bytes([2, 0, 0, 0, 0, 9], 7, &part)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.sender.chunk_bytes
    }

    /// Returns the number of fragments that wait for their turn and are not in the transmit queue
    /// yet.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// if pdus.waiting_fragments() < 1000 {
    ///     pdus.send_bytes([2, 0, 0, 0, 0, 9], 7, b"of low urgency")?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn waiting_fragments(&self) -> usize {
        self.sender.turns.len()
    }

    /// Puts fragments into the transmit queue, channels in turn, up to [`Options::ahead`].
    /// Publishes them to the server, and notifies the server if it sleeps.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// for channel in 1..=3 {
    ///     pdus.send_bytes([2, 0, 0, 0, 0, 9], channel, b"hello")?;
    /// }
    /// // All three with one notification.
    /// pdus.flush()?;
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// loop {
    ///     pdus.wait(None)?;
    ///     // A return of 64 says that further packets may wait.
    ///     while pdus.receive(64, |pdu| println!("{} bytes", pdu.len()))? == 64 {}
    /// }
    /// # #[expect(unreachable_code)]
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(last) = pdus.close_queue(7) {
    ///     println!("{} PDUs taken, {} lost with the queue", last.taken, last.queued);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn close_queue(&mut self, channel: u32) -> Option<QueueState> {
        self.channels.close(channel)
    }

    /// Returns the state of a channel's queue; `None` if the channel has no queue.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(state) = pdus.queue_state(7) {
    ///     println!("{} PDUs wait, in {} bytes", state.queued, state.held_bytes);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn queue_state(&self, channel: u32) -> Option<QueueState> {
        self.channels.state(channel)
    }

    /// Passes at most `budget` queued PDUs to `each`, channels in proportion to their weights, and
    /// returns their number ([`Channels::take`]). A PDU that stays in its queue does not end a later
    /// [`PduEndpoint::wait`].
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// pdus.receive(64, |_| {})?;
    /// let taken = pdus.take(16, |pdu| println!("{} bytes on {}", pdu.len(), pdu.channel()));
    /// println!("{taken} PDUs taken");
    /// # Ok(())
    /// # }
    /// ```
    pub fn take(&mut self, budget: usize, each: impl FnMut(Pdu<'_>)) -> usize {
        self.channels.take(budget, each)
    }

    /// Passes at most `budget` PDUs of one channel's queue to `each`, and returns their number.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// // The control channel first, then all channels by their weights.
    /// pdus.take_from(1, 16, |pdu| println!("control: {} bytes", pdu.len()));
    /// pdus.take(16, |pdu| println!("{} bytes on {}", pdu.len(), pdu.channel()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_from(&mut self, channel: u32, budget: usize, each: impl FnMut(Pdu<'_>)) -> usize {
        self.channels.take_from(channel, budget, each)
    }

    /// Makes the next [`PduEndpoint::wait`] return also when buffers become free.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// use towpath_pdu::SendError;
    ///
    /// while let Err(SendError::Full) = pdus.send_bytes([2, 0, 0, 0, 0, 9], 7, b"hello") {
    ///     pdus.want_room();
    ///     pdus.wait(None)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Waits for received packets or, on request, for free buffers. Meanwhile the endpoint sends
    /// waiting fragments, and gives up incomplete PDUs whose time has expired. Returns `false` on a
    /// timeout; `None` never times out, and zero only checks. `true` is no promise: the packets may
    /// complete no PDU, and the buffers may be too few.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// if pdus.wait(Some(Duration::from_millis(100)))? {
    ///     pdus.receive(64, |pdu| println!("{} bytes", pdu.len()))?;
    /// } else {
    ///     println!("no packet within 100 ms");
    /// }
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// pdus.send_bytes([2, 0, 0, 0, 0, 9], 7, b"the last word")?;
    /// // Before the drop, which loses unsent fragments.
    /// if !pdus.drain(Duration::from_secs(1), |_| {})? {
    ///     eprintln!("not all PDUs have left within 1 s");
    /// }
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} buffers are free", pdus.free_buffers()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn free_buffers(&mut self) -> Result<usize, Lost> {
        self.sender.session.sender().free_buffers()
    }

    /// Returns the session, for its counters and other information.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let info = pdus.session().info();
    /// println!("this endpoint is at {}, with an MTU of {} bytes", info.mac, info.mtu);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.sender.session
    }

    /// Returns this endpoint's handle in its session.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("endpoint {} of the session", pdus.endpoint().id());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.sender.endpoint
    }

    /// Returns the number of incomplete received PDUs of all channels without a queue.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} PDUs are incomplete", pdus.partials());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn partials(&self) -> usize {
        self.channels.shared().waiting()
    }

    /// Returns the counters of receiving on all channels without a queue.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let received = pdus.received();
    /// println!("{} PDUs delivered, {} expired", received.delivered(), received.expired);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn received(&self) -> ReceiveCounters {
        self.channels.shared().counters()
    }

    /// Returns the counters of sending.
    ///
    /// ```no_run
    /// # fn example(mut pdus: towpath_pdu::PduEndpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let sent = pdus.sent();
    /// println!("{} PDUs sent in {} fragments", sent.pdus, sent.fragments);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn sent(&self) -> SendCounters {
        self.sender.sent
    }
}
