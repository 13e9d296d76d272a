//! Our TCP and smoltcp's exchange data over links of all kinds: what arrives is what was sent.

use crate::peer::{Ending, MAX_FATES, Pair};
use proptest::prelude::*;

#[test]
fn a_clean_link_carries_everything() {
    for listens in [false, true] {
        for bytes in [[0, 0], [1, 0], [0, 100_000], [300_000, 0], [200_000, 200_000]] {
            let ending = Pair::new(&[], false, 1 << 16).run(listens, bytes);
            assert_eq!(ending, Ending::Complete, "{listens} {bytes:?}");
        }
    }
}

/// smoltcp never gives up, and we accept its first segment hours later.
#[test]
fn a_link_that_loses_all_for_hours_carries_everything_then() {
    let ending = Pair::new(&[1; MAX_FATES], false, 1 << 16).run(true, [20_000, 20_000]);
    assert_eq!(ending, Ending::Complete);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    /// Loss, duplication and reordering cost time, and no byte.
    #[test]
    fn faults_cost_no_byte(
        fates in prop::collection::vec(any::<u8>(), 0..400),
        listens in any::<bool>(),
        bytes in [0_usize..60_000, 0_usize..60_000],
        buffer_bytes in 4096_usize..70_000,
    ) {
        let ending = Pair::new(&fates, false, buffer_bytes).run(listens, bytes);
        prop_assert_eq!(ending, Ending::Complete);
    }

    /// Segments that lie end a connection at worst.
    #[test]
    fn lies_change_no_byte(
        fates in prop::collection::vec(any::<u8>(), 0..400),
        listens in any::<bool>(),
        bytes in [0_usize..60_000, 0_usize..60_000],
    ) {
        Pair::new(&fates, true, 1 << 15).run(listens, bytes);
    }
}
