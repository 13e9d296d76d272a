//! Measures whether io_uring makes the reads and writes of a TAP cheaper.
//!
//! The TAP driver makes one system call per packet. With io_uring, one call submits a batch of
//! reads or writes and returns when all are done; the kernel executes each as it would execute the
//! call. The experiment makes the same reads and writes both ways, on one thread, without a server.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use anyhow::{Context, ensure};
use towpath_device::Device;
use towpath_device::tap::{Options, TapDevice};
use towpath_netlink::Netlink;
use towpath_testkit::{PacketSocket, Ring};

use crate::Settings;
use crate::machine::two_cores;
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

const NAME: &str = "tpring";
/// Packets in a batch.
const BATCHES: [usize; 3] = [1, 8, 32];
/// The ethertype of frames that no protocol of the kernel takes.
const ETHERTYPE: u16 = 0x88b5;
/// The virtio-net header in front of each frame.
const HEADER_BYTES: usize = towpath_device::virtio::HEADER_BYTES;
const FRAME_BYTES: usize = 64;
/// Bytes of a buffer to read into.
const BUFFER_BYTES: usize = 2048;

/// A TAP interface, and what the two ways need.
struct Bench {
    device: TapDevice,
    sender: PacketSocket,
    ring: Ring,
    buffers: Vec<[u8; BUFFER_BYTES]>,
    /// A frame to the kernel, with its header.
    frame: [u8; HEADER_BYTES + FRAME_BYTES],
}

fn descriptor(device: &TapDevice) -> anyhow::Result<BorrowedFd<'_>> {
    let objects = device.objects();
    Ok(objects.into_iter().next().context("a TAP without a descriptor")?.1)
}

impl Bench {
    fn new() -> anyhow::Result<Bench> {
        let options = Options { name: NAME.into(), offloads: false };
        let device = TapDevice::open(&options)?;
        Netlink::open()?.set_up(NAME)?;
        let sender = PacketSocket::open(NAME, ETHERTYPE)?;
        let mut frame = [0; HEADER_BYTES + FRAME_BYTES];
        frame[HEADER_BYTES..][..6].copy_from_slice(&device.info().mac);
        frame[HEADER_BYTES + 6] = 2;
        frame[HEADER_BYTES + 12..][..2].copy_from_slice(&ETHERTYPE.to_be_bytes());
        let ring = Ring::new(BATCHES[2] as u32)
            .context("io_uring; the kernel may refuse it: kernel.io_uring_disabled")?;
        Ok(Bench { device, sender, ring, buffers: vec![[0; BUFFER_BYTES]; BATCHES[2]], frame })
    }

    /// Returns the time of one packet, in nanoseconds, over `rounds` batches. `prepare` runs before
    /// each batch and is not timed.
    fn timed(
        &mut self,
        (batch, rounds): (usize, usize),
        prepare: impl Fn(&mut Bench, usize) -> anyhow::Result<()>,
        pass: impl Fn(&mut Bench, usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<f64> {
        let mut nanoseconds = 0;
        for _ in 0..rounds {
            prepare(self, batch)?;
            let start = Instant::now();
            pass(self, batch)?;
            nanoseconds += start.elapsed().as_nanos();
        }
        Ok(nanoseconds as f64 / (batch * rounds) as f64)
    }

    fn write_by_calls(&mut self, batch: usize) -> anyhow::Result<()> {
        for _ in 0..batch {
            rustix::io::write(descriptor(&self.device)?, &self.frame)?;
        }
        Ok(())
    }

    fn write_by_ring(&mut self, batch: usize) -> anyhow::Result<()> {
        let Bench { device, ring, frame, .. } = self;
        let frames = [&frame[..]; BATCHES[2]];
        ring.write(descriptor(device)?, &frames[..batch])?;
        Ok(())
    }

    fn read_by_calls(&mut self, batch: usize) -> anyhow::Result<()> {
        for number in 0..batch {
            let buffer = &mut self.buffers[number];
            let read = rustix::io::read(descriptor(&self.device)?, buffer)?;
            ensure!(read >= FRAME_BYTES, "a packet of {read} bytes");
        }
        Ok(())
    }

    fn read_by_ring(&mut self, batch: usize) -> anyhow::Result<()> {
        let Bench { device, ring, buffers, .. } = self;
        let read = ring.read(descriptor(device)?, &mut buffers[..batch])?;
        ensure!(read >= FRAME_BYTES, "a packet of {read} bytes");
        Ok(())
    }

    /// Makes the kernel send a batch to the TAP, after what else it has sent is read.
    fn fill(&mut self, batch: usize) -> anyhow::Result<()> {
        let mut rest = [0; BUFFER_BYTES];
        while rustix::io::read(descriptor(&self.device)?, &mut rest).is_ok() {}
        for _ in 0..batch {
            ensure!(
                self.sender.send(&self.frame[HEADER_BYTES..])?,
                "the interface's queue is full"
            );
        }
        Ok(())
    }
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (core, _) = two_cores()?;
    towpath_testkit::pin(core)?;
    let packets = if settings.quick { 20_000 } else { 200_000 };
    let mut outcome = Outcome {
        how: format!(
            "frames of {FRAME_BYTES} bytes, one thread on core {core}; {packets} of them in each \
             run; writes: to the kernel, which drops them; reads: of frames that already wait; one \
             `read` or `write` for each, against one `io_uring_enter` for a batch"
        ),
        ..Outcome::default()
    };
    let bench = std::cell::RefCell::new(Bench::new()?);
    let nothing = |_: &mut Bench, _: usize| Ok(());
    for batch in BATCHES {
        let size = (batch, packets / batch);
        let writes = Pairs::measure(
            settings.pairs(),
            || bench.borrow_mut().timed(size, nothing, Bench::write_by_ring),
            || bench.borrow_mut().timed(size, nothing, Bench::write_by_calls),
        )?;
        let reads = Pairs::measure(
            settings.pairs(),
            || bench.borrow_mut().timed(size, Bench::fill, Bench::read_by_ring),
            || bench.borrow_mut().timed(size, Bench::fill, Bench::read_by_calls),
        )?;
        let parameters = [("batch", batch as f64)];
        for (name, pairs) in [("write", writes), ("read", reads)] {
            let row = |name: &str, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
            let ratio = format!("{name}: io_uring to one call per packet");
            outcome.rows.push(row(&ratio, "ratio", &pairs.ratios()));
            outcome.context.push(row(&format!("{name}: io_uring"), "ns", &pairs.ours));
            outcome.context.push(row(&format!("{name}: one call"), "ns", &pairs.base));
        }
    }
    Ok(outcome)
}
