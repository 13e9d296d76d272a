//! A device around another one, with queues around the other device's queues.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_device::{
    Device, DeviceError, DeviceQueue, Dma, Event, Filter, FilterError, Info, Keeper, OwnQueueError,
    OwnQueueLimits, PacketMemory, Spaces, TakeOver,
};

/// What a wrapper knows when it wraps a queue.
pub struct Opening<'a> {
    /// The properties of the wrapped device.
    pub inner: &'a Info,
    /// The properties that the wrapper shows.
    pub info: &'a Info,
    /// The handle of the wrapped device that registers memory.
    pub dma: Option<Arc<dyn Dma>>,
    /// The data spaces of the engine.
    pub spaces: &'a mut Spaces,
}

/// Makes the queues of a wrapper, and may change what the wrapped device does with filters.
pub trait Wrap: Send {
    /// Returns a queue around `inner`, which the wrapped device just opened.
    ///
    /// # Errors
    /// When the wrapper cannot allocate what it needs.
    fn wrap(
        &mut self,
        inner: Box<dyn DeviceQueue>,
        opening: Opening<'_>,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError>;

    /// Adds a filter to the wrapped device.
    ///
    /// # Errors
    /// Those of the device, or of a wrapper that refuses the filter.
    fn add_filter(&mut self, inner: &mut dyn Device, filter: &Filter) -> Result<(), FilterError> {
        inner.add_filter(filter)
    }

    /// Removes a filter from the wrapped device.
    fn remove_filter(&mut self, inner: &mut dyn Device, filter: &Filter) {
        inner.remove_filter(filter);
    }

    /// Returns what [`Device::would_have_room`] returns for the wrapped device and the wrapper.
    fn would_have_room(&self, inner: &dyn Device, wanted: &[Filter], removed: &[Filter]) -> bool {
        inner.would_have_room(wanted, removed)
    }
}

impl<F> Wrap for F
where
    F: FnMut(Box<dyn DeviceQueue>) -> Box<dyn DeviceQueue> + Send,
{
    fn wrap(
        &mut self,
        inner: Box<dyn DeviceQueue>,
        _: Opening<'_>,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        Ok(self(inner))
    }
}

/// A device whose queues a wrapper wraps. The control part stays that of the wrapped device.
pub struct Wrapped<W> {
    inner: Box<dyn Device>,
    info: Info,
    pub(crate) wrap: W,
}

impl<W: Wrap> Wrapped<W> {
    /// Wraps a device none of whose queues is open. A closure that takes a queue and returns one is
    /// a [`Wrap`], too.
    #[must_use]
    pub fn around(inner: Box<dyn Device>, wrap: W) -> Wrapped<W> {
        let info = inner.info().clone();
        Wrapped { inner, info, wrap }
    }

    /// Shows other properties than those of the wrapped device.
    pub(crate) fn with_info(mut self, change: impl FnOnce(&mut Info)) -> Wrapped<W> {
        change(&mut self.info);
        self
    }
}

impl<W: Wrap> Device for Wrapped<W> {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        index: usize,
        spaces: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let queue = self.inner.open_queue(index, spaces)?;
        let dma = self.inner.dma_of(index);
        let opening = Opening { inner: self.inner.info(), info: &self.info, dma, spaces };
        self.wrap.wrap(queue, opening)
    }

    fn dma(&self) -> Option<Arc<dyn Dma>> {
        self.inner.dma()
    }

    fn dma_of(&self, queue: usize) -> Option<Arc<dyn Dma>> {
        self.inner.dma_of(queue)
    }

    /// The packets of such queues would not pass the wrapper.
    fn own_queue_limits(&self) -> Result<OwnQueueLimits, OwnQueueError> {
        Err(OwnQueueError::Wrapped { name: self.info.name.clone() })
    }

    fn add_filter(&mut self, filter: &Filter) -> Result<(), FilterError> {
        self.wrap.add_filter(&mut *self.inner, filter)
    }

    fn remove_filter(&mut self, filter: &Filter) {
        self.wrap.remove_filter(&mut *self.inner, filter);
    }

    fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        self.wrap.would_have_room(&*self.inner, wanted, removed)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    fn take_event(&mut self) -> Option<Event> {
        self.inner.take_event()
    }

    fn set_keeper(&mut self, keeper: Arc<dyn Keeper>) {
        self.inner.set_keeper(keeper);
    }

    fn earlier_memory(
        &mut self,
        queue: usize,
        memory: PacketMemory,
    ) -> io::Result<Option<OwnedFd>> {
        self.inner.earlier_memory(queue, memory)
    }

    fn memory_name(&self) -> &'static str {
        self.inner.memory_name()
    }

    fn keeps_memory(&self) -> bool {
        self.inner.keeps_memory()
    }

    fn take_over(&mut self) -> Option<TakeOver> {
        self.inner.take_over()
    }

    fn statistics(&mut self) -> Vec<(&'static str, u64)> {
        self.inner.statistics()
    }

    fn leave(&mut self) {
        self.inner.leave();
    }

    fn objects(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        self.inner.objects()
    }
}
