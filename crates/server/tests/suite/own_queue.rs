//! A device that cannot choose packets by their flows: the memory of the only session gets no packet for
//! another one.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use towpath_client::{Options, Session};
use towpath_device::{
    Access, Armed, Completion, Counters, Device, DeviceError, DeviceQueue, Dma, DmaError, Filter,
    FilterError, HardwareQueue, Info, Kick, OpenedOwnQueue, OwnMemory, OwnQueueError,
    OwnQueueLimits, OwnQueues, Packet, Received, Registration, SpaceId, Spaces,
};
use towpath_device_testing::loopback::{self, LoopbackDevice};
use towpath_memory::Mapping;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server};

/// The hardware queue that a session may have.
const OWN_QUEUE: u32 = 1;

/// The calls of a device, in their order.
type Calls = Arc<Mutex<Vec<Call>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Direct(Option<u32>),
    AddAddress,
}

/// A loopback device with another hardware queue, which receives all packets or none.
struct Card {
    all: LoopbackDevice,
    calls: Calls,
}

impl Device for Card {
    fn info(&self) -> &Info {
        self.all.info()
    }

    fn open_queue(
        &mut self,
        index: usize,
        spaces: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        Ok(Box::new(First(self.all.open_queue(index, spaces)?)))
    }

    fn own_queue_limits(&self) -> Result<OwnQueueLimits, OwnQueueError> {
        let queues = OWN_QUEUE..OWN_QUEUE + 1;
        Ok(OwnQueueLimits { queues, buffer_bytes: 64..=1 << 16, takes_all: true })
    }

    fn own_queues(&self) -> Option<Box<dyn OwnQueues>> {
        Some(Box::<Opener>::default())
    }

    fn direct(&mut self, hardware: Option<u32>) {
        self.calls.lock().unwrap().push(Call::Direct(hardware));
    }

    fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
        if matches!(filter, Filter::Address(_)) {
            self.calls.lock().unwrap().push(Call::AddAddress);
        }
        self.all.add_filter(filter)
    }

    fn remove_filter(&mut self, filter: &Filter) {
        self.all.remove_filter(filter);
    }
}

/// The server's queue, which also cedes the other hardware queue.
struct First(Box<dyn DeviceQueue>);

impl DeviceQueue for First {
    fn cede(&mut self, hardware: u32) -> Option<HardwareQueue> {
        (hardware == OWN_QUEUE).then(|| HardwareQueue::new(hardware, Box::new(())))
    }

    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.0.rx_fill(spaces, space, buffers)
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.0.rx_poll(spaces, out, budget)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        self.0.tx_submit(spaces, packets)
    }

    fn kick(&mut self, spaces: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        self.0.kick(spaces, ring)
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.0.tx_complete(out, budget)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.sleep_fd()
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        self.0.arm(tx_waiting)
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.0.reset(buffers)
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }
}

/// Opens the other hardware queue: an end of a loopback pair of its own. Holds the far ends, without
/// which the queues' devices would be gone.
#[derive(Default)]
struct Opener(Mutex<Vec<LoopbackDevice>>);

impl OwnQueues for Opener {
    fn open(&self, _: HardwareQueue, memory: &OwnMemory) -> Result<OpenedOwnQueue, DeviceError> {
        let dma: Arc<dyn Dma> = Arc::new(Everywhere);
        let registration = Registration::new(&dma, &memory.mapping, Access::ReadWrite).unwrap();
        let (mut near, far) = loopback::pair(&loopback::Config::default()).unwrap();
        self.0.lock().unwrap().push(far);
        let queue = near.open_queue(0, &mut Spaces::default())?;
        Ok((queue, registration, 8))
    }

    fn take_back(&self, hardware: u32) -> Result<HardwareQueue, DeviceError> {
        Ok(HardwareQueue::new(hardware, Box::new(())))
    }
}

/// A device that reaches all memory.
struct Everywhere;

impl Dma for Everywhere {
    fn register(&self, _: &Arc<Mapping>, _: Access) -> Result<u64, DmaError> {
        Ok(0)
    }

    fn unregister(&self, _: u64) {}
}

/// Waits until the device's last call is `wanted`.
fn until_last(calls: &Calls, wanted: Call) {
    for _ in 0..1000 {
        if calls.lock().unwrap().last() == Some(&wanted) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the last call is not {wanted:?}: {:?}", calls.lock().unwrap());
}

#[test]
fn no_address_is_added_while_a_session_receives_all_packets() {
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let calls = Calls::default();
    let device = Card { all: near, calls: calls.clone() };
    let store = Box::<MemoryStore>::default();
    let server = Server::start(&Config::default(), Box::new(device), store).unwrap();
    let attach = |options: &Options| Session::attach_over(server.connect().unwrap(), options);

    let owner = attach(&Options { own_queue: true, ..Options::default() }).unwrap();
    assert!(owner.info().own_queue);
    until_last(&calls, Call::Direct(Some(OWN_QUEUE)));
    let before = calls.lock().unwrap().len();
    for round in 0..2 {
        let second = attach(&Options::default()).unwrap();
        let added = calls.lock().unwrap()[before + 3 * round..].to_vec();
        assert_eq!(added, [Call::Direct(None), Call::AddAddress]);
        drop(second);
        // Alone again, it gets all packets again.
        until_last(&calls, Call::Direct(Some(OWN_QUEUE)));
    }
    drop(owner);
    until_last(&calls, Call::Direct(None));
    server.stop().unwrap();
}
