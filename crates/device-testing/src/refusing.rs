//! A device that refuses filters, for tests of the code that claims filters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use towpath_device::{Device, DeviceError, DeviceQueue, Filter, FilterError};

use crate::wrapped::{Opening, Wrap, Wrapped};

/// Returns the error with which a device that has the filters `has` refuses `wanted`; `None` if the device takes it.
pub type Refuses = fn(wanted: &Filter, has: &[Filter]) -> Option<FilterError>;

/// A wrapper that refuses some filters, and passes all other calls to the inner device.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use towpath_device_testing::loopback::{self, Reception};
/// use towpath_device_testing::refusing::Refusing;
/// use towpath_device::{Device, Filter, FilterError};
///
/// let reception = Reception { filters_addresses: true, ..Reception::default() };
/// let config = loopback::Config { reception, ..loopback::Config::default() };
/// let (near, _far) = loopback::pair(&config)?;
/// let one = |_: &Filter, has: &[Filter]| (has.len() == 1).then_some(FilterError::Full);
/// let mut device = Refusing::new(Box::new(near), one);
/// let [first, second] = [1, 2].map(|last| Filter::Address([2, 0, 0, 0, 0, last]));
/// assert!(device.add_filter(&first).is_ok());
/// assert!(matches!(device.add_filter(&second), Err(FilterError::Full)));
/// assert!(device.would_have_room(&[second], &[first]));
/// # Ok(())
/// # }
/// ```
pub type Refusing = Wrapped<Refusal>;

/// Refuses filters.
pub struct Refusal {
    refuses: Refuses,
    has: Vec<Filter>,
    removed: Arc<AtomicUsize>,
}

impl Refusing {
    /// Wraps a device; `refuses` decides on each new filter.
    #[must_use]
    pub fn new(inner: Box<dyn Device>, refuses: Refuses) -> Refusing {
        Wrapped::around(inner, Refusal { refuses, has: Vec::new(), removed: Arc::default() })
    }

    /// Returns the shared count of removed filters. Each later removal increments the count.
    #[must_use]
    pub fn removed(&self) -> Arc<AtomicUsize> {
        self.wrap.removed.clone()
    }
}

impl Wrap for Refusal {
    fn wrap(
        &mut self,
        inner: Box<dyn DeviceQueue>,
        _: Opening<'_>,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        Ok(inner)
    }

    fn add_filter(&mut self, inner: &mut dyn Device, filter: &Filter) -> Result<(), FilterError> {
        match (self.refuses)(filter, &self.has) {
            Some(error) => return Err(error),
            None => inner.add_filter(filter)?,
        }
        self.has.push(*filter);
        Ok(())
    }

    fn remove_filter(&mut self, inner: &mut dyn Device, filter: &Filter) {
        self.removed.fetch_add(1, Ordering::Relaxed);
        self.has.retain(|one| one != filter);
        inner.remove_filter(filter);
    }

    fn would_have_room(&self, inner: &dyn Device, wanted: &[Filter], removed: &[Filter]) -> bool {
        let mut has = self.has.clone();
        has.retain(|one| !removed.contains(one));
        let all_taken = wanted.iter().all(|filter| {
            let is_taken = (self.refuses)(filter, &has).is_none();
            has.push(*filter);
            is_taken
        });
        all_taken && inner.would_have_room(wanted, removed)
    }
}
