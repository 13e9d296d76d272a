//! The methods of a wrapper's queue that only call those of the wrapped queue.

/// Implements methods of [`DeviceQueue`](towpath_device::DeviceQueue) by those of a field.
///
/// ```
/// use towpath_device::{DeviceError, DeviceQueue, Packet, Spaces};
///
/// /// A queue that takes no packets.
/// struct Full {
///     inner: Box<dyn DeviceQueue>,
/// }
///
/// impl DeviceQueue for Full {
///     towpath_device_testing::forward!(
///         inner: holds, rx_fill, rx_poll, kick, tx_complete, sleep_fd, arm, reset, counters
///     );
///
///     fn tx_submit(&mut self, _: &mut Spaces, _: &[Packet<'_>]) -> Result<usize, DeviceError> {
///         Ok(0)
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($inner:tt: $($method:ident),+) => {
        $($crate::forward!(@ $inner $method);)+
    };
    (@ $inner:tt holds) => {
        fn holds(&self, buffer: u32) -> bool {
            self.$inner.holds(buffer)
        }
    };
    (@ $inner:tt rx_fill) => {
        fn rx_fill(
            &mut self,
            spaces: &::towpath_device::Spaces,
            space: ::towpath_device::SpaceId,
            buffers: &[u32],
        ) -> usize {
            self.$inner.rx_fill(spaces, space, buffers)
        }
    };
    (@ $inner:tt rx_poll) => {
        fn rx_poll(
            &mut self,
            spaces: &mut ::towpath_device::Spaces,
            out: &mut Vec<::towpath_device::Received>,
            budget: usize,
        ) -> Result<usize, ::towpath_device::DeviceError> {
            self.$inner.rx_poll(spaces, out, budget)
        }
    };
    (@ $inner:tt tx_submit) => {
        fn tx_submit(
            &mut self,
            spaces: &mut ::towpath_device::Spaces,
            packets: &[::towpath_device::Packet<'_>],
        ) -> Result<usize, ::towpath_device::DeviceError> {
            self.$inner.tx_submit(spaces, packets)
        }
    };
    (@ $inner:tt kick) => {
        fn kick(
            &mut self,
            spaces: &mut ::towpath_device::Spaces,
            ring: ::towpath_device::Kick,
        ) -> Result<(), ::towpath_device::DeviceError> {
            self.$inner.kick(spaces, ring)
        }
    };
    // For a wrapper that itself kicks the wrapped queue whenever it submits packets to it.
    (@ $inner:tt kick_rx) => {
        fn kick(
            &mut self,
            spaces: &mut ::towpath_device::Spaces,
            ring: ::towpath_device::Kick,
        ) -> Result<(), ::towpath_device::DeviceError> {
            match ring {
                ::towpath_device::Kick::Rx => self.$inner.kick(spaces, ring),
                ::towpath_device::Kick::Tx => Ok(()),
            }
        }
    };
    (@ $inner:tt tx_complete) => {
        fn tx_complete(
            &mut self,
            out: &mut Vec<::towpath_device::Completion>,
            budget: usize,
        ) -> Result<usize, ::towpath_device::DeviceError> {
            self.$inner.tx_complete(out, budget)
        }
    };
    (@ $inner:tt sleep_fd) => {
        fn sleep_fd(&self) -> Option<::std::os::fd::BorrowedFd<'_>> {
            self.$inner.sleep_fd()
        }
    };
    (@ $inner:tt arm) => {
        fn arm(
            &mut self,
            tx_waiting: bool,
        ) -> Result<::towpath_device::Armed, ::towpath_device::DeviceError> {
            self.$inner.arm(tx_waiting)
        }
    };
    (@ $inner:tt reset) => {
        fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), ::towpath_device::DeviceError> {
            self.$inner.reset(buffers)
        }
    };
    (@ $inner:tt counters) => {
        fn counters(&self) -> ::towpath_device::Counters {
            self.$inner.counters()
        }
    };
}
