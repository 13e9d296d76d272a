//! A wrapper that writes every frame of both directions to a pcapng capture.
//!
//! The wrapper completes checksums in the capture, and segments large packets on request, so that a
//! reader finds the frames as they are on the wire. The capture has the sent frames that the device
//! took.
//!
//! A capture never blocks traffic: when writing fails (a full disk), the capture ends, and the
//! wrapper keeps the failure until the caller asks for it. A packet for which the writer has no room
//! (`WouldBlock`) is counted, and the capture continues.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use towpath_device::{
    Armed, Assembly, Device, DeviceError, DeviceQueue, Meta, Packet, Received, Spaces,
};
use towpath_packet::pcapng::{Direction, InterfaceId, Writer};
use towpath_packet::segment::complete_into;

use crate::wrapped::{Opening, Wrap, Wrapped};

/// The form of each packet in the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `true` to segment large packets as on the wire. Otherwise the wrapper writes them whole,
    /// with a full checksum.
    pub segmented: bool,
    /// The maximum number of bytes to keep of a frame; 0 for all of it.
    pub snap_bytes: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { segmented: true, snap_bytes: 0 }
    }
}

/// The state of a capture; usable from any thread, and after the device is dropped.
#[derive(Clone, Debug, Default)]
pub struct CaptureStatus {
    shared: Arc<SharedCapture>,
}

#[derive(Debug, Default)]
struct SharedCapture {
    frames: AtomicU64,
    partial: AtomicU64,
    missed: AtomicU64,
    failure: Mutex<Option<io::Error>>,
}

impl CaptureStatus {
    /// Returns the number of frames written.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.shared.frames.load(Ordering::Relaxed)
    }

    /// Returns how many packets the wrapper could not complete or segment, and wrote unchanged.
    #[must_use]
    pub fn partial(&self) -> u64 {
        self.shared.partial.load(Ordering::Relaxed)
    }

    /// Returns how many packets are not in the capture, because it had ended or its writer had no room.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.shared.missed.load(Ordering::Relaxed)
    }

    /// Returns why the capture ended, once; `None` while the capture runs, and after the first
    /// call.
    #[must_use]
    pub fn take_failure(&self) -> Option<io::Error> {
        self.shared.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }

    fn add(counter: &AtomicU64, count: u64) {
        // Only the engine's thread adds, so a store is enough.
        counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }
}

/// The wrapper, which shows one queue of the device.
pub type CaptureDevice<W> = Wrapped<Capture<W>>;

/// Makes a queue that captures.
pub struct Capture<W: Write + Send> {
    options: Options,
    /// `None` once the queue is open.
    writer: Option<PacketWriter<W>>,
    status: CaptureStatus,
}

impl<W: Write + Send + 'static> CaptureDevice<W> {
    /// Wraps a device, and starts a capture. The wrapper writes the packets of a batch to `out` with
    /// one call per 64 KiB, and flushes `out` before the engine sleeps. A batch may be one packet, so
    /// pass a [`BufWriter`](io::BufWriter) around a file. An `out` without room must refuse a whole call,
    /// with `WouldBlock`.
    ///
    /// # Errors
    /// The error of writing the capture's beginning.
    pub fn new(inner: Box<dyn Device>, out: W, options: Options) -> io::Result<CaptureDevice<W>> {
        let writer = Some(PacketWriter::new(out, &inner.info().name, options.snap_bytes)?);
        let capture = Capture { options, writer, status: CaptureStatus::default() };
        Ok(Wrapped::around(inner, capture).with_info(|info| {
            info.queues = 1;
            // The capture shows packets as they are on the wire.
            info.can.tx_tag = false;
        }))
    }

    /// Returns a handle that reports the capture's state.
    #[must_use]
    pub fn status(&self) -> CaptureStatus {
        self.wrap.status.clone()
    }
}

impl<W: Write + Send + 'static> Wrap for Capture<W> {
    fn wrap(
        &mut self,
        inner: Box<dyn DeviceQueue>,
        opening: Opening<'_>,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let name = &opening.info.name;
        let writer = self.writer.take().ok_or_else(|| DeviceError::no_queue(name, true))?;
        Ok(Box::new(CaptureQueue {
            inner,
            options: self.options,
            writer: Some(writer),
            unflushed: true,
            status: self.status.clone(),
            assembly: Assembly::default(),
            scratch: Vec::new(),
        }))
    }
}

/// The bytes of blocks at which the wrapper writes them before the end of a batch.
const MOST_BLOCK_BYTES: usize = 64 << 10;

/// Gathers the blocks of a batch, and writes them with one call.
struct PacketWriter<W> {
    blocks: Writer<Vec<u8>>,
    /// The packets among the blocks.
    packets: u64,
    interface: InterfaceId,
    out: W,
}

impl<W: Write> PacketWriter<W> {
    fn new(out: W, device: &str, snap_bytes: u32) -> io::Result<PacketWriter<W>> {
        let mut blocks = Writer::new(Vec::new(), "towpath")?;
        let interface = blocks.interface(device, snap_bytes)?;
        let mut writer = PacketWriter { blocks, packets: 0, interface, out };
        writer.out.write_all(writer.blocks.get_mut())?;
        writer.blocks.get_mut().clear();
        Ok(writer)
    }

