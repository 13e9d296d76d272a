//! Receive queues of channels: a channel that floods, or that the application does not read, takes
//! nothing of another one; shares are in proportion to weights. All bounds are of counts.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::support::{ALICE, BOB, cut, random_bytes, seeded};
use towpath_device_testing::loopback;
use towpath_pdu::{
    Accepted, ChannelQueue, Channels, Dropped, Limits, MAX_PDU_BYTES, MAX_QUEUES, Options,
    PduEndpoint, QueueError, Session, SessionOptions,
};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};

const FLOOD: u32 = 7;
const CALM: u32 = 8;
const CHUNK: usize = 1472;

struct Bench {
    channels: Channels,
    now: Instant,
}

impl Bench {
    fn new(queues: &[ChannelQueue]) -> Bench {
        let mut channels = Channels::new(Limits::default());
        queues.iter().for_each(|queue| channels.open(queue).unwrap());
        Bench { channels, now: Instant::now() }
    }

    /// Gives a frame to the receiver. Returns `Ok(true)` if it completed a PDU.
    fn give(&mut self, frame: &[u8]) -> Result<bool, Dropped> {
        let accepted = self.channels.accept(self.now, std::iter::once(frame));
        let complete = accepted.map(|one| !matches!(one, Accepted::Waits));
        self.check();
        complete
    }

    /// Gives all frames of a PDU. Returns whether the PDU is complete.
    fn give_all(&mut self, channel: u32, id: u32, pdu: &[u8]) -> bool {
        cut(ALICE, channel, id, pdu, CHUNK)
            .iter()
            .map(|frame| self.give(frame))
            .fold(false, |complete, one| complete | (one == Ok(true)))
    }

    fn check(&self) {
        let shared = self.channels.shared();
        assert!(shared.counters().adds_up(shared.waiting()), "{:?}", shared.counters());
        for channel in [FLOOD, CALM] {
            let Some(state) = self.channels.state(channel) else { continue };
            assert!(state.received.adds_up(state.incomplete), "{state:?}");
            assert_eq!(state.received.reassembled, state.taken + state.queued as u64);
            assert_eq!(state.received.in_place, 0, "nothing stays in the session's buffers");
        }
    }

    fn take(&mut self, budget: usize) -> Vec<(u32, u32, Vec<u8>)> {
        let mut taken = Vec::new();
        let count = self.channels.take(budget, |pdu| {
            assert!(!pdu.is_in_place());
            let bytes = pdu.contiguous().unwrap().to_vec();
            taken.push((pdu.channel(), pdu.id(), bytes));
        });
        assert_eq!(count, taken.len());
        self.check();
        taken
    }
}

#[test]
fn a_flooding_channel_evicts_nothing_of_another() {
    let pdu = vec![5; 4 * CHUNK];
    let frames = cut(BOB, CALM, 1, &pdu, CHUNK);
    for queues in [&[][..], &[ChannelQueue::new(FLOOD), ChannelQueue::new(CALM)]] {
        let mut bench = Bench::new(queues);
        assert_eq!(bench.give(&frames[0]), Ok(false));
        // Incomplete PDUs of many sources, more than any limit, and complete ones.
        for id in 0..2000 {
            let from = [2, 0, 0, 1, 0, id as u8];
            let _ = bench.give(&cut(from, FLOOD, id, &[1; 2 * CHUNK], CHUNK)[0]);
            let _ = bench.give(&cut(from, FLOOD, 5000 + id, &[2; 100], CHUNK)[0]);
        }
        let rest: Vec<_> = frames[1..].iter().map(|frame| bench.give(frame)).collect();
        if queues.is_empty() {
            assert!(!rest.contains(&Ok(true)), "without queues, the flood evicts it");
            continue;
        }
        assert_eq!(rest, [Ok(false), Ok(false), Ok(true)]);
        let state = bench.channels.state(FLOOD).unwrap();
        assert!(state.queued + state.incomplete <= 64 && state.held_bytes <= 1 << 20, "{state:?}");
        assert!(state.received.no_room > 1000, "{state:?}");
        // Also the delivery: the flood's 64 PDUs do not precede it.
        let first: Vec<_> = bench.take(8).into_iter().map(|one| one.0).collect();
        assert!(first.contains(&CALM), "{first:?}");
    }
}

