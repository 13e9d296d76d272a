//! Threads that close descriptors, and drop other values whose end applications can prolong.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The time after which a thread that has dropped nothing counts as hung, as a worker does.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most threads of a closer: one, and others in place of those that hang.
const MOST_THREADS: usize = 16;

/// A value to drop, and the counter of its queue.
struct Waiting {
    value: Box<dyn Send>,
    count: usize,
    counter: Arc<AtomicUsize>,
}

/// The values that wait, by the number of their queue.
struct Queues {
    waiting: BTreeMap<u64, VecDeque<Waiting>>,
    /// The queue that was served last, and those whose values threads drop at present.
    last: u64,
    in_service: BTreeSet<u64>,
    /// `true` once no more values follow.
    is_over: bool,
    threads: usize,
    /// The number of values that were dropped, and that number at the last look with its time.
    dropped: u64,
    looked: (u64, Instant),
}

impl Queues {
    /// Returns the next value and its queue, of each queue in turn. One thread serves a queue.
    fn next(&mut self) -> Option<(u64, Waiting)> {
        let (after, before) = ((Excluded(self.last), Unbounded), (Unbounded, Included(self.last)));
        let mut in_turn = self.waiting.range(after).chain(self.waiting.range(before));
        let number = in_turn
            .find(|(number, _)| !self.in_service.contains(number))
            .map(|(number, _)| *number)?;
        let queue = self.waiting.get_mut(&number)?;
        let next = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(&number);
        }
        self.last = number;
        self.in_service.insert(number);
        Some((number, next))
    }

    /// Returns `true` if another thread is needed: a queue that no thread serves waits, and no value was dropped for
    /// [`PATIENCE`].
    fn needs_thread(&mut self, now: Instant) -> bool {
        let (seen, since) = self.looked;
        let all_served = self.waiting.keys().all(|number| self.in_service.contains(number));
        let is_late = now.saturating_duration_since(since) >= PATIENCE;
        if all_served || self.dropped != seen || is_late {
            self.looked = (self.dropped, now);
        }
        is_late && !all_served && self.dropped == seen && self.threads < MOST_THREADS
    }
}

struct CloserState {
    queues: Mutex<Queues>,
    more: Condvar,
    /// The descriptors and values that wait.
    waiting: AtomicUsize,
}

impl CloserState {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queues = self.queues();
        loop {
            if let Some((number, next)) = queues.next() {
                drop(queues);
                self.end(next);
                queues = self.queues();
                queues.dropped += 1;
                queues.in_service.remove(&number);
            } else if queues.is_over {
                return;
            } else {
                queues = self.more.wait(queues).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn end(&self, Waiting { value, count, counter }: Waiting) {
        drop(value);
        counter.fetch_sub(count, Ordering::Relaxed);
        self.waiting.fetch_sub(count, Ordering::Relaxed);
    }
}

/// The handle of the threads, which end when the last handle has ended and nothing waits.
struct Handle {
    shared: Arc<CloserState>,
    name: &'static str,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.queues().is_over = true;
        self.shared.more.notify_all();
    }
}

/// Threads that drop values, of each queue in turn: one thread, and others in place of those that hang. A queue of slow closes
/// delays each value of another queue by one close.
#[derive(Clone)]
pub(crate) struct Closer(Arc<Handle>);

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closer").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl Closer {
    /// Starts a thread.
    ///
    /// # Errors
    /// Fails if no thread is available.
    pub(crate) fn start(name: &'static str) -> io::Result<Closer> {
        let closer = Closer::without_thread(name);
        closer.start_thread()?;
        Ok(closer)
    }

    /// Makes a closer without a thread: the caller's own thread drops each value.
    pub(crate) fn without_thread(name: &'static str) -> Closer {
        let queues = Queues {
            waiting: BTreeMap::new(),
            last: 0,
            in_service: BTreeSet::new(),
            is_over: false,
            threads: 0,
            dropped: 0,
            looked: (0, Instant::now()),
        };
        let (queues, more) = (Mutex::new(queues), Condvar::new());
        let shared = Arc::new(CloserState { queues, more, waiting: AtomicUsize::new(0) });
        Closer(Arc::new(Handle { shared, name }))
    }

    fn start_thread(&self) -> io::Result<()> {
        let shared = self.0.shared.clone();
        Builder::new().name(self.0.name.to_owned()).spawn(move || shared.run())?;
        self.0.shared.queues().threads += 1;
        Ok(())
    }

    /// Returns a queue of this closer. Each queue has its own number.
    pub(crate) fn queue(&self, number: u64) -> ClosingQueue {
        ClosingQueue { closer: self.clone(), number, waiting: Arc::default() }
    }

