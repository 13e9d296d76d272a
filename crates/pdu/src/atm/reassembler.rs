//! Reassembly of PDUs from cells that may be lost, misinserted, damaged, interleaved, or an attack.

mod dropped;
mod partial;

use std::collections::BTreeMap;
use std::time::Instant;

use super::aal34::{END_BYTES, Fields, PIECE_BYTES, Unusable};
use super::cell::{Cell, CellHeader};
use super::cell_pool::{CellPool, Chain};
use super::circuit::{Adaptation, Circuit};
use super::counters::Counters;
use super::limits::Limits;
use super::pdu::{Pdu, PduFields};
use super::segmenter::{AAL5_TRAILER_BYTES, aal5_cells};
use super::sizes::{HEADER_BYTES, PAYLOAD_BYTES};
use crate::aged::Aged;
use partial::{Partial, check_end, check_piece};

pub use dropped::Dropped;

/// The outcome of a cell that was not dropped.
#[derive(Debug)]
pub enum Accepted<'a> {
    /// Its PDU is still incomplete.
    Waits,
    /// It completed its PDU.
    Complete(Pdu<'a>),
}

/// The reason why a circuit cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The VCI is reserved.
    #[error("VCI {} is reserved; the lowest is 32", .0.vci)]
    Reserved(Circuit),
    /// The circuit is open already.
    #[error("VPI {}, VCI {} is open already; close it first", .0.vpi, .0.vci)]
    AlreadyOpen(Circuit),
    /// As many circuits are open as the limit allows.
    #[error("{0} circuits are open, as many as Limits::circuits allows; close one")]
    TooMany(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    circuit: Circuit,
    mid: u16,
}

#[derive(Debug)]
struct OpenCircuit {
    adaptation: Adaptation,
    /// AAL5: since when the receiver skips cells, up to the next last one or until the time of a PDU
    /// is over.
    skips: Option<Instant>,
    /// Incomplete PDUs.
    partials: usize,
    /// Their cells.
    cells: usize,
}

/// Reassembles PDUs. It does no input or output, and has no clock: the time is an argument.
///
/// No cell can make it panic or take more memory than its [`Limits`]. The time for a cell does not
/// depend on earlier cells, except for a cell that begins a PDU or finds no memory: then the
/// receiver may scan all incomplete PDUs and circuits. Any cell may be the one at which PDUs expire.
#[derive(Debug)]
pub struct Reassembler {
    limits: Limits,
    circuits: BTreeMap<Circuit, OpenCircuit>,
    partials: Aged<Key, Partial>,
    pool: CellPool,
    /// The payloads of the PDU delivered last, until the next cell.
    delivered: Chain,
    counters: Counters,
}

impl Reassembler {
    /// Creates a receiver without circuits. Limits out of range become the nearest value in range.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Limits, Reassembler};
    /// use std::time::Duration;
    ///
    /// let limits = Limits { cells: 20_000, time: Duration::from_millis(500), ..Limits::default() };
    /// let reassembler = Reassembler::new(limits);
    /// assert_eq!(reassembler.limits().cells, 20_000);
    /// ```
    #[must_use]
    pub fn new(limits: Limits) -> Reassembler {
        let limits = limits.in_range();
        Reassembler {
            limits,
            circuits: BTreeMap::new(),
            partials: Aged::new(limits.partials),
            pool: CellPool::new(limits.cells),
            delivered: Chain::default(),
            counters: Counters::default(),
        }
    }

    /// Opens a circuit.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Adaptation, Circuit, Limits, OpenError, Reassembler};
    /// let mut reassembler = Reassembler::new(Limits::default());
    /// let circuit = Circuit { vpi: 0, vci: 100 };
    /// reassembler.open(circuit, Adaptation::Aal34).unwrap();
    /// let again = reassembler.open(circuit, Adaptation::Aal5);
    /// assert_eq!(again, Err(OpenError::AlreadyOpen(circuit)));
    /// ```
    ///
    /// # Errors
    /// The VCI is reserved, the circuit is open, or too many are.
    pub fn open(&mut self, circuit: Circuit, adaptation: Adaptation) -> Result<(), OpenError> {
        if circuit.is_reserved() {
            return Err(OpenError::Reserved(circuit));
        }
        if self.circuits.contains_key(&circuit) {
            return Err(OpenError::AlreadyOpen(circuit));
        }
        if self.circuits.len() >= self.limits.circuits {
            return Err(OpenError::TooMany(self.circuits.len()));
        }
        let opened = OpenCircuit { adaptation, skips: None, partials: 0, cells: 0 };
        self.circuits.insert(circuit, opened);
        Ok(())
    }

