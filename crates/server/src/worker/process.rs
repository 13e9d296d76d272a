//! The worker's own loop.
//!
//! It runs in a process that was forked from a multi-threaded program. It therefore allocates
//! nothing, takes no lock and writes no log line: all its memory existed before the fork.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags, SendFlags, recvmsg};
use towpath_engine::clock::clock_ns;
use towpath_memory::copies::Copies;
use towpath_protocol::message::MAX_REQUEST_BYTES;

use super::held::{Doorbells, Entries, Entry, wipe};
use super::preparation::{allocate_and_pin, prepare, seal_allocated};
use super::wire::{self, Descriptors, Head, MAX_PACKET_BYTES, command, report};

/// The epoll data of the control thread's channel.
const CHANNEL: u64 = 0;
/// The epoll data of the engine's eventfd.
const ENGINE: u64 = 1;
/// From this value on, the epoll data has two values per connection: for its socket and its process.
const CONNECTIONS: u64 = 2;

/// Commands that the worker executes before it handles other events.
const COMMANDS: usize = 64;
/// The interval at which the worker checks an ended connection with unread data.
const UNREAD_CHECK_NS: u64 = 100_000_000;

/// The end of a worker: the server closed its channel, or the kernel refused a necessary resource.
pub(crate) struct Over;

impl From<Errno> for Over {
    fn from(_: Errno) -> Over {
        Over
    }
}

/// Memory that a worker's process has when it begins.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) entries: Entries,
    pub(crate) doorbells: Doorbells,
    pub(crate) copies: Copies,
    /// The longest silence of a connection that attaches, in nanoseconds.
    pub(crate) step_ns: u64,
    /// The time after which the worker reports executed commands while more wait, in nanoseconds.
    pub(crate) report_ns: u64,
}

/// A worker.
pub(crate) struct Worker {
    channel: OwnedFd,
    /// The engine writes this eventfd when a doorbell's counter has changed.
    notified: OwnedFd,
    /// The engines' epoll sets, which report applications' notifications to their engines.
    engines: Descriptors,
    epoll: OwnedFd,
    tables: Tables,
    handled: u64,
    /// The number of executed commands that the control thread knows of, and the time at which it was told.
    told: u64,
    told_at: u64,
}

