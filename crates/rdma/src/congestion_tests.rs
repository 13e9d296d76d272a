//! Two connections that share a bottleneck: a queue that marks packets.

use std::collections::VecDeque;

use towpath_packet::roce::read_frame;

use crate::requester::{Work, WorkKind};
use crate::responder::Progress;
use crate::tests::{Application, KEY, TIMING, path};
use crate::{Connection, Psn};

const MTU: u32 = 4096;
/// The time that the bottleneck takes for a packet: 100 MB/s.
const SERVICE_NS: u64 = 41_000;
/// The time on the way from either side to the other, in nanoseconds.
const LATENCY_NS: u64 = 20_000;
/// The queue marks packets from this length on.
const MARKS_FROM: usize = 24;
const STEP_NS: u64 = 1_000;

/// A sender and its receiver.
struct Flow {
    sides: [(Connection, Application); 2],
    /// Frames on the way back, with the time of their arrival.
    back: VecDeque<(u64, Vec<u8>)>,
    starts: u64,
    next_id: u64,
    delivered: u64,
}

impl Flow {
    fn new(starts: u64) -> Flow {
        let sides = [false, true].map(|reversed| {
            let progress = Progress { expected: Psn::new(0), messages: 0, writing: None };
            let to = (path(reversed), 9);
            let mut one = Connection::new(to, MTU, (Psn::new(0), 16), progress, TIMING, 0);
            one.set_ready();
            (one, Application::new())
        });
        Flow { sides, back: VecDeque::new(), starts, next_id: 0, delivered: 0 }
    }

    /// Sends what the sender may send.
    fn send(
        &mut self,
        now: u64,
        frame: &mut [u8],
        queue: &mut VecDeque<(usize, Vec<u8>)>,
        own: usize,
    ) {
        if now < self.starts {
            return;
        }
        let (connection, application) = &mut self.sides[0];
        while connection.requester().len() < 16 {
            let work = Work {
                id: self.next_id,
                kind: WorkKind::Write,
                bytes: 65_536,
                key: KEY,
                address: 0,
            };
            self.next_id += 1;
            connection.push(work, work.bytes, now);
        }
        while let Some(len) = connection.transmit(application, now, frame) {
            queue.push_back((own, frame[..len].to_vec()));
        }
    }

    /// Receives a packet of the bottleneck.
    fn receive(&mut self, frame: &[u8], marked: bool, now: u64) {
        let received = read_frame(frame).unwrap();
        let (connection, application) = &mut self.sides[1];
        assert!(connection.receive(&received.segment, marked, application, now));
        self.delivered += frame.len() as u64;
    }

    /// Sends answers back, and receives those that have arrived.
    fn answer(&mut self, now: u64, frame: &mut [u8]) {
        let (connection, application) = &mut self.sides[1];
        while let Some(len) = connection.transmit(application, now, frame) {
            self.back.push_back((now + 2 * LATENCY_NS, frame[..len].to_vec()));
        }
        while self.back.front().is_some_and(|one| one.0 <= now) {
            let (_, answer) = self.back.pop_front().unwrap();
            let received = read_frame(&answer).unwrap();
            let (connection, application) = &mut self.sides[0];
            let marked = received.congestion;
            assert!(connection.receive(&received.segment, marked, application, now));
        }
    }
}

/// The second one begins later; in the end each has between 40 and 60 of 100 parts, the bottleneck is
/// busy, and its queue is short.
#[test]
fn two_flows_share_a_queue_that_marks_packets() {
    let mut flows = [Flow::new(0), Flow::new(300_000_000)];
    let mut queue: VecDeque<(usize, Vec<u8>)> = VecDeque::new();
    let mut frame = vec![0; 8192];
    let (mut busy_until, mut longest) = (0, 0);
    let (from, until) = (1_000_000_000, 2_000_000_000);
    let mut now = 0;
    while now < until {
        now += STEP_NS;
        for (own, flow) in flows.iter_mut().enumerate() {
            flow.send(now, &mut frame, &mut queue, own);
        }
        if now >= busy_until
            && let Some((own, one)) = queue.pop_front()
        {
            busy_until = now + SERVICE_NS;
            flows[own].receive(&one, queue.len() >= MARKS_FROM, now);
        }
        flows.iter_mut().for_each(|flow| flow.answer(now, &mut frame));
        if now == from {
            flows.iter_mut().for_each(|flow| flow.delivered = 0);
        }
        if now > from {
            longest = longest.max(queue.len());
        }
    }
    let shares = flows.each_ref().map(|flow| flow.delivered);
    let whole: u64 = shares.iter().sum();
    let part = shares[0] * 100 / whole;
    assert!((40..=60).contains(&part), "{part} of 100 parts: {shares:?}");
    let possible = (until - from) / SERVICE_NS * u64::from(MTU);
    assert!(whole * 100 / possible > 80, "{whole} of {possible} bytes");
    assert!(longest < 150, "{longest} packets in the queue");
}

/// One packet in a hundred is lost, each way: the flow keeps half of the wire.
#[test]
fn losses_leave_a_flow_half_of_the_wire() {
    let mut flow = Flow::new(0);
    let mut queue: VecDeque<(usize, Vec<u8>)> = VecDeque::new();
    let mut frame = vec![0; 8192];
    let (mut busy_until, mut random) = (0, fastrand::Rng::with_seed(1));
    let mut is_lost = || random.u64(..100) == 0;
    let until = 1_000_000_000;
    let mut now = 0;
    while now < until {
        now += STEP_NS;
        flow.send(now, &mut frame, &mut queue, 0);
        if now >= busy_until
            && let Some((_, one)) = queue.pop_front()
        {
            busy_until = now + SERVICE_NS;
            if !is_lost() {
                flow.receive(&one, false, now);
            }
        }
        let before = flow.back.len();
        flow.answer(now, &mut frame);
        if flow.back.len() > before && is_lost() {
            flow.back.pop_back();
        }
    }
    let complete = flow.sides[0].1.complete.len() as u64 * 65_536;
    let possible = until / SERVICE_NS * u64::from(MTU);
    let sent_again = flow.sides[0].0.requester().retransmitted();
    assert!(complete * 100 / possible > 50, "{complete} of {possible} bytes, {sent_again} again");
}
