//! The memory of incomplete PDUs: payloads of cells, in a chain per PDU.

use super::sizes::PAYLOAD_BYTES;

/// The end of a chain.
const NONE: u32 = u32::MAX;

/// The payloads of a PDU, in their order.
#[derive(Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
    cells: usize,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain { first: NONE, last: NONE, cells: 0 }
    }
}

impl Chain {
    pub(super) fn cells(&self) -> usize {
        self.cells
    }
}

/// Memory for a fixed number of payloads. A slot is in one chain, or free.
#[derive(Debug)]
pub(super) struct CellPool {
    payloads: Box<[[u8; PAYLOAD_BYTES]]>,
    /// The slot after each slot, in its chain or among the free ones.
    next: Box<[u32]>,
    free: Chain,
}

impl CellPool {
    /// Allocates memory for that many payloads: at least one, and fewer than 2^32.
    pub(super) fn new(cells: usize) -> CellPool {
        let mut next: Box<[u32]> = (1..=cells as u32).collect();
        next[cells - 1] = NONE;
        CellPool {
            payloads: vec![[0; PAYLOAD_BYTES]; cells].into_boxed_slice(),
            next,
            free: Chain { first: 0, last: cells as u32 - 1, cells },
        }
    }

    pub(super) fn free_cells(&self) -> usize {
        self.free.cells
    }

    /// Appends a payload to a chain. The caller has checked that a slot is free.
    pub(super) fn push(&mut self, chain: &mut Chain, payload: &[u8]) {
        let slot = self.free.first;
        let next = &mut self.next[slot as usize];
        self.free.first = std::mem::replace(next, NONE);
        if self.free.first == NONE {
            self.free.last = NONE;
        }
        self.free.cells -= 1;
        self.payloads[slot as usize][..payload.len()].copy_from_slice(payload);
        match chain.last {
            NONE => chain.first = slot,
            last => self.next[last as usize] = slot,
        }
        chain.last = slot;
        chain.cells += 1;
    }

    /// Frees the payloads of a chain, which is empty then. Takes the same time for any length.
    pub(super) fn release(&mut self, chain: &mut Chain) {
        let chain = std::mem::take(chain);
        if chain.cells == 0 {
            return;
        }
        match self.free.last {
            NONE => self.free.first = chain.first,
            last => self.next[last as usize] = chain.first,
        }
        self.free.last = chain.last;
        self.free.cells += chain.cells;
    }

    /// Returns the payloads of a chain.
    pub(super) fn payloads(
        &self,
        chain: &Chain,
    ) -> impl Iterator<Item = &[u8; PAYLOAD_BYTES]> + Clone {
        let first = (chain.first != NONE).then_some(chain.first);
        let following = |slot: &u32| Some(self.next[*slot as usize]).filter(|next| *next != NONE);
        std::iter::successors(first, following).map(|slot| &self.payloads[slot as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each slot is in one chain, or free.
    fn assert_conserved(pool: &CellPool, chains: &[Chain]) {
        let mut seen = vec![false; pool.next.len()];
        for chain in chains.iter().chain([&pool.free]) {
            let (mut slot, mut cells, mut last) = (chain.first, 0, NONE);
            while slot != NONE {
                assert!(!std::mem::replace(&mut seen[slot as usize], true));
                (cells, last) = (cells + 1, slot);
                slot = pool.next[slot as usize];
            }
            assert_eq!((cells, last), (chain.cells, chain.last));
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    proptest::proptest! {
        #[test]
        fn slots_are_conserved(steps in proptest::collection::vec((0_usize..4, 0_u8..8), 0..200)) {
            let mut pool = CellPool::new(20);
            let mut chains: [Chain; 4] = Default::default();
            let mut model: [Vec<u8>; 4] = Default::default();
            for (number, (at, kind)) in steps.into_iter().enumerate() {
                if kind == 0 {
                    pool.release(&mut chains[at]);
                    model[at].clear();
                } else if pool.free_cells() > 0 {
                    pool.push(&mut chains[at], &[number as u8]);
                    model[at].push(number as u8);
                }
                assert_conserved(&pool, &chains);
                for (chain, model) in chains.iter().zip(&model) {
                    let found: Vec<u8> = pool.payloads(chain).map(|payload| payload[0]).collect();
                    assert_eq!(&found, model);
                }
            }
        }
    }
}
