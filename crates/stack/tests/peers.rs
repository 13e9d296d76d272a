//! Our TCP and smoltcp's exchange data over links of all kinds: what arrives is what was sent.

mod peer;

use peer::{Ending, Pair};
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
