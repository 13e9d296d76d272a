//! The wires between hosts and a switch: what a frame waits for on its way.

use std::collections::VecDeque;
use std::time::Duration;

/// The frames that a wire queues by default, as many as a session has receive buffers by default.
pub(super) const QUEUE: usize = 4096;
const MTU: usize = 1500;

/// The wire between a host and the switch, with the same properties in both directions. By default a frame takes no time,
/// and the MTU is 1500 bytes. A wire keeps frames in order.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use std::time::Duration;
/// use towpath_net::testing::{Switch, Wire};
/// use towpath_net::{Network, UdpSocket};
///
/// // A satellite: 300 ms in each direction, 10 Mbit/s, and room for 50 frames that wait for these.
/// let wire = Wire::new().delay(Duration::from_millis(300)).bandwidth(10_000_000).queue(50);
/// let switch = Switch::new();
/// let (near, far) = (switch.host()?, switch.host_over(wire, Network::builder())?);
/// let receiver = UdpSocket::bind(&far, "10.0.0.2:7")?;
/// UdpSocket::bind(&near, "10.0.0.1:0")?.send_to(b"question", "10.0.0.2:7")?;
/// // Three times the wire: the request for the link address, its answer, and the datagram.
/// switch.advance(Duration::from_secs(1));
/// assert_eq!(receiver.recv(&mut [0; 8])?, 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    delay: Duration,
    /// Bits per second; `None`: without a limit.
    bandwidth: Option<u64>,
    queue: usize,
    mtu: usize,
}

impl Default for Wire {
    fn default() -> Wire {
        Wire { delay: Duration::ZERO, bandwidth: None, queue: QUEUE, mtu: MTU }
    }
}

impl Wire {
    /// Returns a wire with the defaults.
    ///
    /// ```
    /// # use towpath_net::testing::Wire;
    /// assert_eq!(Wire::new(), Wire::new().queue(4096).mtu(1500));
    /// ```
    #[must_use]
    pub fn new() -> Wire {
        Wire::default()
    }

    /// Sets the time that each frame takes in each direction, of the hosts' clock: that of the machine, which
    /// [`Switch::advance`](super::Switch::advance) advances.
    ///
    /// ```
    /// # use towpath_net::testing::Wire;
    /// use std::time::Duration;
    ///
    /// // Two hosts with this wire are 40 ms apart, and a round trip takes 80 ms.
    /// let wire = Wire::new().delay(Duration::from_millis(20));
    /// ```
    #[must_use]
    pub fn delay(self, delay: Duration) -> Wire {
        Wire { delay, ..self }
    }

    /// Sets the rate of each direction, in bits per second; 0 counts as 1. A frame counts from its Ethernet header on, without
    /// preamble, check sequence and gap. By default, there is no limit.
    ///
    /// ```
    /// # use towpath_net::testing::Wire;
    /// // 1 Mbit/s: a frame of 1514 bytes takes 12.1 ms.
    /// let wire = Wire::new().bandwidth(1_000_000);
    /// ```
    #[must_use]
    pub fn bandwidth(self, bits_per_second: u64) -> Wire {
        Wire { bandwidth: Some(bits_per_second.max(1)), ..self }
    }

    /// Sets how many frames wait in each direction for the rate of [`Wire::bandwidth`], at least 1, by default 4096. The
    /// switch loses further ones ([`SwitchCounters::overflowed`](super::SwitchCounters::overflowed)).
    ///
    /// ```
    /// # use towpath_net::testing::Wire;
    /// // A short queue: a sender that is too fast loses frames early, and none waits for long.
    /// let wire = Wire::new().bandwidth(1_000_000).queue(8);
    /// ```
    #[must_use]
    pub fn queue(self, frames: usize) -> Wire {
        Wire { queue: frames.max(1), ..self }
    }