    fn packet(
        &mut self,
        time_ns: u64,
        direction: Direction,
        bytes: &[u8],
        counts: &SharedCapture,
    ) -> io::Result<()> {
        self.blocks.packet(self.interface, time_ns, direction, &[bytes], bytes.len())?;
        self.packets += 1;
        if self.blocks.get_mut().len() >= MOST_BLOCK_BYTES {
            self.write_blocks(counts)
        } else {
            Ok(())
        }
    }

    /// Writes the gathered blocks, and counts their packets: as missed if `out` has no room for them.
    fn write_blocks(&mut self, counts: &SharedCapture) -> io::Result<()> {
        let (blocks, packets) = (self.blocks.get_mut(), std::mem::take(&mut self.packets));
        if packets == 0 {
            return Ok(());
        }
        let outcome = self.out.write_all(blocks);
        blocks.clear();
        let counter = match outcome {
            Ok(()) => &counts.frames,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => &counts.missed,
            Err(error) => return Err(error),
        };
        CaptureStatus::add(counter, packets);
        Ok(())
    }
}

/// A queue that captures.
struct CaptureQueue<W: Write + Send> {
    inner: Box<dyn DeviceQueue>,
    options: Options,
    /// `None` once the capture has ended.
    writer: Option<PacketWriter<W>>,
    /// `true` if the wrapper wrote something since the last flush.
    unflushed: bool,
    status: CaptureStatus,
    assembly: Assembly,
    scratch: Vec<u8>,
}

impl<W: Write + Send> CaptureQueue<W> {
    /// Writes a packet that the device took.
    fn write_sent(&mut self, spaces: &Spaces, packet: &Packet<'_>, time_ns: u64) {
        let parts = packet.parts;
        let sum: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
        if parts.len() > towpath_device::MAX_PARTS || sum > u64::from(u16::MAX) * 2 {
            // The device has counted the packet as dropped, as it does for a bad part.
            return;
        }
        let meta = packet.meta;
        self.write(Direction::Outbound, time_ns, |assembly| {
            Some((assembly.assemble(spaces, parts)?, meta))
        });
    }

    /// Writes the packet that `assemble` returns.
    fn write(
        &mut self,
        direction: Direction,
        time_ns: u64,
        assemble: impl FnOnce(&mut Assembly) -> Option<(&[u8], Meta)>,
    ) {
        let shared = &self.status.shared;
        let Some(writer) = &mut self.writer else {
            CaptureStatus::add(&shared.missed, 1);
            return;
        };
        let Some((packet, mut meta)) = assemble(&mut self.assembly) else { return };
        if packet.is_empty() {
            return;
        }
        if !self.options.segmented {
            meta.segmentation = None;
        }
        let mut outcome = Ok(());
        let mut put = |bytes: &[u8]| {
            if outcome.is_ok() {
                outcome = writer.packet(time_ns, direction, bytes, shared);
            }
        };
        if complete_into(packet, &meta, &mut self.scratch, &mut put).is_err() {
            put(packet);
            CaptureStatus::add(&shared.partial, 1);
        }
        self.unflushed = true;
        if let Err(error) = outcome {
            self.end(error);
        }
    }

    /// Writes the gathered blocks of a batch. A failure ends the capture.
    fn end_batch(&mut self) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.write_blocks(&self.status.shared)
        {
            self.end(error);
        }
    }

    fn flush(&mut self) {
        if !std::mem::take(&mut self.unflushed) {
            return;
        }
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.out.flush()
        {
            self.end(error);
        }
    }

    fn end(&mut self, error: io::Error) {
        self.writer = None;
        let failure = &self.status.shared.failure;
        *failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
    }
}

/// Returns the time of a whole batch, in nanoseconds since 1970.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl<W: Write + Send> DeviceQueue for CaptureQueue<W> {
    crate::forward!(inner: holds, rx_fill, kick, tx_complete, sleep_fd, reset, counters);

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let before = out.len();
        let returned = self.inner.rx_poll(spaces, out, budget)?;
        if returned > 0 {
            let time_ns = now_ns();
            for buffers in Received::packets(&out[before..]) {
                self.write(Direction::Inbound, time_ns, |assembly| {
                    assembly.received(spaces, buffers)
                });
            }
            self.end_batch();
        }
        Ok(returned)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let taken = self.inner.tx_submit(spaces, packets)?;
        if taken > 0 {
            let time_ns = now_ns();
            // The engine has not fetched their tokens yet, so the parts are unchanged.
            for packet in &packets[..taken] {
                self.write_sent(spaces, packet, time_ns);
            }
            self.end_batch();
        }
        Ok(taken)
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        // The wrapper flushes before it arms: a flush takes time, and the device reports packets
        // that come meanwhile.
        self.flush();
        self.inner.arm(tx_waiting)
    }
}

impl<W: Write + Send> Drop for CaptureQueue<W> {
    fn drop(&mut self) {
        self.flush();
    }
}
