//! The calls that a driver makes to its device: a packet goes directly into the device's ring while
//! none waits, and the order stays when the device refuses some.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_device::{
    Armed, Capabilities, Completion, Counters, Device, DeviceError, DeviceQueue, Info, Kick,
    Limits, Packet, Received, SpaceId, Spaces,
};
use towpath_embedded::{Config, Embedded, Protection, SendError};

/// The alignment of the device's buffers: longer than the longest packet.
const ALIGNMENT: usize = 2048;

/// The state of the device, and what the driver asked of it.
#[derive(Default)]
struct State {
    /// Packets that the ring holds, sent or not.
    places: usize,
    ring: VecDeque<u64>,
    /// Packets at the front of the ring that the device has sent.
    sent: usize,
    /// The first byte of each packet, in the order in which the device took them.
    taken: Vec<u8>,
    /// The number of packets of each call of `tx_submit`.
    submits: Vec<usize>,
    kicks: usize,
    completes: usize,
    /// `true` to panic in the next submission.
    panics: bool,
    /// The offset of each packet that the device took.
    offsets: Vec<u32>,
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<State>>);

impl Recorder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn driver(places: usize) -> (Embedded, Recorder) {
        Recorder::configured(places, Config::default())
    }

    fn configured(places: usize, config: Config) -> (Embedded, Recorder) {
        let recorder = Recorder::default();
        recorder.state().places = places;
        let info = Info {
            name: "recorder".to_owned(),
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            queues: 1,
            limits: Limits { rx_alignment: ALIGNMENT, ..Limits::new(2048) },
            rx_queue_packets: 0,
            can: Capabilities::default(),
        };
        let device = RecordingDevice { info, recorder: recorder.clone() };
        (Embedded::new(Box::new(device), config).unwrap(), recorder)
    }

    /// Takes the record of calls: packets of each submission, kicks, and takings of completions.
    fn calls(&self) -> (Vec<usize>, usize, usize) {
        let mut state = self.state();
        let state = &mut *state;
        let take = std::mem::take::<usize>;
        (std::mem::take(&mut state.submits), take(&mut state.kicks), take(&mut state.completes))
    }
}

struct RecordingDevice {
    info: Info,
    recorder: Recorder,
}

impl Device for RecordingDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        _: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        Ok(Box::new(self.recorder.clone()))
    }
}

impl DeviceQueue for Recorder {
    fn rx_fill(&mut self, _: &Spaces, _: SpaceId, _: &[u32]) -> usize {
        0
    }

