//! Receive queues of channels: each with buffers of its own, and a share of what is delivered.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::counters::ReceiveCounters;
use crate::format::{Fragment, MAX_PDU_BYTES};
use crate::limits::Limits;
use crate::pdu::Pdu;
use crate::pieces::Pieces;
use crate::reassembler::{Accepted, Dropped, Reassembler, parse};
use crate::shares::{Share, Shares};

/// The maximum number of channels with a queue at a time.
pub const MAX_QUEUES: usize = 1024;

/// Finished PDUs that a queue remembers for each PDU that it can hold, at most: as many as a
/// receiver without queues by default. The tables of a short queue stay small.
const REMEMBERED: usize = 16;

/// A channel's receive queue: Smith and Traw's "queue per virtual circuit".
///
/// The queue has buffers of its own, for incomplete and for complete PDUs. So a channel that floods
/// the receiver, or that the application does not read, takes no buffer of another channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelQueue {
    /// The channel.
    pub channel: u32,
    /// The maximum number of PDUs, incomplete and complete, 1 to 65 536; 64 by default.
    pub pdus: usize,
    /// The maximum number of bytes for them, at least 64 KiB; 1 MiB by default. A PDU takes its
    /// length, rounded up to a power of two from 256 bytes.
    pub bytes: usize,
    /// The weight, 1 to 1000; 1 by default ([`Channels::take`]).
    pub weight: u32,
}

impl ChannelQueue {
    /// Returns the queue of a channel, with the default limits. A limit out of range becomes the
    /// nearest value in range.
    ///
    /// ```
    /// # use towpath_pdu::ChannelQueue;
    /// let queue = ChannelQueue::new(7);
    /// assert_eq!((queue.pdus, queue.bytes, queue.weight), (64, 1 << 20, 1));
    /// ```
    #[must_use]
    pub fn new(channel: u32) -> ChannelQueue {
        ChannelQueue { channel, pdus: 64, bytes: 16 * MAX_PDU_BYTES, weight: 1 }
    }

    /// Sets the maximum number of PDUs.
    ///
    /// ```
    /// # use towpath_pdu::ChannelQueue;
    /// // Bulk data: many PDUs may wait.
    /// let queue = ChannelQueue::new(7).pdus(1024);
    /// assert_eq!(queue.pdus, 1024);
    /// ```
    #[must_use]
    pub fn pdus(self, pdus: usize) -> ChannelQueue {
        ChannelQueue { pdus, ..self }
    }

    /// Sets the maximum number of bytes.
    ///
    /// ```
    /// # use towpath_pdu::ChannelQueue;
    /// // 8 MiB: 128 PDUs of 64 KiB.
    /// let queue = ChannelQueue::new(7).pdus(128).bytes(8 << 20);
    /// assert_eq!(queue.bytes, 8_388_608);
    /// ```
    #[must_use]
    pub fn bytes(self, bytes: usize) -> ChannelQueue {
        ChannelQueue { bytes, ..self }
    }

    /// Sets the weight.
    ///
    /// ```
    /// # use towpath_pdu::ChannelQueue;
    /// // While both have PDUs, three bytes of channel 1 for one of channel 2.
    /// let queues = [ChannelQueue::new(1).weight(3), ChannelQueue::new(2)];
    /// assert_eq!(queues.map(|queue| queue.weight), [3, 1]);
    /// ```
    #[must_use]
    pub fn weight(self, weight: u32) -> ChannelQueue {
        ChannelQueue { weight, ..self }
    }
}

/// The reason why a channel got no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The channel has one.
    #[error("channel {0} already has a queue")]
    Exists(u32),
    /// Close another one first.
    #[error("{MAX_QUEUES} channels have a queue, the most that are possible")]
    TooMany,
}

/// The state of a channel's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueState {
    /// The counters of receiving on this channel. `reassembled` is the sum of `taken` and `queued`.
    pub received: ReceiveCounters,
    /// PDUs that the application took.
    pub taken: u64,
    /// Complete PDUs in the queue.
    pub queued: usize,
    /// Incomplete PDUs.
    pub incomplete: usize,
    /// Bytes of its buffers, in use or kept for reuse.
    pub held_bytes: usize,
}

#[derive(Debug)]
struct Queue {
    reassembler: Reassembler,
    complete: VecDeque<(Fragment, Box<[u8]>)>,
    share: Share,
    taken: u64,
}

