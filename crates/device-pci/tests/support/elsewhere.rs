//! Memory at addresses at which a card behind an IOMMU reaches none, and a wait that ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_device::{Access, Dma, DmaError, Registration, Space};
use towpath_memory::{Mapping, Region};

/// Registers memory at an address at which the device reaches none. The script looks for the address in the
/// kernel's log.
struct Elsewhere(u64);

impl Dma for Elsewhere {
    fn register(&self, _: &Arc<Mapping>, _: Access) -> Result<u64, DmaError> {
        Ok(self.0)
    }

    fn unregister(&self, _: u64) {}
}

/// Returns a space whose memory the device looks for elsewhere, and the mapping.
pub(crate) fn misdirected(address: u64) -> (Space, Arc<Mapping>) {
    let region = Region::private(4096).unwrap();
    let mapping = region.mapping().clone();
    let dma: Arc<dyn Dma> = Arc::new(Elsewhere(address));
    let registration = Registration::new(&dma, &mapping, Access::ReadWrite).unwrap();
    (Space::writable(region).registered(Some(registration)), mapping)
}

/// Waits until a condition holds, at most ten seconds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(10), "no {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
