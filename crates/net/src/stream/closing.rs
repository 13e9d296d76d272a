//! The end of a stream: its last handle is dropped.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant as StdInstant};

use towpath_stack::{Shutdown, SocketError, SocketId};

use super::Inner;
use crate::driver::SharedNetwork;
use crate::wait::Patience;

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(shared) = self.network.checked() else { return };
        let linger = self.lingers.load(Ordering::Relaxed) && !self.options.is_nonblocking();
        if linger {
            self.linger(shared);
        }
        self.network.unregister(SocketId::Tcp(self.id));
        let _ = shared.with(|core, now| core.stack.tcp_close(now, self.id));
    }
}

impl Inner {
    /// Waits until the peer has all written data, at most for the linger time. If it does not have
    /// it by then, the close that follows resets the connection.
    fn linger(&self, shared: &SharedNetwork) {
        let id = self.id;
        let begun = shared.with(|core, now| {
            let linger = core.stack.tcp_linger(id)?;
            let (_, unread) = core.stack.tcp_queues(id)?;
            // Unread data resets the connection anyway.
            if unread == 0 {
                core.stack.tcp_shutdown(now, id, Shutdown::Write)?;
            }
            Ok::<_, SocketError>(linger.filter(|_| unread == 0))
        });
        let Ok(Some(linger)) = begun else { return };
        let until = StdInstant::now().checked_add(linger);
        let patience = until.map_or(Patience::Forever, Patience::Until);
        let waited = shared.block_on(&self.waiter, patience, true, |stack, _| {
            // From here on the stack reports a change again.
            stack.tcp_readiness(id)?;
            let (unacknowledged, _) = stack.tcp_queues(id)?;
            if unacknowledged == 0 { Ok(()) } else { Err(SocketError::WouldBlock) }
        });
        // The peer may now take its time to close its own direction.
        let left = waited.map_or(Some(Duration::ZERO), |()| None);
        let _ = shared.with(|core, _| core.stack.tcp_set_linger(id, left));
    }
}