    /// Sets the MTU of the host: the largest IP packet in bytes, 1280 to 65 535. The switch loses frames that exceed the MTU
    /// of their receiver ([`SwitchCounters::oversized`](super::SwitchCounters::oversized)), as an Ethernet switch does, which
    /// tells no sender.
    ///
    /// ```
    /// # use towpath_net::testing::{Switch, Wire};
    /// # use towpath_net::{Network, UdpSocket};
    /// // Jumbo frames.
    /// let (wire, switch) = (Wire::new().mtu(9000), Switch::new());
    /// let hosts = [wire, wire].map(|wire| switch.host_over(wire, Network::builder()));
    /// # for host in hosts {
    /// #     host?;
    /// # }
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn mtu(self, bytes: usize) -> Wire {
        Wire { mtu: bytes, ..self }
    }

    pub(super) fn mtu_bytes(&self) -> usize {
        self.mtu
    }

    /// Returns the time that the wire is busy with a frame, in nanoseconds.
    fn sending_ns(&self, bytes: usize) -> u64 {
        let Some(rate) = self.bandwidth else { return 0 };
        let ns = (bytes as u128 * 8 * 1_000_000_000).div_ceil(rate.into());
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// One direction of a wire. Times are nanoseconds of the switch's clock.
#[derive(Default)]
pub(super) struct Line {
    /// When each frame that the line has not sent yet will be sent, in order.
    sent_at: VecDeque<u64>,
    /// When the latest frame arrives.
    latest: u64,
}

impl Line {
    /// Sends a frame that reaches the line at a time, which is not before that of the frame before. Returns when the frame
    /// arrives; `None` if the queue is full.
    pub(super) fn send(&mut self, wire: &Wire, at: u64, bytes: usize) -> Option<u64> {
        while self.sent_at.front().is_some_and(|sent| *sent <= at) {
            self.sent_at.pop_front();
        }
        // The first one is on the wire.
        if self.sent_at.len() > wire.queue {
            return None;
        }
        let from = self.sent_at.back().map_or(at, |sent| at.max(*sent));
        let sent = from.saturating_add(wire.sending_ns(bytes));
        if sent > at {
            self.sent_at.push_back(sent);
        }
        let delay = u64::try_from(wire.delay.as_nanos()).unwrap_or(u64::MAX);
        // A delay that has become shorter must not change the order.
        self.latest = sent.saturating_add(delay).max(self.latest);
        Some(self.latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn frames_wait_for_rate_and_delay() {
        // 1 ms for each frame.
        let wire = Wire::new().bandwidth(1_000_000).delay(Duration::from_millis(20)).queue(2);
        let mut line = Line::default();
        let mut send = |at| line.send(&wire, at * MS, 125).map(|arrival| arrival / MS);
        assert_eq!([send(0), send(0), send(0)], [Some(21), Some(22), Some(23)]);
        // One is on the wire, and two wait.
        assert_eq!(send(0), None);
        assert_eq!(send(1), Some(24));
        // Idle again.
        assert_eq!(send(100), Some(121));
    }

    #[test]
    fn a_plain_wire_takes_no_time_and_a_shorter_delay_keeps_the_order() {
        let mut line = Line::default();
        for at in 0..10_000 {
            assert_eq!(line.send(&Wire::new(), at, 1514), Some(at));
        }
        let slow = Wire::new().delay(Duration::from_secs(1));
        assert_eq!(line.send(&slow, 10_000, 60), Some(1_000_010_000));
        assert_eq!(line.send(&Wire::new(), 20_000, 60), Some(1_000_010_000));
        assert_eq!(line.send(&Wire::new(), 2_000_000_000, 60), Some(2_000_000_000));
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        let wire = Wire::new().bandwidth(0).delay(Duration::MAX).queue(0);
        let mut line = Line::default();
        assert_eq!(line.send(&wire, u64::MAX - 1, usize::MAX), Some(u64::MAX));
        assert_eq!(line.send(&wire, u64::MAX - 1, 60), Some(u64::MAX));
        assert_eq!(line.send(&wire, u64::MAX - 1, 60), None);
    }
}
