//! PDUs between two servers joined by a wire that loses, duplicates, reorders and damages frames.
//! Each PDU that arrives is whole and right, and arrives once; the counters show all others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::{random_bytes, seeded};
use towpath_device::Device;
use towpath_device_testing::fault::{FaultCounters, FaultDevice, Spec};
use towpath_device_testing::loopback;
use towpath_pdu::{Limits, Options, PduEndpoint, SendError, Session, SessionOptions};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};

const PDUS: u32 = 600;
/// The time without any frame after which all frames have arrived.
const QUIET: Duration = Duration::from_millis(300);

fn open(device: Box<dyn Device>, limits: Limits) -> (Server, PduEndpoint) {
    let subnets =
        Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)), ..Subnets::default() };
    let config = Config { settings: EngineStrategy::Block.into(), subnets, ..Config::default() };
    let server = Server::start(&config, device, Box::<MemoryStore>::default()).unwrap();
    let options = SessionOptions { receive_slots: 1024, ..SessionOptions::default() };
    let session = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    (server, PduEndpoint::open(session, &Options { limits, ..Options::default() }).unwrap())
}

/// Sends PDUs in one direction. Returns their outcome, and the faults injected into the received
/// frames.
fn run(faults: &str, seed: u64) -> (towpath_pdu::ReceiveCounters, FaultCounters) {
    let mut random = seeded(seed);
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    println!("faults: {faults}");
    let spec: Spec = faults.parse().unwrap();
    let far = FaultDevice::new(Box::new(far), &spec);
    let injected = far.fault_counters();
    // A PDU that lost a fragment stays until it expires, and must not evict an intact one.
    let time = Duration::from_millis(500);
    let limits = Limits { partials_of_source: 64, time, ..Limits::default() };
    let (near_server, mut a) = open(Box::new(near), limits);
    let (far_server, mut b) = open(Box::new(far), limits);
    let to = b.session().info().mac;
    let from = a.session().info().mac;
    assert_ne!(to, from);

    let mut sent = HashMap::new();
    let (mut next, mut arrived) = (0, 0_u32);
    let mut quiet_since = Instant::now();
    let until = Instant::now() + Duration::from_secs(60);
    while next < PDUS || a.waiting_fragments() > 0 || quiet_since.elapsed() < QUIET {
        assert!(Instant::now() < until, "{next} sent, {:?}", b.received());
        // Fewer packets in flight than the receiver has buffers, so only the faults lose frames.
        if next < PDUS && a.free_buffers().unwrap() > 128 {
            let len = match random.u64(..3) {
                0 => random.u64(..64),
                1 => random.u64(..8000),
                _ => random.u64(..65_537),
            };
            let pdu = random_bytes(&mut random, len as usize);
            match a.send_bytes(to, next % 7, &pdu) {
                Ok(id) => assert!(sent.insert((next % 7, id), pdu).is_none()),
                Err(SendError::Full) => {}
                Err(error) => panic!("{error}"),
            }
            next = sent.len() as u32 + arrived;
        }
        a.wait(Some(Duration::ZERO)).unwrap();
        b.wait(Some(Duration::from_micros(200))).unwrap();
        let got = b
            .receive(256, |pdu| {
                assert_eq!(pdu.source(), from);
                let expected = sent.remove(&(pdu.channel(), pdu.id())).expect("it arrives once");
                assert!(pdu.parts().flatten().eq(&expected), "{} bytes", expected.len());
                arrived += 1;
            })
            .unwrap();
        // Lets the endpoint see its completions.
        a.drain(Duration::ZERO, |_| ()).unwrap();
        if got > 0 || next < PDUS {
            quiet_since = Instant::now();
        }
    }
    // The receiver gives up incomplete PDUs in time.
    while b.partials() > 0 {
        assert!(Instant::now() < until);
        b.wait(Some(Duration::from_millis(100))).unwrap();
        b.receive(256, |_| panic!("late")).unwrap();
    }
    let received = b.received();
    println!("{:?}\n{received:?}\n{:?}", a.sent(), injected.rx());
    assert!(received.adds_up(0), "{received:?}");
    assert_eq!(a.sent().pdus, u64::from(PDUS));
    assert_eq!((received.delivered(), sent.len() as u32), (arrived.into(), PDUS - arrived));
    let done = injected.rx();
    let counted = |name| {
        let all = b.session().counters(b.endpoint());
        all.into_iter().find(|(one, _)| *one == name).unwrap().1
    };
    assert_eq!(counted("rx_dropped_no_buffers") + counted("rx_dropped_over_budget"), 0);
    assert_eq!(done.frames, a.sent().fragments, "all sent frames reached the fault device");
    // A frame with a damaged address or ethertype reaches no endpoint, or looks like another kind.
    let came = done.frames - done.dropped + done.duplicated;
    assert!(received.fragments <= came && received.fragments + done.flipped >= came);
    assert!(received.malformed + received.damaged + received.damaged_in_place <= done.flipped * 2);
    // Each missing PDU has its fault: one fault costs at most one PDU.
    assert!(u64::from(PDUS - arrived) <= done.dropped + done.flipped);
    drop((a, b));
    near_server.stop().unwrap();
    // The other end of its device has just gone.
    let _ = far_server.stop();
    (received, injected)
}

#[test]
fn without_faults_every_pdu_arrives() {
    let (received, _) = run("", 1);
    assert_eq!(received.delivered(), u64::from(PDUS));
    assert_eq!(received.fragments, received.in_place + received.copied, "nothing was dropped");
}

#[test]
fn doubled_and_reordered_every_pdu_arrives_once() {
    let (received, injected) = run("rx.dup=0.1,rx.reorder=0.2,seed=2", 2);
    assert_eq!(received.delivered(), u64::from(PDUS));
    assert_eq!(received.duplicates + received.late, injected.rx().duplicated);
    assert!(injected.rx().reordered > 0 && injected.rx().duplicated > 0);
}

#[test]
fn despite_loss_and_damage_delivered_pdus_are_whole() {
    let (received, injected) =
        run("rx.drop=0.01,rx.dup=0.02,rx.reorder=0.05,rx.flip=0.01,seed=3", 3);
    let done = injected.rx();
    assert!(done.dropped > 0 && done.flipped > 0 && done.duplicated > 0 && done.reordered > 0);
    assert!(received.expired > 0 && received.malformed > 0 && received.damaged > 0);
    assert!(received.delivered() > u64::from(PDUS) / 3, "{received:?}");
}
