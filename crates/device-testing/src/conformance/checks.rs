//! The checks, one function each.

use std::time::Instant;

use towpath_device::{ETHERNET_HEADER_BYTES, Kick, MAX_PARTS, Meta};

use super::bad_parts::bad_parts;
use super::far::FarEnd;
use super::filters::filters;
use super::frames::{assert_frames, cuts, frame};
use super::near::{
    FAR_MAC, NEAR_MAC, Near, Outcomes, Outgoing, PATIENCE, PLACE_BYTES, PLACES, drain,
};
use super::offloads::metadata;
use super::tags_and_hashes::tags_and_hashes;
use super::wake_ups::wake_ups;
use crate::random::Random;

type Check = fn(&mut Near, &mut dyn FarEnd, u64);

pub(super) const ALL: [(&str, Check); 12] = [
    ("order both ways", order),
    ("one kick for several calls", kicks),
    ("budgets", budgets),
    ("a full ring", full_ring),
    ("chains of parts", chains),
    ("large packets, partial checksums and tags to insert", metadata),
    ("tags and hashes of received packets", tags_and_hashes),
    ("filters", filters),
    ("bad parts and buffers", bad_parts),
    ("reset in the middle", reset),
    ("a random mix", random_mix),
    ("no wake-up is lost", wake_ups),
];

/// Returns a length between the shortest frame and the longest one that the MTU and a slot allow.
fn size(near: &Near, random: &mut Random) -> usize {
    let longest = (near.info.mtu + ETHERNET_HEADER_BYTES).min(PLACE_BYTES as usize);
    60 + random.below((longest - 60 + 1) as u64) as usize
}

fn order(near: &mut Near, far: &mut dyn FarEnd, seed: u64) {
    const COUNT: usize = 600;
    let mut random = Random::new(seed);
    let mut make = |source| -> Vec<Vec<u8>> {
        (0..COUNT as u32)
            .map(|number| {
                let len = size(near, &mut random);
                frame(source, number, len)
            })
            .collect()
    };
    let (outward, inward) = (make(NEAR_MAC), make(FAR_MAC));
    let (mut sent, mut fed, mut arrived) = (0, 0, Vec::new());
    let received = near.run_until("600 frames each way", |near, received| {
        let batch = 1 + random.below(32) as usize;
        let packets: Vec<Outgoing<'_>> =
            outward[sent..].iter().take(batch).map(|frame| Outgoing::whole(frame)).collect();
        sent += near.offer(&packets);
        drain(far, &mut arrived);
        for _ in 0..random.below(32) {
            if fed < COUNT && far.send(&inward[fed], Meta::FULL) {
                fed += 1;
            }
        }
        received.len() >= COUNT && arrived.len() >= COUNT && near.outstanding() == 0
    });
    assert_frames(near.what(), &arrived, &outward);
    assert_frames(near.what(), &received, &inward);
    let counters = near.queue.counters();
    assert!(counters.tx_packets >= COUNT as u64 && counters.rx_packets >= COUNT as u64);
    assert!(counters.tx_bytes >= outward.iter().map(Vec::len).sum::<usize>() as u64);
    assert!(counters.rx_bytes >= inward.iter().map(Vec::len).sum::<usize>() as u64);
}

/// One kick is for all packets that the device took before it, and a kick without new entries does
/// nothing.
fn kicks(near: &mut Near, far: &mut dyn FarEnd, _: u64) {
    let (mut frames, mut arrived) = (Vec::new(), Vec::new());
    for round in 0..20 {
        near.kick(Kick::Tx);
        near.kick(Kick::Rx);
        for call in 0..1 + round % 4 {
            let frame = frame(NEAR_MAC, round * 10 + call, 100);
            // A device with a small ring has no room for all of them.
            if near.place(&[Outgoing::whole(&frame)]) == 1 {
                frames.push(frame);
            }
        }
        near.kick(Kick::Tx);
        near.run_until("all packets before the kick", |near, _| {
            drain(far, &mut arrived);
            arrived.len() >= frames.len() && near.outstanding() == 0
        });
    }
    assert!(frames.len() >= 20, "{}: one packet of each round has room", near.what());
    assert_frames(near.what(), &arrived, &frames);
}

