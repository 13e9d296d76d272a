//! The protocol of `lab/guest/rdma-peer.c`.

use std::time::Instant;

use anyhow::{Context, bail, ensure};
use towpath_client::{ApertureKey, Memory, OobKind, Request};

use crate::link::{Link, range};

const BUFFER: usize = 1 << 20;
const GREETING: usize = 64;
const BLOCK: usize = 65536;
/// Writes at once, where many are measured.
const DEPTH: usize = 16;
const VALUE: u32 = 0x1122_3344;
const SIZES: [usize; 9] = [1, 8, 64, 255, 256, 4096, 4097, BLOCK, BUFFER];

/// Steps that the side that connects adds.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Steps {
    /// So many writes of 64 KiB, 16 at once
    #[arg(long, value_name = "COUNT")]
    bandwidth: Option<usize>,
    /// So many writes of 8 bytes, one at a time
    #[arg(long, value_name = "COUNT")]
    latency: Option<usize>,
    /// A write with a wrong key, which must be refused
    #[arg(long)]
    wrong_key: bool,
}

/// A connection on which both sides have greeted.
pub(crate) struct Exchange {
    link: Link,
    /// The memory for the peer; the pattern that this side sends; and what it has read.
    shared: Memory,
    local: Memory,
    read: Memory,
    key: ApertureKey,
    address: u64,
}

/// Returns the pattern of a seed, as rdma-peer.c has it.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn compare(memory: &Memory, len: usize, seed: u32, what: &str) -> anyhow::Result<()> {
    let mut bytes = vec![0; len];
    memory.read(0, &mut bytes)?;
    compare_bytes(&bytes, seed, what)
}

fn compare_bytes(bytes: &[u8], seed: u32, what: &str) -> anyhow::Result<()> {
    let right = pattern(bytes.len(), seed);
    let wrong = bytes.iter().zip(&right).position(|(is, right)| is != right);
    let Some(at) = wrong else { return Ok(()) };
    bail!("{what}: byte {at} of {} is {:02x}, not {:02x}", bytes.len(), bytes[at], right[at])
}

impl Exchange {
    /// Sends the greeting, and takes that of the peer.
    pub(crate) fn begin(mut link: Link) -> anyhow::Result<Exchange> {
        let (shared, local, read) =
            (link.memory(BUFFER)?, link.memory(BUFFER)?, link.memory(BUFFER)?);
        let own = link.export(&shared, BUFFER)?;
        let mut greeting = [0; GREETING];
        greeting[..4].copy_from_slice(b"TPRD");
        greeting[12..16].copy_from_slice(&own.key().0.to_be_bytes());
        greeting[16..20].copy_from_slice(&(BUFFER as u32).to_be_bytes());
        link.carry_out(&Request::send(&greeting), "the greeting")?;
        let said = link.next_send(GREETING, "the peer's greeting")?;
        let said: &[u8; GREETING] = said.payload().first_chunk().context("a greeting")?;
        let [
            b'T',
            b'P',
            b'R',
            b'D',
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            k0,
            k1,
            k2,
            k3,
            l0,
            l1,
            l2,
            l3,
            ..,
        ] = *said
        else {
            bail!("the peer's greeting begins with {:02x?}", &said[..4])
        };
        let len = u32::from_be_bytes([l0, l1, l2, l3]);
        ensure!(len as usize == BUFFER, "the peer's buffer has {len} bytes");
        let (key, address) = range([k0, k1, k2, k3], [a0, a1, a2, a3, a4, a5, a6, a7]);
        println!("greeted: the peer's buffer at {address:#x}, key {:#x}", key.0);
        Ok(Exchange { link, shared, local, read, key, address })
    }