    /// Returns the number of descriptors and values that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.shared.waiting.load(Ordering::Relaxed)
    }

    /// Starts another thread in place of one that hangs: before Linux 6.16, a descriptor in a connection can prolong a close
    /// by hours.
    pub(crate) fn relieve(&self, now: Instant) {
        let needs_thread = self.0.shared.queues().needs_thread(now);
        self.start_if(needs_thread);
    }

    fn start_if(&self, needs_thread: bool) {
        if needs_thread {
            // Without a thread, a later call tries again.
            let _ = self.start_thread();
        }
    }
}

/// A queue of a closer.
#[derive(Clone, Debug)]
pub(crate) struct ClosingQueue {
    closer: Closer,
    number: u64,
    waiting: Arc<AtomicUsize>,
}

impl ClosingQueue {
    /// Drops a value later.
    pub(crate) fn drop_later(&self, value: impl Send + 'static) {
        self.give(Box::new(value), 1);
    }

    /// Closes descriptors later.
    pub(crate) fn close(&self, descriptors: Vec<OwnedFd>) {
        let count = descriptors.len();
        if count > 0 {
            self.give(Box::new(descriptors), count);
        }
    }

    fn give(&self, value: Box<dyn Send>, count: usize) {
        let shared = &self.closer.0.shared;
        self.waiting.fetch_add(count, Ordering::Relaxed);
        shared.waiting.fetch_add(count, Ordering::Relaxed);
        let waiting = Waiting { value, count, counter: self.waiting.clone() };
        let mut queues = shared.queues();
        if queues.threads == 0 {
            drop(queues);
            return shared.end(waiting);
        }
        // Values that come later wait behind a thread that hangs. So an idle server needs no clock for such threads.
        let needs_thread = queues.needs_thread(Instant::now());
        queues.waiting.entry(self.number).or_default().push_back(waiting);
        drop(queues);
        shared.more.notify_one();
        self.closer.start_if(needs_thread);
    }

    /// Returns the number of this queue's descriptors and values that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns `true` if only this handle uses the queue, and nothing waits.
    pub(crate) fn is_unused(&self) -> bool {
        // Each waiting value has a copy of the counter.
        Arc::strong_count(&self.waiting) == 1
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A value whose drop waits for the test.
    struct Held(Receiver<()>);

    impl Drop for Held {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    /// Makes the closer wait for the drop of the returned value: its thread serves this queue, and no other one.
    pub(crate) fn hold(queue: &ClosingQueue) -> Sender<()> {
        let (go, held) = channel();
        queue.drop_later(Held(held));
        until(|| queue.closer.0.shared.queues().in_service.contains(&queue.number));
        go
    }

    /// A value that tells of its drop.
    struct Told(u32, Sender<u32>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn descriptors_count_until_they_are_closed() {
        let closer = Closer::start("closer-test").unwrap();
        let (queue, other) = (closer.queue(1), closer.queue(2));
        let go = hold(&other);
        let (mut reader, writer) = std::io::pipe().unwrap();
        queue.close(vec![writer.try_clone().unwrap().into(), writer.into()]);
        queue.close(Vec::new());
        assert_eq!((closer.waiting(), queue.waiting(), other.waiting()), (3, 2, 1));
        assert!(!queue.is_unused());
        go.send(()).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        until(|| closer.waiting() == 0 && queue.is_unused());
        let alone = Closer::without_thread("closer-test").queue(1);
        let (mut reader, writer) = std::io::pipe().unwrap();
        alone.close(vec![writer.into()]);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert_eq!(alone.waiting(), 0);
    }

    #[test]
    fn queues_are_served_in_turn() {
        let closer = Closer::start("closer-test").unwrap();
        let (many, few) = (closer.queue(1), closer.queue(2));
        let go = hold(&closer.queue(3));
        let (told, order) = channel();
        (0..10).for_each(|number| many.drop_later(Told(number, told.clone())));
        (100..102).for_each(|number| few.drop_later(Told(number, told.clone())));
        go.send(()).unwrap();
        let order: Vec<u32> = order.iter().take(12).collect();
        assert_eq!(order[..5], [0, 100, 1, 101, 2]);
    }

    #[test]
    fn a_thread_that_hangs_gets_a_companion() {
        let closer = Closer::start("closer-test").unwrap();
        let hung = hold(&closer.queue(1));
        let (mut reader, writer) = std::io::pipe().unwrap();
        closer.queue(2).close(vec![writer.into()]);
        let now = Instant::now();
        until(|| closer.0.shared.queues().waiting.len() == 1);
        closer.relieve(now);
        closer.relieve(now + PATIENCE / 2);
        assert_eq!(closer.0.shared.queues().threads, 1);
        closer.relieve(now + PATIENCE + Duration::from_secs(1));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        for second in 0..100 {
            closer.relieve(now + 3 * PATIENCE * second);
        }
        assert_eq!(closer.0.shared.queues().threads, 2, "nothing waits behind the first thread");
        // Nor does another thread help values of the same queue.
        closer.queue(1).drop_later(());
        for second in 100..200 {
            closer.relieve(now + 3 * PATIENCE * second);
        }
        assert_eq!(closer.0.shared.queues().threads, 2);
        drop(hung);
    }
}