#[test]
fn a_channel_that_is_not_read_keeps_its_bound_and_others_flow() {
    let queue = |channel| ChannelQueue::new(channel).pdus(10).bytes(80_000);
    let mut bench = Bench::new(&[queue(FLOOD), queue(CALM)]);
    for id in 0..500 {
        let is_kept = bench.give_all(FLOOD, id, &[id as u8; 20_000]);
        assert_eq!(is_kept, id < 2, "80 000 bytes hold two buffers of 32 KiB");
        assert!(bench.give_all(CALM, id, &[id as u8; 48]), "PDU {id}");
        let mut got = Vec::new();
        let taken = bench.channels.take_from(CALM, 5, |pdu| got.push(pdu.id()));
        assert_eq!((taken, got), (1, vec![id]));
    }
    let state = bench.channels.state(FLOOD).unwrap();
    assert_eq!((state.queued, state.incomplete, state.taken), (2, 0, 0));
    // The first fragment of each counts so, and the other 13 as late.
    assert_eq!((state.received.no_room, state.received.late), (498, 498 * 13));
    assert!(state.held_bytes <= 80_000);
    // The kept ones are the oldest; then there is room again.
    let taken = bench.take(10);
    assert_eq!(taken.iter().map(|one| one.1).collect::<Vec<_>>(), [0, 1]);
    assert!(taken.iter().all(|(_, id, bytes)| *bytes == vec![*id as u8; 20_000]));
    assert!(bench.give_all(FLOOD, 1000, &[3; 20_000]));
    // The limit of PDUs, where each is short.
    for id in 2000..2100 {
        let frames = cut(ALICE, CALM, id, &[1], CHUNK);
        let expected = if id < 2010 { Ok(true) } else { Err(Dropped::NoRoom) };
        assert_eq!(bench.give(&frames[0]), expected, "PDU {id}");
    }
}

#[test]
fn shares_of_delivered_bytes_follow_the_weights() {
    let weights = [1, 2, 4];
    let lens = [100, 3000, 40];
    let queues: Vec<_> = weights
        .iter()
        .zip(0..)
        .map(|(weight, channel)| ChannelQueue::new(channel).pdus(2000).weight(*weight))
        .collect();
    let queues: Vec<_> = queues.into_iter().map(|queue| queue.bytes(16 << 20)).collect();
    let mut bench = Bench::new(&queues);
    for id in 0..1900 {
        for (channel, len) in lens.into_iter().enumerate() {
            assert!(bench.give_all(channel as u32, id, &vec![0; len]));
        }
    }
    let mut bytes = [0_usize; 3];
    let mut last = [None; 3];
    for _ in 0..100 {
        for (channel, id, pdu) in bench.take(20) {
            bytes[channel as usize] += pdu.len() + 42;
            let before = last[channel as usize].replace(id);
            assert!(before.is_none_or(|before| before + 1 == id), "a channel keeps its order");
        }
    }
    let each: Vec<f64> = bytes
        .iter()
        .zip(weights)
        .map(|(bytes, weight)| *bytes as f64 / f64::from(weight))
        .collect();
    for (a, b) in [(0, 1), (1, 2), (0, 2)] {
        assert!((each[a] - each[b]).abs() <= 3042.0, "{bytes:?} by weights {weights:?}");
    }
    // A channel alone gets all.
    let count = bench.channels.take(10_000, |_| {});
    assert_eq!(count, 3 * 1900 - 2000);
    assert_eq!(bench.channels.take(1, |_| {}), 0);
}

