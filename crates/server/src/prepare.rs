//! Making a session: its memory, its descriptors, its seals.
//!
//! In two steps, since the order matters: the application maps what it will write while that may
//! still be mapped writable; then the memory is sealed against every further writer, and only then
//! the server maps it, for reading alone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};
use towpath_protocol::layout::SessionShape;
use towpath_protocol::memory::{Mapping, SharedFile};
use towpath_protocol::store::Store;

use crate::session::{Memories, Session};

/// A session whose application has yet to map its memory.
#[derive(Debug)]
pub(crate) struct Prepared {
    shape: SessionShape,
    server: SharedFile,
    receive_heap: SharedFile,
    application: SharedFile,
    transmit_heap: SharedFile,
    ledger: SharedFile,
    doorbell: OwnedFd,
    wake: OwnedFd,
}

/// The descriptors that go to the application, in the order of the attached message.
#[derive(Debug)]
pub(crate) struct Handed {
    server: OwnedFd,
    receive_heap: OwnedFd,
    doorbell: OwnedFd,
}

/// How many bytes a session takes, all of its memories together.
#[must_use]
pub(crate) fn session_bytes(shape: &SessionShape) -> usize {
    (shape.server_words() + shape.application_words() + shape.ledger_words()) * 8
        + shape.receive_heap.heap_bytes()
        + shape.transmit_heap.heap_bytes()
}

impl Prepared {
    /// Makes the memories and descriptors of a session, and puts into the store what must outlive
    /// the server.
    ///
    /// # Errors
    /// When memory or descriptors are not to be had.
    pub(crate) fn new(
        number: u32,
        shape: SessionShape,
        store: &mut dyn Store,
    ) -> io::Result<(Prepared, Handed)> {
        let server = SharedFile::create("towpath-server-pages", shape.server_words() * 8)?;
        let receive_heap =
            SharedFile::create("towpath-receive-heap", shape.receive_heap.heap_bytes())?;
        let application =
            SharedFile::create("towpath-application-pages", shape.application_words() * 8)?;
        let transmit_heap =
            SharedFile::create("towpath-transmit-heap", shape.transmit_heap.heap_bytes())?;
        let ledger = SharedFile::create("towpath-ledger", shape.ledger_words() * 8)?;
        // The server's memories have all their seals from the start; nobody may seal them
        // against the server's own writing.
        server.seal_seals()?;
        receive_heap.seal_seals()?;
        ledger.seal_seals()?;
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // One page: a ring is a byte, and a bell that rings needs no second.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, 4096);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let name = stored_name(number);
        for file in [&server, &receive_heap, &application, &transmit_heap, &ledger] {
            store.put(&name, file.as_fd())?;
        }
        let handed = Handed {
            server: server.read_only()?,
            receive_heap: receive_heap.read_only()?,
            doorbell: read,
        };
        let prepared = Prepared {
            shape,
            server,
            receive_heap,
            application,
            transmit_heap,
            ledger,
            doorbell: write,
            wake,
        };
        Ok((prepared, handed))
    }

    /// The descriptors to be sent, in their order.
    #[must_use]
    pub(crate) fn descriptors<'a>(
        &'a self,
        handed: &'a Handed,
        state: &'a OwnedFd,
    ) -> [std::os::fd::BorrowedFd<'a>; 7] {
        [
            handed.server.as_fd(),
            handed.receive_heap.as_fd(),
            state.as_fd(),
            self.application.as_fd(),
            self.transmit_heap.as_fd(),
            handed.doorbell.as_fd(),
            self.wake.as_fd(),
        ]
    }

    /// The application has mapped its memory: seals it, maps everything here, and makes the
    /// engine's session.
    ///
    /// # Errors
    /// When sealing or mapping fails.
    pub(crate) fn finish(self, number: u32) -> io::Result<(Box<Session>, Arc<Mapping>)> {
        self.application.seal_future_write()?;
        self.transmit_heap.seal_future_write()?;
        let memories = Memories {
            server: Arc::new(self.server.map_writable()?),
            application: Arc::new(self.application.map_readable()?),
            ledger: Arc::new(self.ledger.map_writable()?),
            receive_heap: Arc::new(self.receive_heap.map_writable()?),
            transmit_heap: Arc::new(self.transmit_heap.map_readable()?),
        };
        // The transmit heap is left: an application may never use most of it.
        for mapping in [&memories.server, &memories.ledger, &memories.receive_heap] {
            mapping.populate();
        }
        let server = memories.server.clone();
        let session = Session::new(number, self.shape, &memories, self.doorbell, self.wake);
        Ok((Box::new(session), server))
    }
}

/// Under which name a session's memories are in the store.
#[must_use]
pub(crate) fn stored_name(number: u32) -> String {
    format!("session-{number}")
}