impl Worker {
    /// Creates a worker without connections.
    ///
    /// # Errors
    /// Fails if the kernel gives it no epoll descriptor.
    pub(crate) fn new(
        channel: OwnedFd,
        engines: Descriptors,
        notified: OwnedFd,
        tables: Tables,
    ) -> Result<Worker, Over> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, &channel, data(CHANNEL), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &notified, data(ENGINE), epoll::EventFlags::IN)?;
        let told_at = clock_ns();
        Ok(Worker { channel, notified, engines, epoll, tables, handled: 0, told: 0, told_at })
    }

    /// Runs until the server closes the channel.
    pub(crate) fn run(mut self, buffer: &mut [u8; MAX_PACKET_BYTES]) -> Over {
        loop {
            if let Err(over) = self.work(buffer) {
                return over;
            }
        }
    }

    fn work(&mut self, buffer: &mut [u8; MAX_PACKET_BYTES]) -> Result<(), Over> {
        let mut events = [const { MaybeUninit::uninit() }; 16];
        let timeout = self.tables.entries.first_deadline().map(|(deadline, _)| {
            let left = Duration::from_nanos(deadline.saturating_sub(clock_ns()));
            Timespec::try_from(left).unwrap_or_default()
        });
        let ready = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let (nothing, mut commanded) = (ready.is_empty(), false);
        for event in &*ready {
            match event.data.u64() {
                CHANNEL => commanded = true,
                ENGINE => {
                    let _ = rustix::io::read(&self.notified, &mut [0_u8; 8]);
                    self.tables.doorbells.notify();
                    self.tables.copies.serve();
                }
                data => {
                    let data = data - CONNECTIONS;
                    let (index, is_process) = ((data / 2) as usize, data % 2 == 1);
                    self.on_readable(index, is_process)?;
                }
            }
        }
        // Commands come last: a new connection may get the index of a connection that has just ended and
        // that still has events in this batch.
        if commanded {
            self.commands(buffer)?;
        }
        // The worker reads messages that a peer sent in time before it applies the time limit.
        if nothing {
            let now = clock_ns();
            while let Some((deadline, index)) = self.tables.entries.first_deadline()
                && deadline <= now
            {
                self.end(index)?;
            }
        }
        self.tell_handled()
    }

    fn tell_handled(&mut self) -> Result<(), Over> {
        if self.told == self.handled { Ok(()) } else { self.tell(report::HANDLED, 0, 0, &[]) }
    }

    fn tell(&mut self, kind: u32, token: u64, value: u64, body: &[u8]) -> Result<(), Over> {
        self.tell_with(kind, token, value, body, &Descriptors::default())
    }

    fn tell_with(
        &mut self,
        kind: u32,
        token: u64,
        value: u64,
        body: &[u8],
        descriptors: &Descriptors,
    ) -> Result<(), Over> {
        let head = Head { kind, reserved: 0, token, value, handled: self.handled };
        (self.told, self.told_at) = (self.handled, clock_ns());
        let mut handed = [self.channel.as_fd(); wire::MAX_DESCRIPTORS];
        let count = wire::borrow(descriptors, &mut handed);
        let channel = self.channel.as_fd();
        Ok(wire::send(channel, head, body, &handed[..count], SendFlags::empty())?)
    }

    /// Reports that memory is ready, or the error.
    fn tell_pins(
        &mut self,
        kind: u32,
        token: u64,
        flags: u64,
        outcome: Result<Descriptors, Errno>,
    ) -> Result<(), Over> {
        let (pins, errno) = match outcome {
            Ok(pins) => (pins, 0),
            Err(errno) => (Descriptors::default(), errno.raw_os_error() as u64),
        };
        self.tell_with(kind, token, errno | flags, &[], &pins)
    }

    /// Handles a connection that has a message, or whose process has ended.
    fn on_readable(&mut self, index: usize, is_process: bool) -> Result<(), Over> {
        let Some(entry) = self.tables.entries.at(index) else { return Ok(()) };
        if is_process {
            return self.end(index);
        }
        let token = entry.token;
        let mut bytes = [0; MAX_REQUEST_BYTES + 1];
        // The call gives no room for descriptors, so the kernel closes those that arrive, here.
        let received = recvmsg(
            &entry.socket,
            &mut [std::io::IoSliceMut::new(&mut bytes)],
            &mut rustix::net::RecvAncillaryBuffer::default(),
            RecvFlags::DONTWAIT,
        );
        let (len, flags) = match received {
            Ok(received) => (received.bytes, received.flags),
            Err(Errno::AGAIN | Errno::INTR) => return self.listen(index),
            Err(_) => return self.end(index),
        };
        if flags.contains(ReturnFlags::CTRUNC) {
            self.silence(index);
            return self.tell(report::MESSAGE, token, report::DESCRIPTORS, &[]);
        }
        if len == 0 {
            return self.end(index);
        }
        self.silence(index);
        if len > MAX_REQUEST_BYTES || flags.contains(ReturnFlags::TRUNC) {
            return self.tell(report::MESSAGE, token, report::TOO_LONG, &[]);
        }
        self.tell(report::MESSAGE, token, report::VALID, &bytes[..len])
    }

    /// Stops the peer's time limit: the server has to act next.
    fn silence(&mut self, index: usize) {
        self.tables.entries.set_deadline(index, None);
    }

    /// Listens for the next message of a connection. Each arming is for one event.
    fn listen(&mut self, index: usize) -> Result<(), Over> {
        let Some(entry) = self.tables.entries.at(index) else { return Ok(()) };
        let data = epoll::EventData::new_u64(CONNECTIONS + index as u64 * 2);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        Ok(epoll::modify(&self.epoll, &entry.socket, data, flags)?)
    }

    /// Ends a connection from this side. A peer may not have read the descriptors that it was sent.
    /// Its connection then stays until the peer has read them or closed it. Until then, the
    /// descriptors count as the server's, and the connection as its user's.
    fn end(&mut self, index: usize) -> Result<(), Over> {
        let Some(entry) = self.tables.entries.at(index) else { return Ok(()) };
        if entry.has_descriptors && entry.has_unread_data() {
            let _ = epoll::delete(&self.epoll, &entry.socket);
            if let Some(process) = entry.process.take() {
                let _ = epoll::delete(&self.epoll, &process);
            }
            self.tables.entries.set_deadline(index, Some(clock_ns() + UNREAD_CHECK_NS));
            return Ok(());
        }
        let token = self.close(index);
        token.map_or(Ok(()), |token| self.tell(report::ENDED, token, 0, &[]))
    }

    /// Closes a connection, and the parts of its session that were kept until then.
    fn close(&mut self, index: usize) -> Option<u64> {
        let entry = self.tables.entries.remove(index)?;
        // While the server's closing thread has copies of these descriptors, epoll would still
        // report them: as events of the next connection with this index.
        let _ = epoll::delete(&self.epoll, &entry.socket);
        if let Some(process) = &entry.process {
            let _ = epoll::delete(&self.epoll, process);
        }
        if let Some(files) = &entry.disposed {
            wipe(files);
        }
        Some(entry.token)
    }

    pub(super) fn commands(&mut self, buffer: &mut [u8; MAX_PACKET_BYTES]) -> Result<(), Over> {
        for _ in 0..COMMANDS {
            let mut descriptors = Descriptors::default();
            let flags = RecvFlags::DONTWAIT;
            match wire::receive(self.channel.as_fd(), buffer, &mut descriptors, flags) {
                Ok(Some((head, body))) => {
                    self.carry_out(head, body, descriptors)?;
                    // Without a report of its long commands, the worker would count as hung.
                    if clock_ns() - self.told_at > self.tables.report_ns {
                        self.tell_handled()?;
                    }
                }
                Ok(None) => {
                    // The server may still wait for the report of a worker that had hung.
                    self.tell_handled()?;
                    return Err(Over);
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        head: Head,
        body: &[u8],
        mut descriptors: Descriptors,
    ) -> Result<(), Over> {
        self.handled += 1;
        // The application may take an answer for the end of the copies that the engine asked for before.
        self.tables.copies.serve();
        let entries = &self.tables.entries;
        match head.kind {
            command::ADOPT => {
                let [socket, process, ..] = descriptors;
                self.adopt(head, socket, process)
            }
            command::ANSWER => match entries.index_of(head.token) {
                Some(index) => self.answer(index, head.value, body, &descriptors),
                None => Ok(()),
            },
            command::CLOSE_CONNECTION => {
                if let Some(index) = entries.index_of(head.token) {
                    self.close(index);
                }
                Ok(())
            }
            command::PREPARE_MEMORY | command::PREPARE_OLDER => {
                let mut is_unfreeable = false;
                let engines = &self.engines;
                let outcome = prepare(engines, head, &descriptors, &mut is_unfreeable);
                drop(descriptors);
                let flags = if is_unfreeable { report::UNFREEABLE } else { 0 };
                self.tell_pins(report::MEMORY_READY, head.token, flags, outcome)
            }
            command::OPEN_DOORBELL => {
                self.tables.doorbells.insert(head.value, descriptors[0].take());
                // The engine may have used the counter before this command arrived.
                self.tables.doorbells.notify();
                Ok(())
            }
            command::CLOSE_DOORBELL => {
                self.tables.doorbells.remove(head.value);
                Ok(())
            }
            command::SEAL => match seal_allocated(&descriptors) {
                Ok(()) => Ok(()),
                Err(errno) => self.tell_pins(report::MEMORY_READY, head.token, 0, Err(errno)),
            },
            command::ALLOCATE => {
                let outcome = allocate_and_pin(&descriptors);
                drop(descriptors);
                self.tell_pins(report::ALLOCATED, head.token, 0, outcome)
            }
            command::DISPOSE => self.dispose(head, descriptors),
            command::SET_COPY_AREA | command::MAP_MEMORY | command::UNMAP_MEMORY => {
                self.change_copies(head, &descriptors);
                Ok(())
            }
            command::REFUSE => {
                if let [Some(socket), ..] = &descriptors {
                    let flags = SendFlags::DONTWAIT;
                    let _ = wire::send_parts(socket.as_fd(), &[&[][..], body], &[], flags);
                }
                Ok(())
            }
            // The control thread sends no other command: both ends belong to one program.
            _ => Err(Over),
        }
    }

    fn change_copies(&mut self, head: Head, [file, ..]: &Descriptors) {
        let copies = &mut self.tables.copies;
        match (head.kind, file) {
            (command::SET_COPY_AREA, file) => copies.set_area(file.as_ref()),
            (command::MAP_MEMORY, Some(file)) => copies.add(head.value, file),
            _ => copies.remove(head.value),
        }
        copies.serve();
    }

    fn adopt(
        &mut self,
        head: Head,
        socket: Option<OwnedFd>,
        process: Option<OwnedFd>,
    ) -> Result<(), Over> {
        let token = head.token;
        let Some(socket) = socket else { return self.tell(report::ENDED, token, 0, &[]) };
        let deadline = self.deadline(head.value);
        let entry =
            Entry { token, socket, process, deadline, has_descriptors: false, disposed: None };
        let Ok(index) = self.tables.entries.insert(entry) else {
            return self.tell(report::ENDED, token, 0, &[]);
        };
        let Some(entry) = self.tables.entries.at(index) else { return Ok(()) };
        let data = |which| epoll::EventData::new_u64(CONNECTIONS + index as u64 * 2 + which);
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let mut watched = epoll::add(&self.epoll, &entry.socket, data(0), once);
        if let Some(process) = &entry.process {
            // A child that inherited the connection would keep it open, so the worker watches the
            // end of the process itself.
            watched = watched.and(epoll::add(&self.epoll, process, data(1), epoll::EventFlags::IN));
        }
        match watched {
            Ok(()) => Ok(()),
            Err(_) => self.end(index),
        }
    }

    fn deadline(&self, flags: u64) -> Option<u64> {
        (flags & command::TIMED != 0).then(|| clock_ns() + self.tables.step_ns)
    }

    /// Sends an answer and listens for the next message. The worker cuts off a peer that does not
    /// read its answers.
    fn answer(
        &mut self,
        index: usize,
        flags: u64,
        body: &[u8],
        descriptors: &Descriptors,
    ) -> Result<(), Over> {
        let Some(entry) = self.tables.entries.at(index) else { return Ok(()) };
        // If no data is unread, the peer has also taken all earlier descriptors.
        entry.has_descriptors &= entry.has_unread_data();
        let mut handed = [entry.socket.as_fd(); wire::MAX_DESCRIPTORS];
        let count = wire::borrow(descriptors, &mut handed);
        let flags_of_send = SendFlags::DONTWAIT;
        let parts = [&[][..], body];
        let sent = wire::send_parts(entry.socket.as_fd(), &parts, &handed[..count], flags_of_send);
        if sent.is_err() || flags & command::LAST != 0 {
            return self.end(index);
        }
        let deadline = self.deadline(flags);
        if let Some(entry) = self.tables.entries.at(index) {
            entry.has_descriptors |= count > 0;
            // The disposed descriptors already have a deadline.
            if entry.disposed.is_some() {
                return Ok(());
            }
        }
        self.tables.entries.set_deadline(index, deadline);
        self.listen(index)
    }

    fn dispose(&mut self, head: Head, mut descriptors: Descriptors) -> Result<(), Over> {
        if let Some(index) = self.tables.entries.index_of(head.token) {
            // The first descriptor, the server pages, gives the reason for the session's end. The
            // others are of no use.
            let kept = descriptors[0].take();
            wipe(&descriptors);
            descriptors = Descriptors::default();
            descriptors[0] = kept;
            let deadline = Some(clock_ns() + self.tables.step_ns);
            self.tables.entries.set_deadline(index, deadline);
            if let Some(entry) = self.tables.entries.at(index) {
                entry.disposed = Some(descriptors);
                // The application learns of the end at once, and may then read the reason.
                let _ = epoll::delete(&self.epoll, &entry.socket);
                let _ = rustix::net::shutdown(&entry.socket, rustix::net::Shutdown::Both);
            }
            return Ok(());
        }
        if head.value & command::WIPE != 0 {
            wipe(&descriptors);
        }
        Ok(())
    }
}