    /// Closes a circuit, and gives up its incomplete PDUs. Returns `true` if the
    /// circuit was open.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// assert!(reassembler.close(circuit));
    /// // It is not open any more.
    /// assert!(!reassembler.close(circuit));
    /// ```
    pub fn close(&mut self, circuit: Circuit) -> bool {
        while let (_, Some(place)) = self.partials.matching(|key| key.circuit == circuit) {
            self.counters.closed += 1;
            self.give_up(place);
        }
        self.circuits.remove(&circuit).is_some()
    }

    /// Takes a cell. A time before that of an earlier call does no harm.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// use std::time::Instant;
    /// use towpath_pdu::atm::Accepted;
    ///
    /// for cell in Segmenter::aal5(circuit, 100).unwrap().cells(&[7; 100]) {
    ///     if let Accepted::Complete(pdu) = reassembler.accept(Instant::now(), &cell).unwrap() {
    ///         assert_eq!(pdu.to_vec(), [7; 100]);
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Dropped`] gives the reason for a dropped cell.
    pub fn accept(&mut self, now: Instant, cell: &Cell) -> Result<Accepted<'_>, Dropped> {
        self.expire(now);
        self.counters.cells += 1;
        let (header, adaptation) = self.examine(cell).map_err(|reason| self.count(reason))?;
        let payload = <&[u8; PAYLOAD_BYTES]>::try_from(&cell[HEADER_BYTES..])
            .expect("the payload has 48 bytes");
        let described = match adaptation {
            Adaptation::Aal5 => self.accept_aal5(now, header, payload),
            Adaptation::Aal34 => self.accept_aal34(now, header, payload),
        }?;
        Ok(match described {
            Some(described) => Accepted::Complete(Pdu::new(described, &self.delivered, &self.pool)),
            None => Accepted::Waits,
        })
    }

    /// Parses the header of a cell, and finds its circuit.
    fn examine(&self, cell: &Cell) -> Result<(CellHeader, Adaptation), Dropped> {
        let header = CellHeader::parse(cell).map_err(|_| Dropped::Hec)?;
        if header.circuit.is_idle() {
            return Err(Dropped::Idle);
        }
        let opened = self.circuits.get(&header.circuit).ok_or(Dropped::NoCircuit)?;
        if header.is_management() {
            return Err(Dropped::Management);
        }
        Ok((header, opened.adaptation))
    }

    fn accept_aal5(
        &mut self,
        now: Instant,
        header: CellHeader,
        payload: &[u8; PAYLOAD_BYTES],
    ) -> Result<Option<PduFields>, Dropped> {
        let circuit = header.circuit;
        if let Some(since) = self.opened(circuit).skips {
            let is_over = now.saturating_duration_since(since) >= self.limits.time;
            if is_over || header.is_last() {
                self.opened(circuit).skips = None;
            }
            if !is_over {
                return Err(self.count(Dropped::Skipped));
            }
        }
        self.counters.of_pdus += 1;
        let key = Key { circuit, mid: 0 };
        let place = match self.partials.find(&key) {
            Some(place) => place,
            None => self.start(now, key),
        };
        let room = if self.partials.get(place).payloads.cells() < aal5_cells(self.limits.pdu_bytes)
        {
            self.store(now, place, payload)
        } else {
            Err(self.end(place, Dropped::TooLong))
        };
        if let Err(reason) = room {
            self.opened(circuit).skips = (!header.is_last()).then_some(now);
            return Err(reason);
        }
        let partial = self.partials.get(place);
        if !header.is_last() {
            partial.crc.update(payload);
            return Ok(None);
        }
        partial.crc.update(&payload[..PAYLOAD_BYTES - 4]);
        let [user_to_user, cpi, high, low, crc @ ..] = *payload
            .last_chunk::<AAL5_TRAILER_BYTES>()
            .expect("a payload is longer than the trailer");
        let len = usize::from(u16::from_be_bytes([high, low]));
        let fault = if partial.crc.value() != u32::from_be_bytes(crc) {
            Some(Dropped::Damaged)
        } else if len == 0 {
            Some(Dropped::Aborted)
        } else if cpi != 0 || aal5_cells(len) != partial.payloads.cells() {
            Some(Dropped::Malformed)
        } else {
            (len > self.limits.pdu_bytes).then_some(Dropped::TooLong)
        };
        if let Some(reason) = fault {
            return Err(self.end(place, reason));
        }
        self.deliver(place);
        Ok(Some(PduFields {
            circuit,
            mid: 0,
            user_to_user,
            is_congested: header.is_congested(),
            len,
            piece_bytes: PAYLOAD_BYTES,
            header_bytes: 0,
        }))
    }

    fn accept_aal34(
        &mut self,
        now: Instant,
        header: CellHeader,
        payload: &[u8; PAYLOAD_BYTES],
    ) -> Result<Option<PduFields>, Dropped> {
        let fields = Fields::parse(payload).map_err(|reason| {
            self.count(match reason {
                Unusable::Crc => Dropped::CellCrc,
                Unusable::Length => Dropped::CellLength,
            })
        })?;
        let key = Key { circuit: header.circuit, mid: fields.mid };
        let found = self.partials.find(&key);
        let place = if fields.segment_type.begins() {
            if let Some(before) = found {
                self.counters.unfinished += 1;
                self.give_up(before);
            }
            self.start(now, key)
        } else {
            found.ok_or_else(|| self.count(Dropped::NoBeginning))?
        };
        self.counters.of_pdus += 1;
        let piece = &payload[2..2 + PIECE_BYTES.min(fields.length.into())];
        if let Err(reason) = check_piece(self.partials.get(place), &fields, piece, self.limits) {
            return Err(self.end(place, reason));
        }
        self.store(now, place, piece)?;
        if !fields.segment_type.ends() {
            return Ok(None);
        }
        let len = match check_end(self.partials.get(place), piece) {
            Ok(len) => len,
            Err(reason) => return Err(self.end(place, reason)),
        };
        self.deliver(place);
        Ok(Some(PduFields {
            circuit: key.circuit,
            mid: key.mid,
            user_to_user: 0,
            is_congested: header.is_congested(),
            len,
            piece_bytes: PIECE_BYTES,
            header_bytes: END_BYTES,
        }))
    }

    /// Begins a PDU. Evicts the oldest one if there are too many.
    fn start(&mut self, now: Instant, key: Key) -> usize {
        if self.opened(key.circuit).partials >= self.limits.partials_of_circuit
            && let (_, Some(oldest)) = self.partials.matching(|one| one.circuit == key.circuit)
        {
            self.counters.gave_way_of_circuit += 1;
            self.give_up(oldest);
        }
        if self.partials.len() >= self.limits.partials
            && let Some((oldest, _)) = self.partials.oldest()
        {
            self.counters.gave_way += 1;
            self.evict(now, oldest);
        }
        self.counters.started += 1;
        self.opened(key.circuit).partials += 1;
        let place = self.partials.insert(key, now);
        *self.partials.get(place) = Partial::default();
        place
    }

    /// Stores a piece of a PDU. If all memory is in use, evicts the oldest PDU of the circuit with
    /// the most cells, which can be this one.
    fn store(&mut self, now: Instant, place: usize, piece: &[u8]) -> Result<(), Dropped> {
        if self.pool.free_cells() == 0 {
            let most = self.circuits.iter().max_by_key(|(_, opened)| opened.cells);
            let circuit = most.map(|(circuit, _)| *circuit);
            let (_, victim) = self.partials.matching(|key| Some(key.circuit) == circuit);
            // Some circuit holds cells, and so has a PDU.
            let victim = victim.unwrap_or(place);
            if victim == place {
                return Err(self.end(place, Dropped::NoRoom));
            }
            self.counters.gave_way_for_cells += 1;
            self.evict(now, victim);
        }
        let circuit = self.partials.key(place).circuit;
        self.pool.push(&mut self.partials.get(place).payloads, piece);
        self.opened(circuit).cells += 1;
        Ok(())
    }

    /// Gives up a PDU, and counts the reason.
    fn end(&mut self, place: usize, reason: Dropped) -> Dropped {
        self.give_up(place);
        self.count(reason)
    }

    /// Gives up a PDU for another one. The rest of it would only take memory again.
    fn evict(&mut self, now: Instant, place: usize) {
        let circuit = self.partials.key(place).circuit;
        self.give_up(place);
        let opened = self.opened(circuit);
        opened.skips = (opened.adaptation == Adaptation::Aal5).then_some(now);
    }

    fn give_up(&mut self, place: usize) {
        let mut payloads = self.remove(place);
        self.pool.release(&mut payloads);
    }

    /// Removes a complete PDU, whose payloads stay until the next cell.
    fn deliver(&mut self, place: usize) {
        self.delivered = self.remove(place);
        self.counters.complete += 1;
    }

    fn remove(&mut self, place: usize) -> Chain {
        let circuit = self.partials.key(place).circuit;
        let payloads = std::mem::take(&mut self.partials.remove(place).payloads);
        let opened = self.opened(circuit);
        opened.partials -= 1;
        opened.cells -= payloads.cells();
        payloads
    }

    fn opened(&mut self, circuit: Circuit) -> &mut OpenCircuit {
        self.circuits.get_mut(&circuit).expect("a circuit with a PDU is open")
    }

    fn count(&mut self, reason: Dropped) -> Dropped {
        *reason.counter(&mut self.counters) += 1;
        reason
    }

    /// Gives up PDUs whose time has expired. Cells of such a PDU that still come begin another one,
    /// as far as the receiver can tell. It also reclaims the memory of the last delivered PDU.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// use std::time::Instant;
    ///
    /// let start = Instant::now();
    /// let first = Segmenter::aal5(circuit, 50).unwrap().cells(&[7; 50]).next().unwrap();
    /// reassembler.accept(start, &first).unwrap();
    /// // The second cell does not come within the time of a PDU.
    /// reassembler.expire(start + reassembler.limits().time);
    /// assert_eq!((reassembler.waiting(), reassembler.counters().expired), (0, 1));
    /// ```
    pub fn expire(&mut self, now: Instant) {
        self.pool.release(&mut self.delivered);
        while let Some(oldest) = self.partials.expired(now, self.limits.time) {
            self.counters.expired += 1;
            self.give_up(oldest);
        }
    }

