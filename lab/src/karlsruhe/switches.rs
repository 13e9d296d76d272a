//! The cost of each kind of switch by itself: a device wakes a driver (IRQ), a thread wakes another one
//! (send), a thread sleeps for a time and then wakes another one, and a thread only sleeps for a time (delay).
//!
//! The two threads run on a core each. Their processor time, divided by the switches, is the cost. That of an IRQ is
//! told from that of its packets by sending one packet or several per wake-up.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use towpath_device::tap::{Options, TapDevice};
use towpath_device::{Armed, Device};
use towpath_embedded::{Config, Embedded};
use towpath_netlink::Netlink;
use towpath_testkit::{pin, process_cpu_time};

use crate::Settings;
use crate::report::{Outcome, Row};
use crate::statistics::{in_turn, mean, ratios};

const TAP: &str = "tpkar3";
/// The kernel's address on the TAP, and that of the driver, which answers nothing.
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const DRIVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const DRIVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PORT: u16 = 9;
const PAYLOAD: [u8; 22] = [7; 22];
/// The least bytes of a packet of this experiment on the wire, and where its protocol is.
const PACKET_BYTES: usize = 14 + 20 + 8 + PAYLOAD.len();
const PROTOCOL_AT: usize = 14 + 9;
const UDP: u8 = 17;
/// The time between two wake-ups: the threads sleep again before the next.
const PAUSE: Duration = Duration::from_micros(200);
/// The packets of an IRQ, where it has several: so few that their cost is a small part of the pause.
const SEVERAL: usize = 4;
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Two threads' means to wake each other, and a driver.
struct Bench {
    cores: (usize, usize),
    bells: [OwnedFd; 2],
    driver: Embedded,
    kernel: UdpSocket,
}

impl Bench {
    fn new(cores: (usize, usize)) -> anyhow::Result<Bench> {
        let device = TapDevice::open(&Options { name: TAP.to_owned(), offloads: false })?;
        let mut netlink = Netlink::open()?;
        netlink.add_address(TAP, format!("{KERNEL}/24").parse()?)?;
        netlink.set_up(TAP)?;
        netlink.add_neighbour(TAP, DRIVER.into(), DRIVER_MAC)?;
        let kernel = UdpSocket::bind((KERNEL, 0))?;
        kernel.connect((DRIVER, PORT))?;
        let driver = Embedded::new(Box::new(device) as Box<dyn Device>, Config::default())?;
        // The first call gives the device its buffers.
        driver.receive(1, |_, _| {});
        // A thread that is late finds each notification of its own.
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let bell = || eventfd(0, flags);
        Ok(Bench { cores, bells: [bell()?, bell()?], driver, kernel })
    }

    fn notify(&self, bell: usize) -> anyhow::Result<()> {
        rustix::io::write(&self.bells[bell], &1_u64.to_ne_bytes())?;
        Ok(())
    }

