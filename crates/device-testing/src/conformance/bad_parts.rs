//! The check of packets and buffers that the device must refuse.

use towpath_device::{Meta, Part, Space, SpaceId};
use towpath_memory::Region;

use super::far::FarEnd;
use super::frames::{assert_frames, frame};
use super::near::{NEAR_MAC, Near, Outcomes, drain};

pub(super) fn bad_parts(near: &mut Near, far: &mut dyn FarEnd, _: u64) {
    let nowhere = SpaceId(9999);
    let end = near.memory_end();
    let good = near.part(0, 60);
    let at = |offset, len| Part { space: near.memory, offset, len };
    let too_many = vec![near.part(0, 2); near.info.limits.tx_packet_parts + 1];
    let too_long = vec![near.part(0, 65_000); 3];
    let cases: [(&str, Vec<Part>); 9] = [
        ("no part", vec![]),
        ("no bytes", vec![near.part(0, 0)]),
        ("too many parts", too_many),
        ("too long", too_long),
        ("an unknown space", vec![Part { space: nowhere, offset: 0, len: 60 }]),
        ("across the end", vec![at(end - 59, 60)]),
        ("after the end", vec![at(u32::MAX - 10, 60)]),
        ("a length that overflows", vec![good, at(0, u32::MAX)]),
        ("a good part before", vec![good, at(end, 1)]),
    ];
    for ((case, parts), at) in cases.into_iter().zip(0..) {
        let number = parts.len() as u32;
        let frame = frame(NEAR_MAC, number, 60);
        let place = near.part(0, 60);
        near.spaces.copy_in(place.space, place.offset, &frame).expect("inside");
        let dropped = near.queue.counters().tx_dropped;
        let good = [place];
        let what = format!("{}, {case}", near.what());
        near.offer_parts(&[(&good, Meta::FULL), (&parts, Meta::FULL), (&good, Meta::FULL)]);
        let mut arrived = Vec::new();
        near.run_until(case, |near, _| {
            drain(far, &mut arrived);
            arrived.len() >= 2 && near.outstanding() == 0
        });
        assert_frames(&what, &arrived, &[frame.clone(), frame]);
        assert_eq!(near.queue.counters().tx_dropped, dropped + 1, "{what}: not counted");
        let counts = Outcomes { sent: 2 * at + 2, dropped: at + 1, returned: 0 };
        assert_eq!(near.outcomes, counts, "{what}: outcomes");
    }

    let taken = near.queue.rx_fill(&near.spaces, nowhere, &[0]);
    assert_eq!(taken, 0, "{}: a buffer in an unknown space", near.what());
    let mut frames = Vec::new();
    near.reset();
    for outside in [u32::MAX, near.memory_end().max(u32::MAX / 2)] {
        let taken = near.queue.rx_fill(&near.spaces, near.pool, &[outside]);
        assert_eq!(taken, 0, "{}: a buffer outside of its space", near.what());
        near.queue.reset(&mut frames).expect("reset");
        assert!(frames.is_empty());
    }
    if near.registers {
        let memory = Space::writable(Region::private(8192).expect("memory"));
        let unregistered = near.spaces.add(memory);
        let dropped = near.queue.counters().tx_dropped;
        let parts = [Part { space: unregistered, offset: 0, len: 60 }];
        near.offer_parts(&[(&parts, Meta::FULL)]);
        near.run_until("a packet that is not registered", |near, _| near.outstanding() == 0);
        assert_eq!(near.queue.counters().tx_dropped, dropped + 1, "{}", near.what());
    }
    let half = near.info.limits.rx_alignment as u32 / 2;
    if half > 0 {
        let taken = near.queue.rx_fill(&near.spaces, near.pool, &[half]);
        assert_eq!(taken, 0, "{}: a buffer that is not aligned", near.what());
    }
    near.provide();
}
