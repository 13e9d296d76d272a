//! ATM cells: the receiver never panics, keeps its limits, and counts each cell and each PDU once; a
//! delivered PDU has the length that its cells allow.
//!
//! The input is a stream of cells. Each follows a byte of flags and the time since the last cell in
//! hundredths of a second. By the flags, the target corrects the cell's checks, so that more than one cell in
//! 2^18 passes them, puts it into an open circuit, or closes and opens a circuit.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use towpath_pdu::atm::{
    Accepted, Adaptation, CELL_BYTES, CellHeader, Circuit, Limits, Reassembler, Segmenter,
};

/// Corrects the HEC.
const HEC: u8 = 1;
/// Corrects the CRC-10.
const CRC_10: u8 = 2;
/// Puts the cell into the circuit of AAL5; else, with the HEC corrected, into that of AAL3/4.
const IS_AAL5: u8 = 4;
/// Closes the cell's circuit, and opens it.
const REOPENS: u8 = 8;
/// Sends a whole good PDU before the cell, of as many bytes as the time says.
const PDU: u8 = 16;
/// Sends the first 400 cells of a long PDU before the cell, in the same circuit.
const LONG: u8 = 32;
/// Puts the cell into the second circuit of its layer.
const SECOND: u8 = 64;

const AAL5: Circuit = Circuit { vpi: 0, vci: 32 };
const AAL34: Circuit = Circuit { vpi: 7, vci: 1000 };
const SECONDS: [Circuit; 2] = [Circuit { vpi: 0, vci: 33 }, Circuit { vpi: 7, vci: 1001 }];

fn limits() -> Limits {
    Limits {
        cells: 1,
        partials: 6,
        partials_of_circuit: 4,
        circuits: 4,
        time: Duration::from_millis(500),
        pdu_bytes: 65_535,
    }
}

/// Writes the CRC-10 of a payload, by the definition.
fn mend(payload: &mut [u8]) {
    let sum = (0..374).fold(0_u16, |value, bit| {
        let is_set = payload[bit / 8] >> (7 - bit % 8) & 1 != 0;
        let out = (value >> 9 & 1 != 0) != is_set;
        value << 1 & 0x3ff ^ if out { 0x233 } else { 0 }
    });
    payload[46] = payload[46] & 0xfc | (sum >> 8) as u8;
    payload[47] = sum as u8;
}

fn open(reassembler: &mut Reassembler, circuit: Circuit) {
    let adaptation = if circuit.vpi == 0 { Adaptation::Aal5 } else { Adaptation::Aal34 };
    reassembler.open(circuit, adaptation).unwrap();
}

fuzz_target!(|bytes: &[u8]| {
    let mut reassembler = Reassembler::new(limits());
    open(&mut reassembler, AAL5);
    open(&mut reassembler, AAL34);
    SECONDS.iter().for_each(|circuit| open(&mut reassembler, *circuit));
    let mut now = Instant::now();
    for chunk in bytes.chunks_exact(2 + CELL_BYTES) {
        let [flags, wait, cell @ ..] = chunk else { continue };
        let mut cell: [u8; CELL_BYTES] = cell.try_into().unwrap();
        now += Duration::from_millis(u64::from(*wait) * 10);
        let circuit = match (flags & IS_AAL5 != 0, flags & SECOND != 0) {
            (true, false) => AAL5,
            (false, false) => AAL34,
            (true, true) => SECONDS[0],
            (false, true) => SECONDS[1],
        };
        if flags & REOPENS != 0 {
            assert!(reassembler.close(circuit));
            open(&mut reassembler, circuit);
        }
        let segmenter = |len| match circuit.vpi {
            0 => Segmenter::aal5(circuit, len).unwrap(),
            _ => Segmenter::aal34(circuit, u16::from(*wait), *flags, len).unwrap(),
        };
        if flags & LONG != 0 {
            for cell in segmenter(60_000).cells(&vec![*flags; 60_000]).take(400) {
                let _ = reassembler.accept(now, &cell);
            }
        }
        if flags & PDU != 0 {
            let len = usize::from(*wait) + 1;
            for cell in segmenter(len).cells(&vec![*flags; len]) {
                // A PDU before it may have left cells, which AAL5 cannot tell from its own.
                if let Ok(Accepted::Complete(pdu)) = reassembler.accept(now, &cell) {
                    assert_eq!(pdu.to_vec(), vec![*flags; len]);
                }
            }
        }
        if flags & CRC_10 != 0 {
            mend(&mut cell[5..]);
        }
        if flags & HEC != 0 {
            let payload_type = cell[3] >> 1 & 7;
            CellHeader { circuit, payload_type, low_priority: false }.write(&mut cell);
        }
        if let Ok(Accepted::Complete(pdu)) = reassembler.accept(now, &cell) {
            let chunks: usize = pdu.chunks().map(<[u8]>::len).sum();
            assert_eq!(chunks, pdu.len());
            assert!((1..=65_535).contains(&pdu.len()));
            assert_eq!(pdu.to_vec().len(), pdu.len());
        }
        let counters = reassembler.counters();
        assert!(counters.adds_up(reassembler.waiting()), "{counters:?}");
        assert!(reassembler.waiting() <= limits().partials);
        // The limit of cells is raised to what the longest PDU needs.
        assert!(reassembler.held_cells() <= 1490);
        assert!(reassembler.deadline().is_none_or(|deadline| deadline > now));
    }
    reassembler.expire(now + limits().time);
    assert_eq!((reassembler.waiting(), reassembler.held_cells()), (0, 0));
});