    /// The side that connects.
    pub(crate) fn connect(mut self, steps: &Steps) -> anyhow::Result<()> {
        for size in SIZES {
            self.write_and_read(size)?;
        }
        self.write_with_value()?;
        self.echo()?;
        if let Some(count) = steps.bandwidth {
            self.measure_bandwidth(count)?;
        }
        if let Some(count) = steps.latency {
            self.measure_latency(count)?;
        }
        if steps.wrong_key {
            let request = Request::write(ApertureKey(self.key.0 ^ 0x55), self.address);
            self.link.is_refused(&request.local(&self.local, 0..8), "write with a wrong key")?;
        }
        self.link.disconnect()
    }

    fn write(&self, offset: usize, len: usize) -> Request {
        let from = offset..offset + len;
        Request::write(self.key, self.address + offset as u64).local(&self.local, from)
    }

    fn write_and_read(&mut self, size: usize) -> anyhow::Result<()> {
        let step = format!("write {size}");
        self.local.write(0, &pattern(size, size as u32))?;
        self.link.carry_out(&self.write(0, size), &step)?;
        println!("{step} ok");
        let step = format!("read {size}");
        self.read.write(0, &vec![0; size])?;
        let read = Request::read(self.key, self.address).local(&self.read, 0..size);
        self.link.carry_out(&read, &step)?;
        compare(&self.read, size, size as u32, &step)?;
        println!("{step} ok");
        Ok(())
    }

    fn write_with_value(&mut self) -> anyhow::Result<()> {
        self.local.write(0, &pattern(BLOCK, VALUE))?;
        self.link.carry_out(&self.write(0, BLOCK).with_value(VALUE), "write with immediate")?;
        println!("write with immediate ok");
        Ok(())
    }

    fn echo(&mut self) -> anyhow::Result<()> {
        self.link.carry_out(&Request::send(&pattern(GREETING, 1)), "send")?;
        let said = self.link.next_send(GREETING, "the echo")?;
        compare_bytes(said.payload(), 1, "the echo")?;
        println!("echo ok");
        Ok(())
    }

    fn measure_bandwidth(&mut self, count: usize) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut ids = Vec::new();
        for number in 0..count {
            let write = self.write(number % DEPTH * BLOCK, BLOCK);
            ids.push(self.link.post(&write)?);
            if ids.len() >= DEPTH {
                self.link.completes(ids[ids.len() - DEPTH], "bandwidth")?;
            }
        }
        if let Some(last) = ids.last() {
            self.link.completes(*last, "bandwidth")?;
        }
        let rate = (BLOCK * count) as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("bandwidth: {count} writes of {BLOCK} bytes, {DEPTH} at once: {rate:.1} MB/s");
        Ok(())
    }

    fn measure_latency(&mut self, count: usize) -> anyhow::Result<()> {
        let mut times = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            self.link.carry_out(&self.write(0, 8), "latency")?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        let (Some(least), median) = (times.first(), times[count / 2]) else { return Ok(()) };
        let late = times[count * 99 / 100];
        println!(
            "latency: {count} writes of 8 bytes: least {least:.1}, median {median:.1}, 99 % {late:.1} us"
        );
        Ok(())
    }

    /// The side that serves.
    pub(crate) fn serve(mut self) -> anyhow::Result<()> {
        let (mut values, mut echoes) = (0, 0);
        while let Some(message) = self.link.next("the peer's next message")? {
            match (message.kind(), message.value()) {
                (OobKind::Value, Some((VALUE, bytes))) if bytes as usize == BLOCK => {
                    compare(&self.shared, BLOCK, VALUE, "write with immediate")?;
                    println!("immediate ok");
                    values += 1;
                }
                (OobKind::Message, _) if message.payload().len() == GREETING => {
                    self.link.carry_out(&Request::send(message.payload()), "the echo")?;
                    println!("echoed");
                    echoes += 1;
                }
                (kind, value) => bail!("{kind:?} of {} bytes, {value:?}", message.payload().len()),
            }
        }
        println!("disconnected");
        ensure!(
            (values, echoes) == (1, 1),
            "{values} writes with immediate and {echoes} echoes, not one of each"
        );
        Ok(())
    }
}