/// Random frames, takes, opened and closed queues, beside a model of each queue.
#[test]
fn each_queue_is_a_bounded_list_of_whole_pdus() {
    let mut random = seeded(11);
    let mut bench = Bench::new(&[]);
    let mut model: HashMap<u32, VecDeque<(u32, Vec<u8>)>> = HashMap::new();
    for id in 0..20_000 {
        let channel = FLOOD + random.u32(..3);
        match random.u64(..20) {
            0 => {
                let opened = bench.channels.open(&ChannelQueue::new(channel).pdus(5));
                let expected = if model.contains_key(&channel) {
                    Err(QueueError::Exists(channel))
                } else {
                    Ok(())
                };
                assert_eq!(opened, expected);
                model.entry(channel).or_default();
            }
            1 => {
                let closed = bench.channels.close(channel).map(|state| state.queued);
                assert_eq!(closed, model.remove(&channel).map(|queue| queue.len()));
            }
            2..=5 => {
                for (channel, id, bytes) in bench.take(random.usize(..4)) {
                    let expected = model.get_mut(&channel).and_then(VecDeque::pop_front);
                    assert_eq!(expected, Some((id, bytes)));
                }
            }
            6 => {
                let mut got = Vec::new();
                bench.channels.take_from(channel, 2, |pdu| got.push(pdu.id()));
                let queue = model.entry(channel).or_default();
                let expected: Vec<_> = queue.drain(..queue.len().min(2)).map(|one| one.0).collect();
                assert_eq!(got, expected);
                model.retain(|channel, _| bench.channels.state(*channel).is_some());
            }
            _ => {
                let len = random.usize(..4000);
                let pdu = random_bytes(&mut random, len);
                let complete = bench.give_all(channel, id, &pdu);
                if let Some(queue) = model.get_mut(&channel) {
                    assert_eq!(complete, queue.len() < 5, "a full queue refuses, another does not");
                    if complete {
                        queue.push_back((id, pdu));
                    }
                } else {
                    assert!(complete);
                }
            }
        }
        for (channel, queue) in &model {
            assert_eq!(bench.channels.state(*channel).unwrap().queued, queue.len());
        }
    }
}

#[test]
fn incomplete_pdus_of_a_queue_expire() {
    let mut bench = Bench::new(&[ChannelQueue::new(CALM)]);
    assert_eq!(bench.channels.deadline(), None);
    let frames = cut(ALICE, CALM, 1, &[0; 2 * CHUNK], CHUNK);
    assert_eq!(bench.give(&frames[0]), Ok(false));
    let time = Limits::default().time;
    assert_eq!(bench.channels.deadline(), Some(bench.now + time));
    bench.now += time;
    bench.channels.expire(bench.now);
    let state = bench.channels.state(CALM).unwrap();
    assert_eq!((state.incomplete, state.received.expired), (0, 1));
    assert_eq!(bench.channels.deadline(), None);
    assert_eq!(bench.give(&frames[1]), Err(Dropped::Late));
}

#[test]
fn damaged_pdus_and_duplicates_do_not_enter_a_queue() {
    let mut bench = Bench::new(&[ChannelQueue::new(CALM)]);
    let frame = &cut(ALICE, CALM, 1, &[9; 50], CHUNK)[0];
    let mut damaged = frame.clone();
    damaged[60] ^= 1;
    assert_eq!(bench.give(&damaged), Err(Dropped::Damaged));
    assert_eq!(bench.give(frame), Ok(true), "an undamaged copy still comes");
    assert_eq!(bench.give(frame), Err(Dropped::Late));
    assert_eq!(bench.take(2).len(), 1);
}

#[test]
fn the_number_of_queues_is_bounded() {
    let mut channels = Channels::new(Limits { finished: 0, ..Limits::default() });
    for channel in 0..MAX_QUEUES as u32 {
        channels.open(&ChannelQueue::new(channel).pdus(1)).unwrap();
    }
    assert_eq!(channels.open(&ChannelQueue::new(5000)), Err(QueueError::TooMany));
    assert!(channels.close(3).is_some() && channels.close(3).is_none());
    channels.open(&ChannelQueue::new(5000)).unwrap();
}

