//! A session: attach, endpoints, send, receive.

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use towpath_packet::Meta;
use towpath_protocol::channel::Channel;
use towpath_protocol::counters;
use towpath_protocol::layout::{
    CLOSED_WORD, ENDPOINT_COUNTERS, STATE_SLEEP_WORD, SessionShape, own_words, peer_words,
};
use towpath_protocol::memory::{Mapping, SharedFile};
use towpath_protocol::message::{self, Attach, Message};
use towpath_queue::descriptor::{Descriptor, MAX_CHAIN, prefetch_distance};
use towpath_queue::doorbell::{Ringer, Sleeper};
use towpath_queue::events::{self, Acknowledger, Marker};
use towpath_queue::frames::FreeFrames;
use towpath_queue::receive::{ReceiveConsumer, application_side};
use towpath_queue::transmit::TransmitProducer;
use towpath_queue::{PeerWords, Violation, doorbell};

use crate::control::{Answer, ask, connect};
use crate::error::{AttachError, Lost, OpenError, SendError};
use crate::fork::ForkGuard;
use crate::heap::{ReceiveHeap, Received, TransmitHeap};
use crate::options::{Endpoint, Info, Options, Statistics, read_info};
use crate::rule::Rule;

pub(crate) struct QueueSet {
    pub(crate) transmit: TransmitProducer,
    pub(crate) receive: ReceiveConsumer,
    /// It is in `ready`.
    pub(crate) ready: bool,
    /// It is in `dirty`.
    dirty: bool,
    /// Room that was wanted is there: news even when no packet waits.
    pub(crate) room: bool,
}

