//! The thread that opens and closes the hardware queues of sessions. Each step waits for the
//! kernel: for the end of earlier sockets, or to pin memory. So a session that attaches or ends
//! delays only other sessions with own queues, and not the control thread or the engine.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use towpath_device::{DeviceError, HardwareQueue, OpenedOwnQueue, OwnMemory, OwnQueues};
use towpath_engine::session::Session;

use crate::prepare::Mapped;

/// A step of the thread with one hardware queue.
pub(crate) enum Step {
    /// Opens it for a session. If that fails, takes it back.
    Open(HardwareQueue, OwnMemory),
    /// Closes an object that holds it, and takes it back.
    Close(Box<dyn Send>),
    /// Takes it back.
    TakeBack,
}

/// The control thread's next step.
#[derive(Debug)]
pub(crate) enum Then {
    /// The session of a connection begins.
    Begin { token: u64, mapped: Mapped },
    /// The session of a connection does not begin, for a reason if the application still hears it.
    Refuse { token: u64, mapped: Mapped, why: Option<String> },
    /// A session has ended.
    End(Box<Session>),
    /// No session waits.
    Nothing,
}

/// A hardware queue, and what to do.
pub(crate) struct Task {
    pub(crate) hardware: u32,
    pub(crate) step: Step,
    pub(crate) then: Then,
}

/// The result of a task.
pub(crate) struct Done {
    pub(crate) hardware: u32,
    /// The result of [`Step::Open`].
    pub(crate) opened: Option<Result<OpenedOwnQueue, DeviceError>>,
    /// The hardware queue to serve again.
    pub(crate) back: Option<Result<HardwareQueue, DeviceError>>,
    pub(crate) then: Then,
}

/// The control thread's end of the thread `own-queues`.
#[derive(Debug)]
pub(crate) struct QueueOpener {
    tasks: Option<Sender<Task>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl QueueOpener {
    /// Starts the thread. It makes `wake` readable once it has done something.
    ///
    /// # Errors
    /// Fails if no thread is available.
    pub(crate) fn start(queues: Box<dyn OwnQueues>, wake: Arc<OwnedFd>) -> io::Result<QueueOpener> {
        let (tasks, to_do) = channel::<Task>();
        let (reports, done) = channel();
        let run = move || {
            for task in to_do {
                if reports.send(execute(&*queues, task)).is_err() {
                    return;
                }
                // Only a full counter refuses this, and then the control thread is awake.
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            }
        };
        let thread = std::thread::Builder::new().name("own-queues".into()).spawn(run)?;
        Ok(QueueOpener { tasks: Some(tasks), done, thread: Some(thread) })
    }

    /// Adds a task behind the others.
    pub(crate) fn push(&self, task: Task) {
        // The thread ends only after this value.
        if let Some(tasks) = &self.tasks {
            let _ = tasks.send(task);
        }
    }

    /// Returns the next result, in the order of the tasks.
    pub(crate) fn next_done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}

impl Drop for QueueOpener {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn execute(queues: &dyn OwnQueues, Task { hardware, step, then }: Task) -> Done {
    let opened = match step {
        Step::Open(ceded, memory) => Some(queues.open(ceded, &memory)),
        Step::Close(object) => {
            drop(object);
            None
        }
        Step::TakeBack => None,
    };
    let is_open = matches!(opened, Some(Ok(_)));
    let back = (!is_open).then(|| queues.take_back(hardware));
    Done { hardware, opened, back, then }
}