    fn wait(&self, bell: usize) -> anyhow::Result<()> {
        let bell = &self.bells[bell];
        let count = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&PATIENCE))?;
        ensure!(count > 0, "the other thread sent no notification");
        rustix::io::read(bell, &mut [0_u8; 8])?;
        Ok(())
    }

    /// Receives packets until there were so many, and sleeps in between.
    fn drive(&self, packets: usize) -> anyhow::Result<()> {
        let mut left = packets;
        while left > 0 {
            let is_ours = |packet: &[u8]| {
                packet.len() == PACKET_BYTES && packet.get(PROTOCOL_AT) == Some(&UDP)
            };
            let mut ours = 0;
            while self.driver.receive(32, |packet, _| ours += usize::from(is_ours(packet))) > 0 {}
            left = left.saturating_sub(ours);
            if left == 0 || self.driver.arm() != Some(Armed::Sleep) {
                continue;
            }
            let fd = self.driver.sleep_fd().context("a TAP without a descriptor")?;
            let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            if poll(&mut polled, Some(&PATIENCE))? == 0 {
                bail!("{left} of {packets} packets did not arrive");
            }
            self.driver.disarm();
        }
        Ok(())
    }

    /// Runs two threads. Returns their processor time, in microseconds.
    fn both(
        &self,
        first: impl FnOnce() -> anyhow::Result<()> + Send,
        second: impl FnOnce() -> anyhow::Result<()> + Send,
    ) -> anyhow::Result<f64> {
        let own = std::process::id();
        let before = process_cpu_time(own)?;
        thread::scope(|scope| {
            let first = scope.spawn(pinned(self.cores.0, first));
            let second = scope.spawn(pinned(self.cores.1, second));
            let ends = [first.join(), second.join()];
            ends.into_iter().try_for_each(|end| match end {
                Ok(end) => end,
                Err(_) => bail!("a thread panicked"),
            })
        })?;
        Ok((process_cpu_time(own)? - before).as_secs_f64() * 1e6)
    }

    /// Returns the cost of a delay.
    fn delay(&self, rounds: usize) -> anyhow::Result<f64> {
        let spent = self.both(|| Ok(()), || paced(rounds, || Ok(())))?;
        Ok(spent / rounds as f64)
    }

    /// Returns the cost of a switch where a thread sleeps for a time, then wakes another one.
    fn delay_then_send(&self, rounds: usize) -> anyhow::Result<f64> {
        let wait = || (0..rounds).try_for_each(|_| self.wait(0));
        let spent = self.both(wait, || paced(rounds, || self.notify(0)))?;
        Ok(spent / (2 * rounds) as f64)
    }

    /// Returns the cost of a switch where two threads wake each other.
    fn send(&self, rounds: usize) -> anyhow::Result<f64> {
        let answer = || {
            (0..rounds).try_for_each(|_| {
                self.wait(0)?;
                self.notify(1)
            })
        };
        let ask = || {
            (0..rounds).try_for_each(|_| {
                self.notify(0)?;
                self.wait(1)
            })
        };
        Ok(self.both(answer, ask)? / (2 * rounds) as f64)
    }

    /// Returns the cost of an IRQ with so many packets, the sender's delay included.
    fn irq(&self, rounds: usize, packets: usize) -> anyhow::Result<f64> {
        let send = || {
            paced(rounds, || {
                for _ in 0..packets {
                    self.kernel.send(&PAYLOAD)?;
                }
                Ok(())
            })
        };
        Ok(self.both(|| self.drive(rounds * packets), send)? / rounds as f64)
    }
}

/// Returns what a thread of a core does.
fn pinned(
    cpu: usize,
    run: impl FnOnce() -> anyhow::Result<()> + Send,
) -> impl FnOnce() -> anyhow::Result<()> + Send {
    move || {
        pin(cpu)?;
        run()
    }
}

/// Sleeps, then acts, again and again.
fn paced(rounds: usize, mut act: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let start = Instant::now();
    for round in 1..=rounds {
        let due = PAUSE * round as u32;
        thread::sleep(due.saturating_sub(start.elapsed()));
        act()?;
    }
    Ok(())
}

/// Returns the cost of an IRQ without its packets and without the sender's delay, by those with one
/// packet and with several.
fn irq_alone(one: f64, several: f64, delay: f64) -> f64 {
    let packet = (several - one) / (SEVERAL - 1) as f64;
    one - packet - delay
}

/// Measures all kinds in turn.
pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let rounds = if settings.quick { 300 } else { 1000 };
    let bench = Bench::new(cores)?;
    let values = in_turn(
        settings.pairs(),
        &mut [
            &mut || bench.irq(rounds, 1),
            &mut || bench.irq(rounds, SEVERAL),
            &mut || bench.send(rounds),
            &mut || bench.delay_then_send(rounds),
            &mut || bench.delay(rounds),
        ],
    )?;
    let [one, several, send, delay_then_send, delay] =
        <[Vec<f64>; 5]>::try_from(values).unwrap_or_default();
    let irqs = one.iter().zip(&several).zip(&delay);
    let irq: Vec<f64> =
        irqs.map(|((one, several), delay)| irq_alone(*one, *several, *delay)).collect();
    // In the paper's order, the most expensive first.
    let kinds =
        [("IRQ", irq), ("send", send), ("delay, then send", delay_then_send), ("delay", delay)];
    for (name, values) in &kinds {
        let name = format!("a switch costs: {name}");
        outcome.context.push(Row::within(&name, &[], "us", mean(values), values.len()));
    }
    for pair in kinds.windows(2) {
        let [(more, values), (less, base)] = pair else { continue };
        let name = format!("a switch costs, {more} to {less}");
        outcome.rows.push(Row::new(&name, &[], "ratio", &ratios(values, base)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_irq_is_told_from_its_packets() {
        // An IRQ of 10, packets of 3 and a delay of 4.
        let cost = |packets: usize| 10.0 + 3.0 * packets as f64 + 4.0;
        assert!((irq_alone(cost(1), cost(SEVERAL), 4.0) - 10.0).abs() < 1e-9);
    }
}
