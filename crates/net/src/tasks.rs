//! Tasks that wait for sockets, on any runtime.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::readiness::{Interest, Ready};
use crate::watch::SocketRef;
use crate::watchers::TaskDirection;

/// Calls `f`. If `f` would block, stores the task's waker for this direction and calls `f` again. Returns `Pending` if `f`
/// still would block.
pub(crate) fn poll_io<R>(
    socket: &SocketRef<'_>,
    context: &Context<'_>,
    direction: TaskDirection,
    f: impl FnMut() -> io::Result<R>,
) -> Poll<io::Result<R>> {
    try_and_wait(f, || {
        socket.poll_by(direction, context.waker());
        Ok(())
    })
}

/// Calls `f`. If `f` would block, calls `wait`, which has the next event wake the task, and calls `f` again.
fn try_and_wait<R>(
    mut f: impl FnMut() -> io::Result<R>,
    wait: impl FnOnce() -> io::Result<()>,
) -> Poll<io::Result<R>> {
    let mut attempt = || match f() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    };
    if let Poll::Ready(result) = attempt() {
        return Poll::Ready(result);
    }
    wait()?;
    // An event that came before the waker was stored woke no task.
    attempt()
}

/// Calls `f` whenever the socket may be ready, until it returns anything but `WouldBlock`.
pub(crate) async fn repeat<R>(
    socket: SocketRef<'_>,
    interest: Interest,
    mut f: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    let mut wait = SocketWait::new(socket, interest);
    std::future::poll_fn(|context| try_and_wait(&mut f, || wait.register(context))).await
}

/// The registration of a task that waits for a socket.
#[derive(Debug, Default)]
pub(crate) struct TaskRegistration(Option<u64>);

impl TaskRegistration {
    /// Registers the task's waker for the next event.
    pub(crate) fn register(
        &mut self,
        socket: &SocketRef<'_>,
        interest: Interest,
        context: &Context<'_>,
    ) -> io::Result<()> {
        socket.network()?;
        let mut watchers = socket.watchers();
        let earlier = self.0.and_then(|number| watchers.tasks.remove(number));
        self.0 = Some(watchers.tasks.add(interest, context.waker()));
        drop(watchers);
        // After the lock: the end of a waker may be the end of its task, which may use the socket.
        drop(earlier);
        Ok(())
    }

    /// Removes the registration, if there is one.
    pub(crate) fn end(&mut self, socket: &SocketRef<'_>) {
        if let Some(number) = self.0.take()
            && socket.network().is_ok()
        {
            let earlier = socket.watchers().tasks.remove(number);
            drop(earlier);
        }
    }
}

/// A task's wait for a socket. Dropping it removes the registration.
struct SocketWait<'a> {
    socket: SocketRef<'a>,
    interest: Interest,
    registration: TaskRegistration,
}

impl<'a> SocketWait<'a> {
    fn new(socket: SocketRef<'a>, interest: Interest) -> SocketWait<'a> {
        SocketWait { socket, interest, registration: TaskRegistration::default() }
    }

    fn register(&mut self, context: &Context<'_>) -> io::Result<()> {
        self.registration.register(&self.socket, self.interest, context)
    }
}

impl Drop for SocketWait<'_> {
    fn drop(&mut self) {
        self.registration.end(&self.socket);
    }
}

/// Waits until a socket is ready for a condition of the interest.
struct WaitReady<'a>(SocketWait<'a>);

impl Future for WaitReady<'_> {
    type Output = io::Result<Ready>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        let wait = &mut self.0;
        wait.register(context)?;
        let ready = wait.socket.start_watching()?.of_interest(wait.interest);
        if ready.is_empty() { Poll::Pending } else { Poll::Ready(Ok(ready)) }
    }
}

/// Returns what a socket is ready for, once it is ready for a condition of the interest.
pub(crate) async fn wait_ready(socket: SocketRef<'_>, interest: Interest) -> io::Result<Ready> {
    WaitReady(SocketWait::new(socket, interest)).await
}
