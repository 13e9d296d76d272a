//! The cable of a pair: a test plugs and unplugs it, stalls a device, and makes events.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::EventfdFlags;
use towpath_device::{Event, Filter};

use super::config::Config;
use super::dma::LoopbackDma;
use super::filters::Filters;
use super::ring::{Bell, WANTS_ROOM};

/// The events of one end that its control part has not taken.
pub(super) struct Events {
    waiting: Mutex<VecDeque<Event>>,
    /// Readable while events wait.
    fd: OwnedFd,
}

impl Events {
    fn new() -> io::Result<Events> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Events { waiting: Mutex::default(), fd: rustix::event::eventfd(0, flags)? })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, event: Event) {
        let mut waiting = self.lock();
        waiting.push_back(event);
        // This fails only when 2^64 - 2 events wait, and then the eventfd is readable.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    pub(super) fn take(&self) -> Option<Event> {
        let mut waiting = self.lock();
        let event = waiting.pop_front();
        if waiting.is_empty() {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
        event
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What both ends of a queue and their cables share.
pub(super) struct SharedCable {
    up: AtomicBool,
    stalled: [AtomicBool; 2],
    pub(super) events: [Events; 2],
    pub(super) filters: [Filters; 2],
    dma: Option<Arc<LoopbackDma>>,
    pub(super) bells: [Arc<Bell>; 2],
}

impl SharedCable {
    pub(super) fn new(config: &Config) -> io::Result<SharedCable> {
        let sleeps = config.sleeps;
        Ok(SharedCable {
            dma: config.dma_bytes.map(|bytes| Arc::new(LoopbackDma::new(bytes))),
            up: AtomicBool::new(true),
            stalled: [const { AtomicBool::new(false) }; 2],
            events: [Events::new()?, Events::new()?],
            filters: Default::default(),
            bells: [Arc::new(Bell::new(sleeps)?), Arc::new(Bell::new(sleeps)?)],
        })
    }

    /// Returns the registrations of an end that needs them.
    pub(super) fn dma(&self, end: usize) -> Option<&Arc<LoopbackDma>> {
        self.dma.as_ref().filter(|_| end == 0)
    }

    /// `true` if the device of an end moves packets.
    pub(super) fn moves(&self, end: usize) -> bool {
        self.up.load(Ordering::Relaxed) && !self.stalled[end].load(Ordering::Relaxed)
    }

    pub(super) fn is_stalled(&self, end: usize) -> bool {
        self.stalled[end].load(Ordering::Relaxed)
    }

    pub(super) fn end_stall(&self, end: usize) {
        self.stalled[end].store(false, Ordering::Relaxed);
    }
}

/// A handle on one end's cable, usable from any thread.
#[derive(Clone)]
pub struct Cable {
    /// What the first queue's ends share; the device's events and filters are here.
    pub(super) shared: Arc<SharedCable>,
    /// What the ends of all queues share, the first queue among them.
    pub(super) queues: Arc<[Arc<SharedCable>]>,
    pub(super) end: usize,
}

impl std::fmt::Debug for Cable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cable").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Cable {
    /// Unplugs the cable, or plugs it in again. Both ends report the change. While the cable is
    /// unplugged no end sends, and none loses packets that it took.
    pub fn set_link(&self, up: bool) {
        for queue in &*self.queues {
            queue.up.store(up, Ordering::Relaxed);
        }
        for events in &self.shared.events {
            events.put(Event::Link { up });
        }
        if up {
            let bells = self.queues.iter().flat_map(|queue| &queue.bells);
            for bell in bells {
                bell.ring(WANTS_ROOM);
            }
        }
    }

    /// Stalls this end's device: until a reset it neither sends packets that it took nor completes
    /// any. Only an asynchronous device takes packets without sending them.
    pub fn stall(&self) {
        for queue in &*self.queues {
            queue.stalled[self.end].store(true, Ordering::Relaxed);
        }
    }

    /// Makes this end report an event.
    pub fn report(&self, event: Event) {
        self.shared.events[self.end].put(event);
    }

    /// Returns the number of bytes that this end's device reaches; `None` if it reaches all memory.
    #[must_use]
    pub fn registered_bytes(&self) -> Option<usize> {
        self.shared.dma(self.end).map(|dma| dma.bytes())
    }

    /// Returns the filters that this end's device has, in order.
    #[must_use]
    pub fn filters(&self) -> Vec<Filter> {
        self.shared.filters[self.end].all()
    }

    /// Removes this end's device.
    pub fn remove(&self) {
        for queue in &*self.queues {
            let bell = &queue.bells[self.end];
            bell.closed.store(true, Ordering::Release);
            let _ = bell.notify_always();
        }
        self.report(Event::Removed);
    }
}