impl Queue {
    fn new(options: &ChannelQueue, limits: Limits) -> Queue {
        let limits = Limits {
            partials: options.pdus,
            bytes: options.bytes,
            finished: limits.finished.min(options.pdus.max(1).saturating_mul(REMEMBERED)),
            ..limits
        };
        let reassembler = Reassembler::keeping(limits);
        let complete = VecDeque::with_capacity(reassembler.limits().partials);
        Queue { reassembler, complete, share: Share::new(options.weight), taken: 0 }
    }

    fn state(&self) -> QueueState {
        QueueState {
            received: self.reassembler.counters(),
            taken: self.taken,
            queued: self.complete.len(),
            incomplete: self.reassembler.waiting(),
            held_bytes: self.reassembler.held_bytes(),
        }
    }

    /// Passes the first PDU to `each`. Returns `false` if the queue is empty.
    fn take(&mut self, each: &mut impl FnMut(Pdu<'_>)) -> bool {
        let Some((fragment, buffer)) = self.complete.pop_front() else { return false };
        self.taken += 1;
        let passed = Passed { reassembler: &mut self.reassembler, buffer };
        each(Pdu::reassembled(fragment, &passed.buffer[..fragment.total as usize]));
        true
    }
}

/// The buffer of a PDU that the application's function reads. Returns it also if the function panics.
struct Passed<'a> {
    reassembler: &'a mut Reassembler,
    buffer: Box<[u8]>,
}

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        self.reassembler.take_back(std::mem::take(&mut self.buffer));
    }
}

/// Reassembles PDUs, by channel. Channels with a queue have their own buffers and limits; all other
/// channels share those of one [`Reassembler`]. As that, it does no input or output.
///
/// ```
/// use std::time::{Duration, Instant};
/// use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES};
///
/// /// A frame that holds the whole PDU "hello".
/// fn frame(channel: u32, id: u32) -> Vec<u8> {
///     let fragment = Fragment {
///         destination: [2, 0, 0, 0, 0, 1].into(),
///         source: [2, 0, 0, 0, 0, 2].into(),
///         channel,
///         id,
///         total: 5,
///         offset: 0,
///         len: 5,
///         crc: 0x9a71_bb4c,
///     };
///     let mut headers = [0; OVERHEAD_BYTES];
///     fragment.write(&mut headers);
///     [&headers[..], b"hello"].concat()
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut channels = Channels::new(Limits::default());
/// channels.open(&ChannelQueue::new(7).pdus(8).weight(3))?;
/// channels.open(&ChannelQueue::new(8).pdus(8))?;
/// // Channel 7 floods: it fills its own queue, and loses the rest.
/// for id in 0..100 {
///     let _ = channels.accept(Instant::now(), std::iter::once(&frame(7, id)[..]));
/// }
/// for id in 0..8 {
///     let accepted = channels.accept(Instant::now(), std::iter::once(&frame(8, id)[..]));
///     assert!(matches!(accepted, Ok(Accepted::Queued(_))));
/// }
/// assert_eq!(channels.state(7).unwrap().received.no_room, 92);
/// // Three of channel 7 for one of channel 8.
/// let mut taken = [0; 2];
/// channels.take(8, |pdu| taken[pdu.channel() as usize - 7] += 1);
/// assert_eq!(taken, [6, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Channels {
    limits: Limits,
    shared: Reassembler,
    queues: HashMap<u32, Queue>,
    shares: Shares,
    /// A time before which no incomplete PDU of a queue expires; `None` if none is incomplete.
    next_expiry: Option<Instant>,
}

impl Channels {
    /// Creates a receiver without queues. The limits are those of the channels without a queue
    /// together; of each queue those that [`ChannelQueue`] does not have.
    ///
    /// ```
    /// # use towpath_pdu::{Channels, Limits};
    /// use std::time::Duration;
    ///
    /// let channels = Channels::new(Limits { time: Duration::from_millis(500), ..Limits::default() });
    /// // No channel has a queue yet.
    /// assert_eq!(channels.state(7), None);
    /// ```
    #[must_use]
    pub fn new(limits: Limits) -> Channels {
        Channels {
            limits,
            shared: Reassembler::new(limits),
            queues: HashMap::new(),
            shares: Shares::default(),
            next_expiry: None,
        }
    }

