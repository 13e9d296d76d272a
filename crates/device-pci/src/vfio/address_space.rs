//! The address space of a device: which memory it reaches, and at which addresses.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use vfio_bindings::bindings::vfio::{
    VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
    vfio_iommu_type1_dma_map, vfio_iommu_type1_dma_unmap, vfio_iommu_type1_info,
};

use super::{Vfio, ioctl_struct, request};

/// The addresses from 4 GiB on that every x86 IOMMU translates, for kernels that do not report them
/// (before Linux 5.4).
const USUAL_ADDRESSES: RangeInclusive<u64> = 1 << 32..=(1 << 39) - 1;
/// The size of the buffer for the kernel's report of the address space, in bytes.
const INFO_BYTES: usize = 4096;

const IOMMU_GET_INFO: libc::c_ulong = request(12);
const IOMMU_MAP_DMA: libc::c_ulong = request(13);
const IOMMU_UNMAP_DMA: libc::c_ulong = request(14);

impl Vfio {
    /// Returns the ranges of addresses that the IOMMU translates.
    pub(crate) fn address_ranges(&self) -> io::Result<Vec<RangeInclusive<u64>>> {
        let mut words = vec![0u64; INFO_BYTES / 8];
        let first = words.as_mut_ptr().cast::<vfio_iommu_type1_info>();
        // SAFETY: the memory is aligned and large enough, and no other reference to it lives.
        let info = unsafe { &mut *first };
        info.argsz = INFO_BYTES as u32;
        // SAFETY: the request takes a `vfio_iommu_type1_info`, which `INFO_BYTES` bytes follow.
        unsafe { ioctl_struct(self.container.as_fd(), IOMMU_GET_INFO, info)? };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(ranges(&bytes).unwrap_or_else(|| vec![USUAL_ADDRESSES]))
    }

    /// Lets the device reach memory of this process at a device address, and locks the memory's pages.
    ///
    /// # Errors
    /// `ENOMEM` beyond the limit of locked memory, or the kernel's other errors.
    pub(crate) fn map(
        &self,
        memory: *const u8,
        bytes: u64,
        iova: u64,
        writes: bool,
    ) -> io::Result<()> {
        let writes = if writes { VFIO_DMA_MAP_FLAG_WRITE } else { 0 };
        let mut map = vfio_iommu_type1_dma_map {
            argsz: size_of::<vfio_iommu_type1_dma_map>() as u32,
            flags: VFIO_DMA_MAP_FLAG_READ | writes,
            vaddr: memory as u64,
            iova,
            size: bytes,
        };
        // SAFETY: the request takes a `vfio_iommu_type1_dma_map`. The kernel checks the addresses.
        unsafe { ioctl_struct(self.container.as_fd(), IOMMU_MAP_DMA, &mut map)? };
        Ok(())
    }

    /// Ends the device's access to the ranges within these addresses that [`Vfio::map`] mapped, in this process
    /// or an earlier one. Does nothing once this process leaves the device.
    pub(crate) fn unmap(&self, iova: u64, bytes: u64) -> io::Result<()> {
        if self.leaves.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut unmap = vfio_iommu_type1_dma_unmap {
            argsz: size_of::<vfio_iommu_type1_dma_unmap>() as u32,
            iova,
            size: bytes,
            ..vfio_iommu_type1_dma_unmap::default()
        };
        // SAFETY: the request takes a `vfio_iommu_type1_dma_unmap`.
        unsafe { ioctl_struct(self.container.as_fd(), IOMMU_UNMAP_DMA, &mut unmap)? };
        Ok(())
    }
}

/// Returns the ranges of addresses in the kernel's report; `None` if it has none.
fn ranges(report: &[u8]) -> Option<Vec<RangeInclusive<u64>>> {
    let u32_at = |at: usize| {
        let bytes = report.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let u64_at = |at: usize| {
        let bytes = report.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    let mut at = u32_at(std::mem::offset_of!(vfio_iommu_type1_info, cap_offset))? as usize;
    // Each capability names the next one: its number, its version, the next one's offset, its content.
    for _ in 0..INFO_BYTES / 8 {
        if at == 0 {
            return None;
        }
        if u32_at(at)? as u16 == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE as u16 {
            let count = u32_at(at.checked_add(8)?)? as usize;
            let range = |index: usize| {
                let first = at.checked_add(16)?.checked_add(index.checked_mul(16)?)?;
                Some(u64_at(first)?..=u64_at(first.checked_add(8)?)?)
            };
            return (0..count).map(range).collect();
        }
        at = u32_at(at.checked_add(4)?)? as usize;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(capabilities: &[u8]) -> Vec<u8> {
        let info = vfio_iommu_type1_info::default();
        let cap_offset = std::mem::offset_of!(vfio_iommu_type1_info, cap_offset);
        let mut bytes = vec![0; size_of_val(&info)];
        let first = if capabilities.is_empty() { 0 } else { bytes.len() as u32 };
        bytes[cap_offset..cap_offset + 4].copy_from_slice(&first.to_ne_bytes());
        bytes.extend(capabilities);
        bytes
    }

    #[test]
    fn ranges_are_found_behind_other_capabilities() {
        let base = size_of::<vfio_iommu_type1_info>() as u32;
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        // Another capability of version 1, and then two ranges.
        let good = words(&[
            3 | 1 << 16,
            base + 16,
            0,
            0,
            1 | 1 << 16,
            0,
            2,
            0,
            0,
            0,
            0xfedf_ffff,
            0,
            0xfef0_0000,
            0,
            0xffff_ffff,
            0x7f,
        ]);
        assert_eq!(
            ranges(&report(&good)),
            Some(vec![0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff])
        );
        for wrong in [
            vec![],
            // One that follows itself, one that lies outside, and more ranges than there are.
            words(&[3, base, 0, 0]),
            words(&[3, 1 << 20, 0, 0]),
            words(&[1, 0, u32::MAX, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(ranges(&report(&wrong)), None);
        }
    }
}