/// An attachment to a driver server. See the crate's documentation for threads and `fork`.
pub struct Session {
    pub(crate) channel: Channel,
    pub(crate) doorbell: OwnedFd,
    wake: OwnedFd,
    pub(crate) queue_sets: Vec<QueueSet>,
    transmit_heap: TransmitHeap,
    receive_heap: ReceiveHeap,
    transmit_free: FreeFrames,
    receive_free: FreeFrames,
    provided: u32,
    pub(crate) events: Acknowledger,
    marker: Marker,
    pub(crate) sleeper: Sleeper,
    ringer: Ringer,
    header: PeerWords,
    counters: PeerWords,
    pub(crate) ready: VecDeque<u32>,
    dirty: Vec<u32>,
    /// Queue sets that want room.
    pub(crate) wanting: Vec<u32>,
    packet: [Descriptor; MAX_CHAIN],
    /// How long the first frame of the packet received last was.
    length: usize,
    pub(crate) statistics: Statistics,
    pub(crate) lost: Option<Lost>,
    /// The doorbell's other end is closed; what is in the queues is there to be taken first.
    pub(crate) hung_up: bool,
    info: Info,
    guard: ForkGuard,
    /// Not `Sync`: queues have one producer and one consumer.
    _one_thread: PhantomData<Cell<()>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Session {
    /// Attaches to the server that listens at `path`.
    ///
    /// # Errors
    /// [`AttachError`] says what is in the way.
    pub fn attach(path: impl AsRef<Path>, options: &Options) -> Result<Session, AttachError> {
        Session::attach_over(connect(path.as_ref())?, options)
    }

    /// Attaches over a connected socket: one that a server in this process gave, or that was
    /// handed over.
    ///
    /// # Errors
    /// [`AttachError`] says what is in the way.
    pub fn attach_over(socket: OwnedFd, options: &Options) -> Result<Session, AttachError> {
        let channel = Channel::new(socket);
        let attach = Attach {
            queue_sets: options.queue_sets,
            endpoints: options.endpoints,
            transmit_slots: options.transmit_slots,
            receive_slots: options.receive_slots,
            transmit_frame_bytes: options.transmit_frame_bytes,
            receive_frame_bytes: options.receive_frame_bytes,
            name: message::fixed_name(&options.name),
            ipv4: options.ipv4.map_or([0; 4], |ip| ip.octets()),
            reserved: 0,
        };
        let shape = SessionShape::new(
            attach.queue_sets,
            attach.endpoints,
            attach.transmit_slots,
            attach.receive_slots,
            attach.transmit_frame_bytes,
            attach.receive_frame_bytes,
        )
        .map_err(|error| AttachError::Refused {
            refusal: message::Refusal::Malformed,
            text: format!("attach: {error}"),
        })?;
        let (attached, descriptors) = match ask(&channel, &Message::Attach(attach)) {
            Answer::Message(Message::Attached(attached), descriptors) => (attached, descriptors),
            other => return Err(other.into_attach_error()),
        };
        let Ok([server, receive_heap, state, application, transmit_heap, doorbell, wake]) =
            <[OwnedFd; 7]>::try_from(descriptors)
        else {
            return Err(AttachError::Protocol("the memory came without its descriptors".into()));
        };
        let readable = |file: OwnedFd| map(file, false);
        let (server, state) = (Arc::new(readable(server)?), Arc::new(readable(state)?));
        let receive_heap = readable(receive_heap)?;
        let application = Arc::new(map(application, true)?);
        let transmit_heap = map(transmit_heap, true)?;
        if server.len() < shape.server_words() * 8
            || application.len() < shape.application_words() * 8
            || state.len() < towpath_protocol::layout::STATE_WORDS * 8
        {
            return Err(AttachError::Protocol("the session's memory is too small".into()));
        }
        match ask(&channel, &Message::Mapped) {
            Answer::Message(Message::Done, _) => {}
            other => return Err(other.into_attach_error()),
        }
        let small = || AttachError::Protocol("a heap is too small".into());
        let pages = shape.server_peer(&peer_words(&server));
        let own = shape.application_own(own_words(&application));
        let queue_sets: Vec<QueueSet> = own
            .queue_sets
            .into_iter()
            .zip(&pages.queue_sets)
            .map(|(own, peer)| {
                let (transmit, receive) =
                    application_side(&shape.queues, shape.receive_heap, own, peer);
                QueueSet { transmit, receive, ready: false, dirty: false, room: false }
            })
            .collect();
        let mut session = Session {
            channel,
            doorbell,
            wake,
            queue_sets,
            transmit_heap: TransmitHeap::new(transmit_heap, shape.transmit_heap)
                .ok_or_else(small)?,
            receive_heap: ReceiveHeap::new(receive_heap, shape.receive_heap).ok_or_else(small)?,
            transmit_free: FreeFrames::new(0, shape.transmit_heap.frames()),
            receive_free: FreeFrames::new(0, shape.receive_heap.frames()),
            provided: options.provided.unwrap_or(u32::MAX).clamp(1, shape.queues.receive()),
            events: Acknowledger::new(shape.events(), own.acknowledgements, &pages.events),
            marker: Marker::new(shape.events(), own.events, &pages.acknowledgements),
            sleeper: Sleeper::new(own.header),
            ringer: Ringer::new(peer_words(&state).part(STATE_SLEEP_WORD, 1)),
            header: pages.header,
            counters: pages.counters,
            ready: VecDeque::with_capacity(shape.queue_sets as usize),
            dirty: Vec::with_capacity(shape.queue_sets as usize),
            wanting: Vec::new(),
            packet: [Descriptor::default(); MAX_CHAIN],
            length: 64,
            statistics: Statistics::default(),
            lost: None,
            hung_up: false,
            info: read_info(&attached),
            guard: ForkGuard::new()?,
            _one_thread: PhantomData,
        };
        for queue_set in 0..shape.queue_sets {
            session.provide(queue_set);
            session.queue_sets[queue_set as usize].receive.publish();
        }
        Ok(session)
    }

    /// What the session got.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// What this side counted.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// What the server counted for an endpoint; all zero in a child made by `fork`.
    #[must_use]
    pub fn counters(&self, endpoint: Endpoint) -> Vec<(&'static str, u64)> {
        if !self.guard.is_parent() {
            return counters::Endpoint::ALL.iter().map(|(_, name)| (*name, 0)).collect();
        }
        let start = endpoint.number as usize * ENDPOINT_COUNTERS;
        counters::read(&self.counters, start, &counters::Endpoint::ALL)
    }

    /// Opens an endpoint.
    ///
    /// # Errors
    /// [`OpenError`] says why not.
    pub fn open(&mut self, rule: &Rule) -> Result<Endpoint, OpenError> {
        self.check()?;
        match self.ask(&Message::Open(rule.to_message()))? {
            Message::Opened(opened) => {
                Ok(Endpoint { number: opened.endpoint, queue_set: rule.uses() })
            }
            _ => Err(Lost::ServerGone.into()),
        }
    }

    /// Gives an endpoint back. Packets of it that wait to be sent are dropped.
    ///
    /// # Errors
    /// [`OpenError`] says why not.
    pub fn close(&mut self, endpoint: Endpoint) -> Result<(), OpenError> {
        self.check()?;
        self.ask(&Message::Close(message::Close { endpoint: endpoint.number })).map(|_| ())
    }

    fn ask(&mut self, message: &Message) -> Result<Message, OpenError> {
        match ask(&self.channel, message) {
            Answer::Message(message, _) => Ok(message),
            Answer::Refused(refusal, text) => Err(OpenError::Refused { refusal, text }),
            Answer::HungUp | Answer::Wrong(_) => Err(self.over().into()),
        }
    }

    /// Why the session is over, now that the server has hung up.
    pub(crate) fn over(&mut self) -> Lost {
        if let Some(lost) = self.lost {
            return lost;
        }
        let word = self.header.observe(CLOSED_WORD);
        let lost = match Violation::from_number(word as u32) {
            Some(violation) => Lost::Violated(violation),
            None => Lost::ServerGone,
        };
        *self.lost.insert(lost)
    }

    /// Whether this is the process that attached: in a child made by `fork` the session's memory is
    /// not there, and what comes through its descriptors is the parent's.
    #[inline]
    pub(crate) fn is_parents(&self) -> bool {
        self.guard.is_parent()
    }

    /// Whether the session can still be used, as far as known.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Lost> {
        if !self.guard.is_parent() {
            return Err(Lost::Forked);
        }
        self.lost.map_or(Ok(()), Err)
    }

