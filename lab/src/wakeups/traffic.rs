//! Two applications that send each other one packet at a time, so that a side that is not woken
//! waits for ever.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use fastrand::Rng;
use towpath_client::{Endpoint, Options, QueuePair, Rule, Session, WaitStrategy};
use towpath_server::Server;

use super::pause::pause;

const ETHERTYPE: u16 = 0x88b5;
/// The number of the packet that ends the traffic.
const END: u64 = u64::MAX;
/// Ticks per second of timer-driven sides: few enough to sleep in between.
pub(super) const CLOCK_HZ: u32 = 5000;
/// Packets of the largest burst.
pub(super) const BURST: u64 = 8;

/// One of two applications that send each other packets.
pub(super) struct Side {
    pub(super) session: Session,
    pub(super) endpoint: Endpoint,
    frame: Vec<u8>,
    limit: Duration,
}

impl Side {
    pub(super) fn pair(
        server: &Server,
        waits: [WaitStrategy; 2],
        limit: Duration,
    ) -> anyhow::Result<[Side; 2]> {
        let side = |name: &str, waiting| -> anyhow::Result<Side> {
            let options =
                Options { name: name.into(), wait_strategy: waiting, ..Options::default() };
            let mut session = Session::attach_over(server.connect()?, &options)?;
            let endpoint = session.open(&Rule::new().ethertype(ETHERTYPE))?;
            Ok(Side { session, endpoint, frame: vec![0; 60], limit })
        };
        let mut sides = [side("near", waits[0])?, side("far", waits[1])?];
        let macs = [sides[0].session.info().mac, sides[1].session.info().mac];
        for (own, side) in sides.iter_mut().enumerate() {
            side.frame[..6].copy_from_slice(&macs[1 - own].octets());
            side.frame[6..12].copy_from_slice(&macs[own].octets());
            side.frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        }
        Ok(sides)
    }

    pub(super) fn put(&mut self, number: u64) -> anyhow::Result<()> {
        self.frame[14..22].copy_from_slice(&number.to_le_bytes());
        Ok(self.session.sender().send_bytes(self.endpoint, &self.frame)?)
    }

    pub(super) fn send(&mut self, number: u64) -> anyhow::Result<()> {
        self.put(number)?;
        Ok(self.session.sender().flush()?)
    }

    /// Takes all packets, and passes the number of each to `seen`. Returns how many there were.
    pub(super) fn take(&mut self, mut seen: impl FnMut(u64)) -> anyhow::Result<usize> {
        let got = self.session.receiver().receive(QueuePair::FIRST, BURST as usize, |packet| {
            for part in packet.parts() {
                if let Some(bytes) = part.get(14..22).and_then(|bytes| bytes.first_chunk()) {
                    seen(u64::from_le_bytes(*bytes));
                }
            }
        })?;
        Ok(got)
    }

    /// Waits for one packet, and returns its number.
    pub(super) fn wait(&mut self) -> anyhow::Result<u64> {
        let (start, mut number) = (Instant::now(), None);
        self.session.wait(Some(self.limit))?;
        // A side that wakes up at its time limit finds packets without a notification.
        let woken = start.elapsed() < self.limit;
        let got = self.take(|one| number = Some(one))?;
        match number {
            Some(number) if woken => {
                ensure!(got == 1, "{got} packets where one was sent");
                Ok(number)
            }
            // The packet is there, and this side was not notified.
            Some(_) => bail!("the application was not woken for {:?}", self.limit),
            None => bail!("the engine delivered nothing for {:?}", self.limit),
        }
    }
}

/// The round trips of two applications that send each other one packet at a time.
#[derive(Default)]
pub(super) struct Traffic {
    stop: AtomicBool,
    pub(super) rounds: AtomicU64,
    sleeps: [AtomicU64; 2],
}

/// The wait strategies that sides use in turn, if they change.
pub(super) const WAYS: [WaitStrategy; 3] =
    [WaitStrategy::Block, WaitStrategy::SpinThenBlock, WaitStrategy::TimerDriven(CLOCK_HZ)];

impl Traffic {
    /// Runs two sides, and `watch` beside them until it is done; then ends them. With `changing`,
    /// the wait strategies of the sides change, too.
    pub(super) fn run<T>(
        &self,
        sides: [Side; 2],
        seed: u64,
        changing: bool,
        watch: impl FnOnce(&dyn Fn() -> bool) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let [near, far] = sides;
        std::thread::scope(|scope| {
            let far = scope.spawn(move || self.answer(far, seed, changing));
            let near = scope.spawn(move || self.ask(near, seed, changing));
            let watched = watch(&|| near.is_finished() || far.is_finished());
            self.stop.store(true, Ordering::Relaxed);
            let failed = |_| anyhow::anyhow!("a thread of the traffic failed");
            let (near, far) = (near.join().map_err(failed)?, far.join().map_err(failed)?);
            // The side that got a packet and was not woken has the best report; the other one only
            // waits for it.
            match (near, far) {
                (Err(near), Err(far)) => bail!("{near:#}; the other side: {far:#}"),
                (Err(one), _) | (_, Err(one)) => Err(one),
                (Ok(_sent), Ok(())) => watched,
            }
        })
    }

    /// Returns its side, which the caller keeps until the other one has the last packet.
    fn ask(&self, mut side: Side, seed: u64, changing: bool) -> anyhow::Result<Side> {
        let mut random = Rng::with_seed(seed);
        for round in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                side.send(END)?;
                return Ok(side);
            }
            pause(&mut random);
            side.send(round)?;
            let back = side.wait().with_context(|| format!("after {round} rounds"))?;
            ensure!(back == round, "packet {back} instead of {round}");
            self.rounds.store(round + 1, Ordering::Relaxed);
            self.after(&mut side, 0, round, changing.then_some(&mut random))?;
        }
        Ok(side)
    }

    fn answer(&self, mut side: Side, seed: u64, changing: bool) -> anyhow::Result<()> {
        let mut random = Rng::with_seed(!seed);
        for round in 0.. {
            let number = side.wait().with_context(|| format!("after {round} rounds"))?;
            if number == END {
                return Ok(());
            }
            pause(&mut random);
            side.send(number)?;
            self.after(&mut side, 1, round, changing.then_some(&mut random))?;
        }
        Ok(())
    }

    fn after(
        &self,
        side: &mut Side,
        place: usize,
        round: u64,
        changing: Option<&mut Rng>,
    ) -> anyhow::Result<()> {
        self.sleeps[place].store(side.session.statistics().sleeps, Ordering::Relaxed);
        if let Some(random) = changing
            && round.is_multiple_of(16)
        {
            side.session.set_wait_strategy(WAYS[random.usize(..3)])?;
        }
        Ok(())
    }

    pub(super) fn application_sleeps(&self) -> u64 {
        self.sleeps.iter().map(|one| one.load(Ordering::Relaxed)).sum()
    }
}
