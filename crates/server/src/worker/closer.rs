//! A thread that closes descriptors, and drops other values whose end applications can prolong.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

use rustix::process::{Resource, getrlimit};

/// A value to drop, and what counts it.
struct Waiting {
    value: Box<dyn Send>,
    count: usize,
    account: Option<ClosingCount>,
}

/// The number of descriptors of one worker that wait for their close.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClosingCount(Arc<AtomicUsize>);

impl ClosingCount {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many of the server's descriptors may wait for a worker or for their close, because applications prolong these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backlog {
    of_user: usize,
    of_all: usize,
}

impl Default for Backlog {
    /// Returns limits for this process's limit of descriptors.
    fn default() -> Backlog {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let part = |of, least, most| usize::try_from(limit / of).unwrap_or(most).clamp(least, most);
        Backlog { of_user: part(64, 256, 1024), of_all: part(8, 256, 8192) }
    }
}

impl Backlog {
    /// Returns `true` if so many descriptors of a user wait that the server should take no more: more than a user may
    /// have, or more than a quarter of that while all users together have too many (`of_all`).
    pub(crate) fn is_too_long(self, of_user: usize, of_all: impl FnOnce() -> usize) -> bool {
        of_user >= self.of_user || of_user >= self.of_user / 4 && of_all() >= self.of_all
    }
}

/// The thread's sender. The thread ends when the last sender has ended.
#[derive(Clone, Debug)]
pub(crate) struct Closer {
    channel: Sender<Waiting>,
    waiting: ClosingCount,
}

impl Closer {
    /// Starts a thread.
    ///
    /// # Errors
    /// Fails if no thread is available.
    pub(crate) fn start(name: &str) -> io::Result<Closer> {
        let (channel, closing) = channel::<Waiting>();
        let waiting = ClosingCount::default();
        let all = waiting.clone();
        let run = move || {
            for Waiting { value, count, account } in closing {
                drop(value);
                for counted in [Some(&all), account.as_ref()].into_iter().flatten() {
                    counted.0.fetch_sub(count, Ordering::Relaxed);
                }
            }
        };
        Builder::new().name(name.into()).spawn(run)?;
        Ok(Closer { channel, waiting })
    }

    /// Makes a closer without a thread: the caller's own thread drops each value.
    #[cfg(test)]
    pub(crate) fn without_thread() -> Closer {
        Closer { channel: channel().0, waiting: ClosingCount::default() }
    }

    /// Drops a value later.
    pub(crate) fn drop_later(&self, value: impl Send + 'static) {
        self.give(Waiting { value: Box::new(value), count: 1, account: None });
    }

    /// Closes descriptors later. `account` counts them until then.
    pub(crate) fn close(&self, descriptors: Vec<OwnedFd>, account: Option<&ClosingCount>) {
        let count = descriptors.len();
        if count > 0 {
            let account = account.cloned();
            self.give(Waiting { value: Box::new(descriptors), count, account });
        }
    }

    fn give(&self, waiting: Waiting) {
        let count = waiting.count;
        for counted in [Some(&self.waiting), waiting.account.as_ref()].into_iter().flatten() {
            counted.0.fetch_add(count, Ordering::Relaxed);
        }
        // Without the thread, this thread drops the value.
        if let Err(refused) = self.channel.send(waiting) {
            let Waiting { value, account, .. } = refused.0;
            drop(value);
            for counted in [Some(&self.waiting), account.as_ref()].into_iter().flatten() {
                counted.0.fetch_sub(count, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of descriptors and values that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.get()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn who_has_few_may_have_more_than_who_has_many() {
        let backlog = Backlog { of_user: 256, of_all: 1024 };
        let is_too_long = |of_user, of_all| backlog.is_too_long(of_user, || of_all);
        assert_eq!([0, 255, 256].map(|count| is_too_long(count, 0)), [false, false, true]);
        assert_eq!([0, 63, 64].map(|count| is_too_long(count, 1023)), [false, false, false]);
        assert_eq!([0, 63, 64].map(|count| is_too_long(count, 1024)), [false, false, true]);
    }

    #[test]
    fn descriptors_count_until_they_are_closed() {
        struct Holds(std::sync::mpsc::Receiver<()>);
        impl Drop for Holds {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let closer = Closer::start("closer-test").unwrap();
        let (go, held) = channel();
        closer.drop_later(Holds(held));
        let account = ClosingCount::default();
        let (mut reader, writer) = std::io::pipe().unwrap();
        closer.close(vec![writer.try_clone().unwrap().into(), writer.into()], Some(&account));
        closer.close(Vec::new(), Some(&account));
        assert_eq!((closer.waiting(), account.get()), (3, 2));
        go.send(()).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        while closer.waiting() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(account.get(), 0);
        let alone = Closer::without_thread();
        let (mut reader, writer) = std::io::pipe().unwrap();
        alone.close(vec![writer.into()], Some(&account));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert_eq!((alone.waiting(), account.get()), (0, 0));
    }
}