    /// The server wrote what cannot be.
    pub(crate) fn wrong(&mut self, violation: Violation) -> Lost {
        *self.lost.get_or_insert(Lost::ServerWrong(violation))
    }

    fn provide(&mut self, queue_set: u32) {
        let set = &mut self.queue_sets[queue_set as usize];
        let limit = self.provided;
        while set.receive.in_flight() < limit {
            let Some(frame) = self.receive_free.take() else { break };
            if !set.receive.provide(frame) {
                self.receive_free.give_back(frame);
                break;
            }
        }
    }

    /// Gives up to `budget` received packets of a queue set to `each`, to be read in place; each
    /// one's frames go back to the server after it. Answers how many there were.
    ///
    /// # Errors
    /// [`Lost`].
    ///
    /// # Panics
    /// When there is no such queue set.
    pub fn receive(
        &mut self,
        queue_set: u32,
        budget: usize,
        mut each: impl FnMut(Received<'_>),
    ) -> Result<usize, Lost> {
        self.check()?;
        let mut got = 0;
        while got < budget {
            let set = &mut self.queue_sets[queue_set as usize];
            let mut looked = Ok(0);
            if set.receive.waiting() == 0 {
                looked = set.receive.observe();
                let first = prefetch_distance(self.length);
                for frame in (0..first).map_while(|ahead| set.receive.waiting_frame(ahead)) {
                    self.receive_heap.prefetch(frame, self.length);
                }
            }
            if let Some(frame) = set.receive.waiting_frame(prefetch_distance(self.length)) {
                self.receive_heap.prefetch(frame, self.length);
            }
            let taken = looked.and_then(|_| set.receive.take(&mut self.packet));
            let count = match taken {
                Ok(count) => count,
                Err(violation) => return Err(self.wrong(violation)),
            };
            if count == 0 {
                break;
            }
            // What comes next is mostly as long as this.
            self.length = self.packet[0].len as usize;
            each(Received::new(&self.receive_heap, &self.packet[..count]));
            for descriptor in &self.packet[..count] {
                self.receive_free.give_back(descriptor.frame);
            }
            got += 1;
        }
        if got == 0 && self.hung_up {
            return Err(self.over());
        }
        if got > 0 {
            self.statistics.received += got as u64;
            self.provide(queue_set);
            self.queue_sets[queue_set as usize].receive.publish();
        }
        Ok(got)
    }

    /// Receives one packet of a queue set, copied; `None` when nothing waits.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn receive_one(&mut self, queue_set: u32) -> Result<Option<Vec<u8>>, Lost> {
        let mut packet = None;
        self.receive(queue_set, 1, |received| {
            let mut bytes = Vec::new();
            received.append_to(&mut bytes);
            packet = Some(bytes);
        })?;
        Ok(packet)
    }