    /// Gives a channel a queue, and allocates its tables. PDUs of the channel that are incomplete
    /// now are lost.
    ///
    /// ```
    /// # use towpath_pdu::{ChannelQueue, Channels, Limits, QueueError};
    /// let mut channels = Channels::new(Limits::default());
    /// channels.open(&ChannelQueue::new(7).pdus(32))?;
    /// assert_eq!(channels.open(&ChannelQueue::new(7)), Err(QueueError::Exists(7)));
    /// # Ok::<(), QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn open(&mut self, options: &ChannelQueue) -> Result<(), QueueError> {
        if self.queues.contains_key(&options.channel) {
            return Err(QueueError::Exists(options.channel));
        }
        if self.queues.len() == MAX_QUEUES {
            return Err(QueueError::TooMany);
        }
        self.queues.insert(options.channel, Queue::new(options, self.limits));
        self.shares.reserve(self.queues.len());
        Ok(())
    }

    /// Closes a channel's queue, and drops its PDUs. Returns the state before that; `None` if the
    /// channel has no queue.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut channels = Channels::new(Limits::default());
    /// channels.open(&ChannelQueue::new(7)).unwrap();
    /// channels.accept(now, std::iter::once(&frame(1, 0, b"hello")[..])).unwrap();
    /// // The PDU that waited is lost.
    /// assert_eq!(channels.close(7).unwrap().queued, 1);
    /// assert_eq!(channels.close(7), None);
    /// ```
    pub fn close(&mut self, channel: u32) -> Option<QueueState> {
        let queue = self.queues.remove(&channel)?;
        self.shares.remove(channel);
        if self.queues.is_empty() {
            self.next_expiry = None;
        }
        Some(queue.state())
    }

    /// Returns the state of a channel's queue; `None` if the channel has no queue.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut channels = Channels::new(Limits::default());
    /// channels.open(&ChannelQueue::new(7)).unwrap();
    /// channels.accept(now, std::iter::once(&frame(1, 0, b"hel")[..])).unwrap();
    /// let state = channels.state(7).unwrap();
    /// assert_eq!((state.incomplete, state.queued, state.taken), (1, 0, 0));
    /// ```
    #[must_use]
    pub fn state(&self, channel: u32) -> Option<QueueState> {
        self.queues.get(&channel).map(Queue::state)
    }

    /// Takes a frame in pieces. A PDU of a channel with a queue waits there until the application
    /// takes it; if it has a single fragment, this copies it.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut channels = Channels::new(Limits::default());
    /// channels.open(&ChannelQueue::new(7)).unwrap();
    /// let (first, second) = (frame(1, 0, b"hel"), frame(1, 3, b"lo"));
    /// assert!(matches!(channels.accept(now, std::iter::once(&first[..])), Ok(Accepted::Waits)));
    /// let second = channels.accept(now, std::iter::once(&second[..]));
    /// assert!(matches!(second, Ok(Accepted::Queued(fragment)) if fragment.channel == 7));
    /// ```
    ///
    /// # Errors
    /// [`Dropped`] gives the reason for a dropped fragment.
    pub fn accept<'f>(
        &mut self,
        now: Instant,
        frame: impl Iterator<Item = &'f [u8]> + Clone,
    ) -> Result<Accepted<'_>, Dropped> {
        if self.queues.is_empty() {
            return self.shared.accept(now, frame);
        }
        self.expire(now);
        let fragment = parse(frame.clone()).inspect_err(|_| self.shared.count_malformed())?;
        let part = Pieces::after_headers(frame, fragment.len as usize);
        let Some(queue) = self.queues.get_mut(&fragment.channel) else {
            return self.shared.accept_part(now, &fragment, part);
        };
        queue.reassembler.expire(now);
        queue.reassembler.accept_part(now, &fragment, part)?;
        // Each complete PDU is kept at once, so there is one only if this fragment completed it.
        let Some(buffer) = queue.reassembler.keep() else {
            let expiry = queue.reassembler.deadline();
            self.next_expiry = [self.next_expiry, expiry].into_iter().flatten().min();
            return Ok(Accepted::Waits);
        };
        queue.complete.push_back((fragment, buffer));
        self.shares.list(fragment.channel, &mut queue.share);
        Ok(Accepted::Queued(fragment))
    }

    /// Passes at most `budget` queued PDUs to `each`, and returns their number: less than `budget`
    /// if no more wait. Each channel's share of the bytes is proportional to its weight, for as
    /// long as it has PDUs; a PDU counts 42 bytes more than it has.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut channels = Channels::new(Limits::default());
    /// channels.open(&ChannelQueue::new(7)).unwrap();
    /// channels.accept(now, std::iter::once(&frame(1, 0, b"hello")[..])).unwrap();
    /// // At most 16; there is one.
    /// let taken = channels.take(16, |pdu| assert_eq!(pdu.contiguous(), Some(&b"hello"[..])));
    /// assert_eq!(taken, 1);
    /// ```
    pub fn take(&mut self, budget: usize, mut each: impl FnMut(Pdu<'_>)) -> usize {
        let mut taken = 0;
        while taken < budget
            && let Some(channel) = self.shares.next()
        {
            let Some(queue) = self.queues.get_mut(&channel) else { continue };
            // Before the function, which may panic.
            let len = queue.complete.front().map(|(fragment, _)| fragment.total as usize);
            Shares::charge(&mut queue.share, len);
            if queue.complete.len() > 1 {
                self.shares.list(channel, &mut queue.share);
            }
            taken += usize::from(queue.take(&mut each));
        }
        taken
    }

    /// Passes at most `budget` PDUs of one channel's queue to `each`, and returns their number.
    /// They do not count towards the channel's share.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut channels = Channels::new(Limits::default());
    /// channels.open(&ChannelQueue::new(7)).unwrap();
    /// channels.accept(now, std::iter::once(&frame(1, 0, b"hello")[..])).unwrap();
    /// assert_eq!(channels.take_from(8, 16, |_| unreachable!("channel 8 has no queue")), 0);
    /// assert_eq!(channels.take_from(7, 16, |pdu| assert_eq!(pdu.len(), 5)), 1);
    /// ```
    pub fn take_from(
        &mut self,
        channel: u32,
        budget: usize,
        mut each: impl FnMut(Pdu<'_>),
    ) -> usize {
        let Some(queue) = self.queues.get_mut(&channel) else { return 0 };
        (0..budget).take_while(|_| queue.take(&mut each)).count()
    }

    /// Gives up PDUs whose time has expired, and reclaims the buffer of the last delivered PDU of
    /// a channel without a queue.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut channels = Channels::new(Limits { time: Duration::from_secs(2), ..Limits::default() });
    /// channels.open(&ChannelQueue::new(7)).unwrap();
    /// channels.accept(now, std::iter::once(&frame(1, 0, b"hel")[..])).unwrap();
    /// channels.expire(now + Duration::from_secs(2));
    /// assert_eq!(channels.state(7).unwrap().received.expired, 1);
    /// ```
    pub fn expire(&mut self, now: Instant) {
        self.shared.expire(now);
        if self.next_expiry.is_none_or(|expiry| now < expiry) {
            return;
        }
        for queue in self.queues.values_mut() {
            queue.reassembler.expire(now);
        }
        let deadlines = self.queues.values().filter_map(|queue| queue.reassembler.deadline());
        self.next_expiry = deadlines.min();
    }

    /// Returns a time before which no incomplete PDU expires. It may be that of a PDU which is complete by
    /// now. `None`: none is incomplete.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut channels = Channels::new(Limits { time: Duration::from_secs(2), ..Limits::default() });
    /// channels.accept(now, std::iter::once(&frame(1, 0, b"hel")[..])).unwrap();
    /// // The program waits for frames until then, and calls `expire`.
    /// assert_eq!(channels.deadline(), Some(now + Duration::from_secs(2)));
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        [self.shared.deadline(), self.next_expiry].into_iter().flatten().min()
    }

    /// Returns the reassembler of the channels without a queue.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut channels = Channels::new(Limits::default());
    /// // Channel 7 has no queue.
    /// channels.accept(now, std::iter::once(&frame(1, 0, b"hel")[..])).unwrap();
    /// assert_eq!(channels.shared().waiting(), 1);
    /// ```
    #[must_use]
    pub fn shared(&self) -> &Reassembler {
        &self.shared
    }

    pub(crate) fn count_other_endpoint(&mut self) {
        self.shared.count_other_endpoint();
    }
}
