//! Two hosts, two stacks on one thread, with one busy connection between them among idle ones.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use towpath_stack::{Config, Meta, SocketError, Stack, TcpId, Transmit};

/// The most connections to one port: a host has 16 384 ports of its own for them (RFC 6335, 6).
const PER_PORT: usize = 16_000;
/// The time limit of all handshakes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections that exchange data at a time.
const TOGETHER: usize = 64;

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
    /// Both ends of each connection; the first connection is the busy one.
    connections: Vec<(TcpId, TcpId)>,
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
            config.limits.connections = config.limits.connections.max(idle + 1);
            Ok(Stack::new(config, towpath_stack::Instant::ZERO)?)
        };
        let stacks = [stack(0)?, stack(1)?];
        let connections = Vec::with_capacity(idle + 1);
        let mut hosts = Hosts { stacks, ends: <[End; 2]>::default(), began, connections };
        let to = addresses[1].parse::<Ipv4Addr>()?;
        for port in 0..=(idle / PER_PORT) {
            let left = idle + 1 - hosts.connections.len();
            hosts.connect(SocketAddr::new(to.into(), 80 + port as u16), left.min(PER_PORT))?;
        }
        Ok(hosts)
    }

    /// Makes connections to a port of the second host.
    fn connect(&mut self, to: SocketAddr, count: usize) -> anyhow::Result<()> {
        let listener = self.stacks[1].tcp_listen(to, 128)?;
        let (mut connected, mut accepted) = (Vec::new(), BTreeMap::new());
        while accepted.len() < count {
            if connected.len() < count && connected.len() - accepted.len() < TOGETHER {
                connected.push(self.stacks[0].tcp_connect(now(self.began), to, None, None)?);
            }
            pump(&mut self.stacks, &mut self.ends, now(self.began));
            while let Ok((id, peer)) = self.stacks[1].tcp_accept(listener) {
                accepted.insert(peer.port(), id);
            }
            if self.began.elapsed() > PATIENCE {
                bail!("{} of {count} connections to {to} were made in a minute", accepted.len());
            }
        }
        for near in connected {
            let (local, _) = self.stacks[0].tcp_addresses(near)?;
            let far = accepted.get(&local.port()).context("a connection without its other end")?;
            self.connections.push((near, *far));
        }
        Ok(())
    }

    /// Sends bytes through the first `count` idle connections, and back.
    pub(super) fn exchange(&mut self, count: usize, bytes: usize) -> anyhow::Result<()> {
        let idle = self.connections.get(1..=count).context("not so many connections")?.to_vec();
        for some in idle.chunks(TOGETHER) {
            let there: Vec<_> = some.iter().map(|(near, far)| (*near, *far)).collect();
            let back: Vec<_> = some.iter().map(|(near, far)| (*far, *near)).collect();
            self.carry(0, &there, bytes)?;
            self.carry(1, &back, bytes)?;
        }
        Ok(())
    }

    /// Sends bytes from one host to the other through each of these connections.
    fn carry(
        &mut self,
        from: usize,
        connections: &[(TcpId, TcpId)],
        bytes: usize,
    ) -> anyhow::Result<()> {
        let (chunk, mut buffer) = (vec![7; bytes], vec![0; bytes]);
        let mut left = vec![(bytes, bytes); connections.len()];
        let start = Instant::now();
        while left.iter().any(|(_, receive)| *receive > 0) {
            for ((sender, receiver), (send, receive)) in connections.iter().zip(&mut left) {
                if *send > 0 {
                    *send -= taken(self.stacks[from].tcp_send(*sender, &chunk[..*send]))?;
                }
                let at = now(self.began);
                *receive -= taken(self.stacks[1 - from].tcp_recv(at, *receiver, &mut buffer))?;
            }
            pump(&mut self.stacks, &mut self.ends, now(self.began));
            ensure!(start.elapsed() < PATIENCE, "idle connections do not carry data");
        }
        Ok(())
    }

    /// Sends for a time; returns gigabits per second.
    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<f64> {
        let (sender, receiver) = *self.connections.first().context("no connection")?;
        let start = Instant::now();
        let (chunk, mut buffer) = ([7; 16 * 1024], [0; 16 * 1024]);
        let mut bytes = 0;
        loop {
            loop {
                match self.stacks[0].tcp_send(sender, &chunk) {
                    Ok(_) => {}
                    Err(SocketError::WouldBlock) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            pump(&mut self.stacks, &mut self.ends, now(self.began));
            loop {
                match self.stacks[1].tcp_recv(now(self.began), receiver, &mut buffer) {
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

/// Returns the bytes that a call moved: none if it would block.
fn taken(result: Result<usize, SocketError>) -> Result<usize, SocketError> {
    match result {
        Err(SocketError::WouldBlock) => Ok(0),
        result => result,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_carry_data_and_the_busy_one_is_another() {
        let mut hosts = Hosts::new(100).unwrap();
        assert_eq!(hosts.connections.len(), 101);
        hosts.exchange(100, 3000).unwrap();
        assert!(hosts.exchange(101, 1).is_err());
        assert!(hosts.run(Duration::from_millis(20)).unwrap() > 0.0);
    }
}