fn budgets(near: &mut Near, far: &mut dyn FarEnd, _: u64) {
    let frames: Vec<Vec<u8>> = (0..20).map(|number| frame(FAR_MAC, number, 100)).collect();
    let mut fed = 0;
    let mut received = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while received.len() < frames.len() {
        while fed < frames.len() && far.send(&frames[fed], Meta::FULL) {
            fed += 1;
        }
        // A far end that is a device itself works only when the suite calls it.
        drain(far, &mut Vec::new());
        let (_, count) = near.receive_up_to(0);
        assert_eq!(count, 0, "{}: a budget of nothing", near.what());
        let (mut some, count) = near.receive_up_to(3);
        // The count includes frames of other senders.
        assert!(some.len() <= count);
        received.append(&mut some);
        near.provide();
        assert!(Instant::now() < deadline, "{}: 20 frames did not come", near.what());
    }
    assert_frames(near.what(), &received, &frames);

    let frames: Vec<Vec<u8>> = (0..20).map(|number| frame(NEAR_MAC, number, 100)).collect();
    let (mut sent, mut arrived) = (0, Vec::new());
    while sent < frames.len() || near.outstanding() > 0 || arrived.len() < frames.len() {
        let packets: Vec<Outgoing<'_>> =
            frames[sent..].iter().map(|frame| Outgoing::whole(frame)).collect();
        sent += near.offer(&packets);
        near.receive();
        near.take_tokens(0);
        near.take_tokens(3);
        drain(far, &mut arrived);
        assert!(Instant::now() < deadline, "{}: 20 tokens did not come", near.what());
    }
    assert_frames(near.what(), &arrived, &frames);
}

fn full_ring(near: &mut Near, far: &mut dyn FarEnd, seed: u64) {
    let mut random = Random::new(seed);
    let (mut frames, mut parts, mut sent) = (Vec::new(), Vec::new(), 0);
    // The far end does not read and the suite fetches no token, so the device must refuse packets
    // at some time, from the back. It takes a chain of parts as a whole or not at all.
    while sent == frames.len() {
        let batch = 64.min(PLACES as usize - sent);
        assert!(batch > 0, "{}: took {sent} packets and is not full", near.what());
        for _ in 0..batch {
            let len = 60 + random.below(200) as usize;
            frames.push(frame(NEAR_MAC, frames.len() as u32, len));
            let most = if frames.len().is_multiple_of(4) { MAX_PARTS } else { 3 };
            let most = most.min(near.info.limits.tx_packet_parts);
            let count = 1 + random.below(most as u64) as usize;
            parts.push(cuts(&mut random, len, count));
        }
        sent += near.offer(&chained(&frames[sent..], &parts[sent..]));
    }
    let mut arrived = Vec::new();
    near.run_until("the rest to be taken", |near, _| {
        sent += near.offer(&chained(&frames[sent..], &parts[sent..]));
        drain(far, &mut arrived);
        arrived.len() >= frames.len() && near.outstanding() == 0
    });
    assert_frames(near.what(), &arrived, &frames);
}

/// Returns frames as chains of parts.
fn chained<'a>(frames: &'a [Vec<u8>], cuts: &'a [Vec<usize>]) -> Vec<Outgoing<'a>> {
    let both = frames.iter().zip(cuts);
    both.map(|(bytes, cuts)| Outgoing { cuts, ..Outgoing::whole(bytes) }).collect()
}

fn chains(near: &mut Near, far: &mut dyn FarEnd, seed: u64) {
    let mut random = Random::new(seed);
    let mut expected = Vec::new();
    let mut arrived = Vec::new();
    for parts in 1..=near.info.limits.tx_packet_parts {
        let frame = frame(NEAR_MAC, parts as u32, size(near, &mut random).max(100));
        let cuts = cuts(&mut random, frame.len(), parts);
        let packet = Outgoing { cuts: &cuts, ..Outgoing::whole(&frame) };
        let mut taken = 0;
        near.run_until("room for a chain", |near, _| {
            drain(far, &mut arrived);
            if taken == 0 {
                taken = near.offer(std::slice::from_ref(&packet));
            }
            taken > 0
        });
        expected.push(frame);
    }
    near.run_until("the chains", |near, _| {
        drain(far, &mut arrived);
        arrived.len() >= expected.len() && near.outstanding() == 0
    });
    assert_frames(near.what(), &arrived, &expected);

    // A short frame: only zeros may follow it.
    let short = frame(NEAR_MAC, 1, 20);
    near.run_until("room", |near, _| near.offer(&[Outgoing::whole(&short)]) == 1);
    let arrived = near.collect(far, 1);
    let (got, _) = &arrived[0];
    assert!(got.starts_with(&short), "{}: a short frame", near.what());
    assert!(got[20..].iter().all(|byte| *byte == 0), "{}: padding not zero", near.what());
}