    /// Puts a packet of `len` bytes into the transmit queue of an endpoint. `fill` writes it in
    /// place: into one slice, or into several one after the other when it is longer than a frame.
    /// It is sent with the next [`Session::flush`].
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued then.
    pub fn send(
        &mut self,
        endpoint: Endpoint,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), SendError> {
        self.check()?;
        let data_bytes = self.transmit_heap.data_bytes();
        let needed =
            if len <= data_bytes { usize::from(len > 0) } else { len.div_ceil(data_bytes) };
        let set = &mut self.queue_sets[endpoint.queue_set as usize];
        if needed == 0 || needed > MAX_CHAIN.min(set.transmit.capacity() as usize) {
            let max = MAX_CHAIN.min(set.transmit.capacity() as usize) * data_bytes;
            return Err(SendError::Length { len, max });
        }
        if (set.transmit.room() as usize) < needed || self.transmit_free.len() < needed {
            let free = &mut self.transmit_free;
            if let Err(violation) = set.transmit.reclaim(|frame| free.give_back(frame)) {
                return Err(self.wrong(violation).into());
            }
            if (set.transmit.room() as usize) < needed || self.transmit_free.len() < needed {
                return Err(SendError::Full);
            }
        }
        // There are enough frames, as just looked at.
        if let Some(frame) = self.transmit_free.next(prefetch_distance(len) as usize) {
            self.transmit_heap.prefetch(frame, len);
        }
        let pushed = if needed == 1 && meta.is_finished() {
            let frame = self.transmit_free.take().unwrap_or(0);
            let descriptor = self.transmit_heap.write_one(frame, len, endpoint.number, fill);
            set.transmit.push(&[descriptor])
        } else {
            let mut frames = [0; MAX_CHAIN];
            for frame in &mut frames[..needed] {
                *frame = self.transmit_free.take().unwrap_or(0);
            }
            let (descriptors, count) =
                self.transmit_heap.write(&frames[..needed], len, meta, endpoint.number, fill);
            set.transmit.push(&descriptors[..count])
        };
        debug_assert!(pushed, "there was room");
        if !set.dirty {
            set.dirty = true;
            self.dirty.push(endpoint.queue_set);
        }
        self.statistics.sent += 1;
        Ok(())
    }

    /// Whether a packet of `len` bytes would be taken by [`Session::send`] now.
    pub fn has_room(&mut self, endpoint: Endpoint, len: usize) -> bool {
        let needed = len.div_ceil(self.transmit_heap.data_bytes());
        let fits = |session: &Session| {
            let set = &session.queue_sets[endpoint.queue_set as usize];
            set.transmit.room() as usize >= needed && session.transmit_free.len() >= needed
        };
        if self.check().is_err() || needed == 0 || needed > MAX_CHAIN {
            return false;
        }
        fits(self) || (self.unsent(endpoint.queue_set).is_ok() && fits(self))
    }

    /// Puts a finished packet into the transmit queue of an endpoint.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued then.
    pub fn send_bytes(&mut self, endpoint: Endpoint, packet: &[u8]) -> Result<(), SendError> {
        self.send(endpoint, packet.len(), Meta::FINISHED, |parts| {
            let mut rest = packet;
            for part in parts {
                let (now, later) = rest.split_at(part.len());
                part.copy_from_slice(now);
                rest = later;
            }
        })
    }

    /// Makes everything queued known to the server, and wakes it if it sleeps: once a batch.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn flush(&mut self) -> Result<(), Lost> {
        self.check()?;
        if self.dirty.is_empty() {
            return Ok(());
        }
        for queue_set in &self.dirty {
            self.queue_sets[*queue_set as usize].transmit.publish();
        }
        let fenced = events::fence();
        let mut outcome = Ok(());
        for queue_set in &self.dirty {
            self.queue_sets[*queue_set as usize].dirty = false;
            outcome = outcome.and(self.marker.mark(fenced, *queue_set).map(|_| ()));
        }
        self.dirty.clear();
        if let Err(violation) = outcome {
            return Err(self.wrong(violation));
        }
        self.statistics.batches += 1;
        if self.marker.publish() && self.ringer.must_ring(doorbell::fence()) {
            self.statistics.rings += 1;
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Asks that [`Session::wait`] also returns when half of what a queue set has to send is sent.
    /// Once: ask again for the next time.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn want_room(&mut self, queue_set: u32) -> Result<(), Lost> {
        self.check()?;
        let set = &mut self.queue_sets[queue_set as usize];
        let half = set.transmit.in_flight().div_ceil(2);
        set.transmit.want(half);
        if !self.wanting.contains(&queue_set) {
            self.wanting.push(queue_set);
        }
        Ok(())
    }

    /// Looks what is sent; answers how many frames of a queue set's transmit queue are not.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn unsent(&mut self, queue_set: u32) -> Result<u32, Lost> {
        self.check()?;
        let set = &mut self.queue_sets[queue_set as usize];
        let free = &mut self.transmit_free;
        let outcome = set.transmit.reclaim(|frame| free.give_back(frame));
        match outcome {
            Ok(_) => Ok(set.transmit.in_flight()),
            Err(violation) => Err(self.wrong(violation)),
        }
    }
}

fn map(file: OwnedFd, writable: bool) -> std::io::Result<Mapping> {
    let file = SharedFile::adopt(file)?;
    let mapping = if writable { file.map_writable() } else { file.map_readable() }?;
    mapping.keep_from_children()?;
    Ok(mapping)
}
