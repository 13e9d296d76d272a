//! Two hosts, two stacks on one thread, with one busy connection between them among idle ones.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::bail;
use towpath_stack::{Config, Meta, SocketError, Stack, TcpId, Transmit};

/// A stack's end of a link without delay.
#[derive(Default)]
struct End(Vec<(Vec<u8>, Meta)>, Vec<Vec<u8>>);

impl Transmit for End {
    fn room(&mut self, _: usize) -> bool {
        self.0.len() < 64
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: impl FnOnce(&mut [u8])) -> bool {
        if self.0.len() >= 64 {
            return false;
        }
        let mut frame = self.1.pop().unwrap_or_default();
        frame.resize(len, 0);
        fill(&mut frame);
        self.0.push((frame, meta));
        true
    }
}

/// Two hosts with one busy connection between them, and idle ones.
pub(super) struct Hosts {
    stacks: [Stack; 2],
    ends: [End; 2],
    began: Instant,
    busy: (TcpId, TcpId),
}

impl Hosts {
    pub(super) fn new(idle: usize) -> anyhow::Result<Hosts> {
        let began = Instant::now();
        let addresses = ["10.0.0.1", "10.0.0.2"];
        let stack = |node: usize| -> anyhow::Result<Stack> {
            let mut config = Config::new([2, 0, 0, 0, 0, node as u8 + 1]);
            config.ipv4 = Some((addresses[node].parse()?, 24));
            config.seed = node as u64 + 1;
            config.tcp.receive_buffer_bytes = 64 * 1024;
            config.tcp.send_buffer_bytes = 64 * 1024;
            Ok(Stack::new(config, towpath_stack::Instant::ZERO)?)
        };
        let mut stacks = [stack(0)?, stack(1)?];
        let to: SocketAddr = format!("{}:80", addresses[1]).parse()?;
        let listener = stacks[1].tcp_listen(to, 128)?;
        let (mut connected, mut accepted) = (Vec::new(), Vec::new());
        let mut ends = <[End; 2]>::default();
        let patience = Instant::now() + Duration::from_secs(60);
        while accepted.len() < idle + 1 {
            if connected.len() < idle + 1 && connected.len() - accepted.len() < 64
                // The busy connection is made first, and alone, so that both sides know which one
                // it is.
                && (connected.is_empty() || !accepted.is_empty())
            {
                connected.push(stacks[0].tcp_connect(now(began), to, None, None)?);
            }
            pump(&mut stacks, &mut ends, now(began));
            while let Ok((id, _)) = stacks[1].tcp_accept(listener) {
                accepted.push(id);
            }
            if Instant::now() > patience {
                bail!("{} of {} connections were made in a minute", accepted.len(), idle + 1);
            }
        }
        let (Some(sender), Some(receiver)) = (connected.first(), accepted.first()) else {
            bail!("no connection")
        };
        let busy = (*sender, *receiver);
        Ok(Hosts { stacks, ends, began, busy })
    }

    /// Sends for a time; returns gigabits per second.
    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<f64> {
        let start = Instant::now();
        let (chunk, mut buffer) = ([7; 16 * 1024], [0; 16 * 1024]);
        let mut bytes = 0;
        loop {
            loop {
                match self.stacks[0].tcp_send(self.busy.0, &chunk) {
                    Ok(_) => {}
                    Err(SocketError::WouldBlock) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            pump(&mut self.stacks, &mut self.ends, now(self.began));
            loop {
                match self.stacks[1].tcp_recv(now(self.began), self.busy.1, &mut buffer) {
                    Ok(0) => bail!("the connection ended"),
                    Ok(len) => bytes += len,
                    Err(SocketError::WouldBlock) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            let took = start.elapsed();
            if took >= window {
                return Ok(bytes as f64 * 8.0 / took.as_secs_f64() / 1e9);
            }
        }
    }
}

fn now(began: Instant) -> towpath_stack::Instant {
    towpath_stack::Instant::ZERO + began.elapsed()
}

/// Makes both stacks send, and carries their packets.
fn pump(stacks: &mut [Stack; 2], ends: &mut [End; 2], now: towpath_stack::Instant) {
    for from in 0..2 {
        stacks[from].poll(now, &mut ends[from]);
        let End(frames, free) = &mut ends[from];
        for (frame, meta) in frames.drain(..) {
            stacks[1 - from].input(now, &frame, meta);
            free.push(frame);
        }
        while stacks[1 - from].next_news().is_some() {}
    }
}