    /// Returns the time at which the oldest incomplete PDU expires.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// use std::time::Instant;
    ///
    /// let start = Instant::now();
    /// assert_eq!(reassembler.deadline(), None);
    /// let first = Segmenter::aal5(circuit, 50).unwrap().cells(&[7; 50]).next().unwrap();
    /// reassembler.accept(start, &first).unwrap();
    /// // The program waits for cells until then, and calls `expire`.
    /// assert_eq!(reassembler.deadline(), Some(start + reassembler.limits().time));
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.partials.deadline(self.limits.time)
    }

    /// Returns the number of incomplete PDUs.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # use std::time::Instant;
    /// let mut cells = Segmenter::aal5(circuit, 50).unwrap().cells(&[7; 50]);
    /// reassembler.accept(Instant::now(), &cells.next().unwrap()).unwrap();
    /// assert_eq!(reassembler.waiting(), 1);
    /// reassembler.accept(Instant::now(), &cells.next().unwrap()).unwrap();
    /// assert_eq!(reassembler.waiting(), 0);
    /// ```
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.partials.len()
    }

    /// Returns the number of cells of incomplete PDUs, and of the PDU delivered last.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # use std::time::Instant;
    /// let first = Segmenter::aal5(circuit, 50).unwrap().cells(&[7; 50]).next().unwrap();
    /// reassembler.accept(Instant::now(), &first).unwrap();
    /// assert_eq!(reassembler.held_cells(), 1);
    /// println!("{} cells are free", reassembler.limits().cells - reassembler.held_cells());
    /// ```
    #[must_use]
    pub fn held_cells(&self) -> usize {
        self.limits.cells - self.pool.free_cells()
    }

    /// Returns the limits in force.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Limits, Reassembler};
    /// // Too few cells for the longest PDU: the nearest value in range holds.
    /// let reassembler = Reassembler::new(Limits { cells: 1, ..Limits::default() });
    /// assert_eq!(reassembler.limits().cells, 1490);
    /// ```
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the counters.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # use std::time::Instant;
    /// let mut cell = Segmenter::aal5(circuit, 5).unwrap().cells(b"hello").next().unwrap();
    /// // The payload is damaged on the way.
    /// cell[5] ^= 1;
    /// assert!(reassembler.accept(Instant::now(), &cell).is_err());
    /// assert_eq!(reassembler.counters().damaged, 1);
    /// ```
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }
}