    fn rx_poll(
        &mut self,
        _: &mut Spaces,
        _: &mut Vec<Received>,
        _: usize,
    ) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let mut state = self.state();
        assert!(!state.panics, "the panic that this test wants");
        state.submits.push(packets.len());
        let count = packets.len().min(state.places - state.ring.len());
        for packet in &packets[..count] {
            let [part] = packet.parts else { panic!("one buffer per packet") };
            assert_eq!(part.len, 60);
            let mut first = [0];
            spaces.copy_out(part.space, part.offset, &mut first).unwrap();
            state.taken.extend(first);
            state.ring.push_back(packet.token);
            state.offsets.push(part.offset);
        }
        Ok(count)
    }

    fn kick(&mut self, _: &mut Spaces, _: Kick) -> Result<(), DeviceError> {
        self.state().kicks += 1;
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let mut state = self.state();
        state.completes += 1;
        let count = state.sent.min(budget);
        state.sent -= count;
        out.extend(state.ring.drain(..count).map(Completion::sent));
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self, _: bool) -> Result<Armed, DeviceError> {
        Ok(Armed::Work)
    }

    fn reset(&mut self, _: &mut Vec<u32>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// A device may send in one piece only what lies in one of its buffers, as AF_XDP does.
#[test]
fn every_buffer_lies_in_one_of_the_devices() {
    let (driver, device) = Recorder::driver(256);
    for _ in 0..256 {
        driver.send(&[0; 60]).unwrap();
    }
    let longest = 1500 + 18;
    let crosses = |start: &u32| *start as usize % ALIGNMENT + longest > ALIGNMENT;
    let state = device.state();
    assert_eq!(state.offsets.len(), 256);
    assert_eq!(state.offsets.iter().find(|start| crosses(start)), None);
}

/// Each packet takes one submission and one kick, and many packets share a taking of completions.
#[test]
fn a_packet_goes_directly_into_the_ring() {
    let (driver, device) = Recorder::driver(64);
    for number in 0..32 {
        driver.send(&[number; 60]).unwrap();
        device.state().sent += 1;
        assert_eq!(device.calls(), (vec![1], 1, 0), "packet {number}");
    }
    driver.send(&[32; 60]).unwrap();
    assert_eq!(device.calls(), (vec![1], 1, 1), "many packets are in flight");
    let counts = driver.counts().unwrap();
    assert_eq!((counts.direct, counts.left, counts.taken, counts.returned), (33, 0, 33, 32));
    assert_eq!(device.state().taken, (0..33).collect::<Vec<u8>>());
}

/// A refused packet does not wait while completions that the driver has not taken give room.
#[test]
fn completions_make_room_for_a_refused_packet() {
    let (driver, device) = Recorder::driver(4);
    for number in 0..4 {
        driver.send(&[number; 60]).unwrap();
    }
    device.state().sent = 4;
    device.calls();
    driver.send(&[4; 60]).unwrap();
    assert_eq!(device.calls(), (vec![1, 1], 1, 1));
    assert_eq!(device.state().taken, [0, 1, 2, 3, 4]);
}

/// Only the packets that the device refuses wait, and all later packets go after them.
#[test]
fn refused_packets_wait_in_order() {
    let (driver, device) = Recorder::driver(2);
    for number in 0..5 {
        driver.send(&[number; 60]).unwrap();
    }
    assert_eq!(device.state().taken, [0, 1]);
    assert_eq!(driver.drive(), Some(5), "two in flight, three wait");
    device.state().sent = 2;
    device.calls();
    driver.send(&[5; 60]).unwrap();
    // The new packet goes with those that wait, with one kick.
    assert_eq!(device.calls(), (vec![4], 1, 1));
    device.state().sent = 2;
    assert_eq!(driver.drive(), Some(2));
    assert_eq!(device.state().taken, [0, 1, 2, 3, 4, 5]);
    device.state().sent = 2;
    assert_eq!(driver.drive(), Some(0));
    driver.send(&[6; 60]).unwrap();
    assert_eq!(device.state().taken, [0, 1, 2, 3, 4, 5, 6], "directly again");
    let counts = driver.counts().unwrap();
    assert_eq!((counts.direct, counts.left, counts.taken), (7, 0, 7));
    // The first two and the last one; the third; the fourth to the sixth.
    assert_eq!((counts.straight, counts.busy, counts.behind, counts.link_down), (3, 1, 3, 0));
}

/// Once all buffers wait, the driver refuses a packet, and counts it.
#[test]
fn a_full_queue_is_an_error() {
    for write in [Protection::Optimistic, Protection::Mutex] {
        let config = Config { own: 4, write, ..Config::default() };
        let (driver, device) = Recorder::configured(1, config);
        for number in 0..4 {
            driver.send(&[number; 60]).unwrap();
        }
        assert_eq!(driver.send(&[4; 60]), Err(SendError::WouldBlock));
        let counts = driver.counts().unwrap();
        assert_eq!((counts.straight, counts.busy, counts.behind), (1, 1, 2), "{write:?}");
        assert_eq!((counts.refused, counts.direct), (1, 4));
        device.state().sent = 1;
        driver.send(&[4; 60]).unwrap();
        assert_eq!(device.state().taken, [0, 1], "{write:?}");
    }
}

/// After a panic in the device's code, the driver calls that code no more, and all threads learn it.
#[test]
fn a_panic_inside_of_the_device_is_its_failure() {
    for write in [Protection::Optimistic, Protection::Mutex] {
        let (driver, device) = Recorder::configured(4, Config { write, ..Config::default() });
        driver.send(&[0; 60]).unwrap();
        device.state().panics = true;
        let send = std::panic::AssertUnwindSafe(|| driver.send(&[1; 60]));
        assert!(std::panic::catch_unwind(send).is_err());
        device.state().panics = false;
        std::thread::scope(|scope| {
            let other = scope.spawn(|| driver.send(&[2; 60]));
            assert_eq!(other.join().unwrap(), Err(SendError::Failed), "{write:?}");
        });
        let failure = driver.failure().expect("the panic is a failure");
        assert!(format!("{failure:?}").contains("panicked"), "{failure:?}");
        driver.reset();
        assert_eq!(driver.send(&[3; 60]), Err(SendError::Failed), "{write:?}");
        assert_eq!(device.state().taken, [0]);
        assert_eq!(driver.receive(9, |_, _| ()), 0);
    }
}