fn total(near: &Near) -> u64 {
    let Outcomes { sent, dropped, returned } = near.outcomes;
    sent + dropped + returned
}

fn reset(near: &mut Near, far: &mut dyn FarEnd, _: u64) {
    for round in 0..10u32 {
        let frames: Vec<Vec<u8>> =
            (0..20).map(|number| frame(NEAR_MAC, round * 100 + number, 200)).collect();
        let packets: Vec<Outgoing<'_>> =
            frames.iter().map(|frame| Outgoing::whole(frame)).collect();
        near.offer(&packets);
        let offered = total(near) + near.outstanding() as u64;
        for number in 0..5 {
            far.send(&frame(FAR_MAC, round * 100 + number, 200), Meta::FULL);
        }
        if round % 2 == 0 {
            near.receive_up_to(2);
            near.take_tokens(3);
        }
        near.reset();
        assert_eq!(near.queue.counters().resets, u64::from(round) + 1, "{}", near.what());
        near.provide();

        // Afterwards the device works in both directions. Packets in flight may arrive before, or
        // be lost.
        let marker = frame(NEAR_MAC, 5000 + round, 300);
        assert_eq!(total(near), offered, "{}: one completion per packet", near.what());
        let mut arrived = Vec::new();
        let mut sent = false;
        near.run_until("a frame after a reset", |near, _| {
            drain(far, &mut arrived);
            sent = sent || near.offer(&[Outgoing::whole(&marker)]) == 1;
            arrived.last().is_some_and(|(last, _)| *last == marker)
        });
        let marker = frame(FAR_MAC, 5000 + round, 300);
        let mut sent = false;
        near.run_until("a frame received after a reset", |_, received| {
            sent = sent || far.send(&marker, Meta::FULL);
            received.last().is_some_and(|(last, _)| *last == marker)
        });
    }
}

fn random_mix(near: &mut Near, far: &mut dyn FarEnd, seed: u64) {
    let mut random = Random::new(seed ^ 0x6d69_7865_6421);
    let (mut outward, mut inward) = (Vec::new(), Vec::new());
    let (mut arrived, mut received) = (Vec::new(), Vec::new());
    for _ in 0..4000 {
        match random.below(8) {
            0 | 1 => {
                let batch: Vec<Vec<u8>> = (0..1 + random.below(16))
                    .map(|at| {
                        let len = size(near, &mut random);
                        frame(NEAR_MAC, (outward.len() as u64 + at) as u32, len)
                    })
                    .collect();
                let cuts: Vec<Vec<usize>> = batch
                    .iter()
                    .map(|frame| {
                        let most = near.info.limits.tx_packet_parts.min(6);
                        let parts = 1 + random.below(most as u64) as usize;
                        cuts(&mut random, frame.len(), parts)
                    })
                    .collect();
                let taken = near.offer(&chained(&batch, &cuts));
                outward.extend(batch.into_iter().take(taken));
            }
            2 => {
                let len = size(near, &mut random);
                let frame = frame(FAR_MAC, inward.len() as u32, len);
                // A wire may lose frames that the receiver does not take in time, so the suite
                // limits their number.
                if inward.len() - received.len() < 32 && far.send(&frame, Meta::FULL) {
                    inward.push(frame);
                }
            }
            3 => {
                let budget = random.below(40) as usize;
                received.append(&mut near.receive_up_to(budget).0);
            }
            4 => near.provide(),
            5 => {
                near.take_tokens(random.below(40) as usize);
            }
            6 => drain(far, &mut arrived),
            _ => {
                // Armed or not, the device continues to work.
                near.queue.arm(random.below(2) == 0).expect("arm");
            }
        }
    }
    let late = near.run_until("packets in flight", |near, late| {
        drain(far, &mut arrived);
        near.outstanding() == 0
            && arrived.len() >= outward.len()
            && received.len() + late.len() >= inward.len()
    });
    received.extend(late);
    assert_frames(near.what(), &arrived, &outward);
    assert_frames(near.what(), &received, &inward);
}