/// Over a server: a channel that is not read, beside one that is.
#[test]
fn an_unread_channel_does_not_stop_an_endpoint() {
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let subnets =
        Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)), ..Subnets::default() };
    let config = Config { settings: EngineStrategy::Block.into(), subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let open = || {
        let socket = server.connect().unwrap();
        let session = Session::attach_over(socket, &SessionOptions::default()).unwrap();
        PduEndpoint::open(session, &Options::default()).unwrap()
    };
    let (mut a, mut b) = (open(), open());
    let to = b.session().info().mac;
    b.open_queue(&ChannelQueue::new(FLOOD).bytes(2 * MAX_PDU_BYTES)).unwrap();
    b.open_queue(&ChannelQueue::new(CALM)).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let (mut calm, mut others) = (0, 0);
    for id in 0..200_u32 {
        a.send_bytes(to, FLOOD, &[1; 20_000]).unwrap();
        a.send_bytes(to, CALM, &id.to_be_bytes()).unwrap();
        a.send_bytes(to, 9, &id.to_be_bytes()).unwrap();
        while calm <= id || others <= id {
            assert!(Instant::now() < until, "{calm} and {others} came");
            a.flush().unwrap();
            b.wait(Some(Duration::from_millis(1))).unwrap();
            b.receive(256, |pdu| {
                assert!(pdu.is_in_place() && pdu.channel() == 9, "no other has no queue");
                others += 1;
            })
            .unwrap();
            b.take_from(CALM, 256, |pdu| {
                assert_eq!(pdu.contiguous(), Some(&calm.to_be_bytes()[..]));
                calm += 1;
            });
        }
    }
    assert!(a.drain(Duration::from_secs(10), |_| {}).unwrap());
    while b.wait(Some(Duration::from_millis(20))).unwrap() {
        b.receive(256, |_| {}).unwrap();
    }
    let state = b.queue_state(FLOOD).unwrap();
    // Buffers of 32 KiB.
    assert_eq!((state.queued, state.received.no_room), (4, 196));
    let mut lens = Vec::new();
    assert_eq!(b.take(10, |pdu| lens.push(pdu.len())), 4);
    assert_eq!(lens, [20_000; 4]);
    let closed = b.close_queue(CALM).unwrap();
    assert_eq!((closed.taken, closed.received.no_room), (200, 0));
    drop((a, b));
    server.stop().unwrap();
}

/// A function that panics loses the PDU that it was given, and nothing else.
#[test]
fn a_panic_in_the_function_loses_one_pdu() {
    let mut bench = Bench::new(&[ChannelQueue::new(CALM).pdus(2)]);
    let mut held = Vec::new();
    for round in 0..5 {
        for id in 0..2 {
            assert!(
                bench.give_all(CALM, 2 * round + id, &[id as u8; 3000]),
                "round {round}: no room"
            );
        }
        let takes = |channels: &mut Channels| {
            if round % 2 == 0 {
                channels.take(1, |_| panic!("the application's"))
            } else {
                channels.take_from(CALM, 1, |_| panic!("the application's"))
            }
        };
        let call = std::panic::AssertUnwindSafe(|| takes(&mut bench.channels));
        assert!(std::panic::catch_unwind(call).is_err());
        let mut left = Vec::new();
        bench.channels.take(9, |pdu| left.push(pdu.len()));
        assert_eq!(left, [3000]);
        bench.check();
        held.push(bench.channels.state(CALM).unwrap().held_bytes);
    }
    assert_eq!(held, [held[0]; 5], "buffers are reused");
}

/// Also a queue of one PDU remembers what it has completed.
#[test]
fn a_queue_of_no_pdus_is_one_of_one() {
    let mut bench = Bench::new(&[ChannelQueue::new(CALM).pdus(0)]);
    let frames = cut(ALICE, CALM, 1, b"once", CHUNK);
    assert_eq!(bench.give(&frames[0]), Ok(true));
    assert_eq!(bench.channels.take(9, |_| ()), 1);
    assert!(bench.give(&frames[0]).is_err(), "a duplicate");
}
