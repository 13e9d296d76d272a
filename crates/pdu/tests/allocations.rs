//! Asserts that no PDU, sent or received, allocates memory after the first rounds. The count covers
//! the whole process, so this program has one test.

use std::time::{Duration, Instant};

use towpath_device_testing::loopback;
use towpath_pdu::{ChannelQueue, Limits, Options, PduEndpoint, Session, SessionOptions};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};
use towpath_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const LENGTHS: [usize; 5] = [48, 1472, 4_800, 20_000, 65_536];
/// Channels with a queue. No number of a round wraps to them.
const QUEUES: [u32; 2] = [u32::MAX, u32::MAX - 1];

/// Sends PDUs of all lengths, each on a channel of its own, and to each queue.
fn round(a: &mut PduEndpoint, b: &mut PduEndpoint, number: u32) {
    let to = b.session().info().mac;
    for (channel, len) in LENGTHS.into_iter().enumerate() {
        let channel = number.wrapping_mul(31) + channel as u32;
        let mut message = a.message(to, channel, len).expect("there is room");
        while let Some(chunk) = message.next_chunk() {
            chunk.fill(number as u8);
        }
        message.send().expect("lives");
        for queue in QUEUES {
            a.send_bytes(to, queue, &[number as u8; 65_536][..len]).expect("there is room");
        }
    }
    let until = Instant::now() + Duration::from_secs(5);
    let mut got = 0;
    while got < LENGTHS.len() * (1 + QUEUES.len()) {
        assert!(Instant::now() < until, "{got} came: {:?}", b.received());
        a.flush().expect("lives");
        b.wait(Some(Duration::from_millis(1))).expect("lives");
        let mut check = |pdu: towpath_pdu::Pdu<'_>| {
            assert!(LENGTHS.contains(&pdu.len()));
            assert!(pdu.parts().all(|part| part.iter().all(|byte| *byte == number as u8)));
            got += 1;
        };
        b.receive(256, &mut check).expect("lives");
        b.take(256, &mut check);
    }
}

#[test]
fn no_allocation_for_any_pdu() {
    assert!(CountingAllocator::is_installed());
    let (near, far) = loopback::pair(&loopback::Config::default()).expect("a loopback");
    let subnets = Subnets {
        ipv4: Some(Subnet::new("10.77.0.1".parse().expect("an address"), 24)),
        ..Subnets::default()
    };
    let config = Config { settings: EngineStrategy::Block.into(), subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default())
        .expect("the server starts");
    // Tables that fill up and wrap within the test.
    let limits = Limits { finished: 64, ..Limits::default() };
    let open = || {
        let socket = server.connect().expect("a connection");
        let session = Session::attach_over(socket, &SessionOptions::default()).expect("attaches");
        PduEndpoint::open(session, &Options { limits, ..Options::default() }).expect("opens")
    };
    let (mut a, mut b) = (open(), open());
    for queue in QUEUES {
        b.open_queue(&ChannelQueue::new(queue)).expect("it has none");
    }
    for number in 0..100 {
        round(&mut a, &mut b, number);
    }
    let before = ALLOCATOR.of_process();
    for number in 100..400 {
        round(&mut a, &mut b, number);
    }
    let counted = ALLOCATOR.of_process().since(&before);
    assert_eq!(b.received().delivered(), 400 * LENGTHS.len() as u64);
    for queue in QUEUES {
        assert_eq!(b.queue_state(queue).expect("open").taken, 400 * LENGTHS.len() as u64);
    }
    drop((a, b));
    server.stop().expect("the server ends well");
    drop(far);
    assert_eq!(counted.calls(), 0, "{counted:?}");
}
