//! The kernel's parameter block: tensor maps, [`LaunchHeader`], tensor pointers, with no padding between.

use mk_abi::device::{LaunchHeader, TENSOR_MAP_BYTES};
use std::ffi::c_void;
use std::mem::size_of;

/// Alignment that a tensor map needs, and so the block. CUDA rounds the struct's size up to it.
const ALIGN: usize = 128;
/// Most bytes of parameters that a kernel can have (CUDA C++ programming guide, `__global__` function parameters).
pub(super) const MAX_PARAM_BYTES: usize = 32_764;

#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; ALIGN]);

/// One rank's parameters, allocated once. The driver copies them at each launch.
pub(super) struct ParamBlock {
    lines: Vec<Line>,
    n_maps: usize,
    n_tensors: usize,
}

impl ParamBlock {
    pub(super) fn new(n_maps: usize, n_tensors: usize, header: LaunchHeader) -> ParamBlock {
        let mut block = ParamBlock {
            lines: vec![Line([0; ALIGN]); Self::bytes_for(n_maps, n_tensors).div_ceil(ALIGN)],
            n_maps,
            n_tensors,
        };
        let at = block.n_maps * TENSOR_MAP_BYTES;
        // SAFETY: `LaunchHeader` is plain data; the range is inside the block and its alignment (128) suffices.
        unsafe {
            block.start().add(at).cast::<LaunchHeader>().write(header);
        }
        block
    }

    /// Bytes without trailing padding.
    pub(super) fn bytes_for(n_maps: usize, n_tensors: usize) -> usize {
        n_maps * TENSOR_MAP_BYTES + size_of::<LaunchHeader>() + n_tensors * size_of::<u64>()
    }

    /// Whether a kernel whose parameter has this size reads no more than the block, and no less than its content.
    pub(super) fn fits(&self, kernel_bytes: usize) -> bool {
        let content = Self::bytes_for(self.n_maps, self.n_tensors);
        (content..=self.lines.len() * ALIGN).contains(&kernel_bytes)
    }

    /// The slot of a tensor map.
    pub(super) fn map_mut(&mut self, i: usize) -> &mut [u8; TENSOR_MAP_BYTES] {
        assert!(i < self.n_maps, "map {i} of {}", self.n_maps);
        &mut self.lines[i].0
    }

    /// Changes the header for the next launches.
    pub(super) fn update_header(&mut self, change: impl FnOnce(&mut LaunchHeader)) {
        let at = self.n_maps * TENSOR_MAP_BYTES;
        // SAFETY: `new` wrote a header there, inside the block and aligned; nothing else refers to it now.
        change(unsafe { &mut *self.start().add(at).cast::<LaunchHeader>() });
    }

    /// Stores a tensor's address.
    pub(super) fn set_tensor(&mut self, i: usize, ptr: u64) {
        assert!(i < self.n_tensors, "tensor {i} of {}", self.n_tensors);
        let at = Self::bytes_for(self.n_maps, i);
        let line = &mut self.lines[at / ALIGN].0;
        line[at % ALIGN..][..8].copy_from_slice(&ptr.to_ne_bytes());
    }

    /// What `kernelParams[0]` is.
    pub(super) fn as_param(&mut self) -> *mut c_void {
        self.start().cast()
    }

    fn start(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    #[cfg(test)]
    fn bytes(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|l| l.0).collect()
    }
}

const _: () = assert!(align_of::<LaunchHeader>() <= ALIGN && TENSOR_MAP_BYTES == ALIGN);
// A pointer never straddles two lines.
const _: () = assert!(size_of::<LaunchHeader>().is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn maps_then_header_then_pointers() {
        let header = LaunchHeader {
            sym_base: 0x1122_3344_5566_7788,
            rank: 3,
            world: 4,
            ..LaunchHeader::default()
        };
        let mut block = ParamBlock::new(2, 3, header);
        block.map_mut(1).fill(0xAB);
        for i in 0..3 {
            block.set_tensor(i, 0x1000 + i as u64);
        }
        let bytes = block.bytes();
        let word = |at: usize| {
            let mut b = [0; 8];
            b.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(b)
        };
        assert_eq!(&bytes[..128], &[0; 128]);
        assert_eq!(&bytes[128..256], &[0xAB; 128]);
        assert_eq!(word(256), 0x1122_3344_5566_7788);
        let rank = 256 + offset_of!(LaunchHeader, rank);
        assert_eq!(word(rank), 3 | 4 << 32);
        assert_eq!([word(384), word(392), word(400)], [0x1000, 0x1001, 0x1002]);
        assert_eq!(block.as_param() as usize % 128, 0);
    }

    #[test]
    fn the_kernel_may_round_its_struct_up_but_not_disagree() {
        let block = ParamBlock::new(1, 1, LaunchHeader::default());
        // 128 + 128 + 8 bytes of content; CUDA makes 320 (alignas(64)) or 384 (alignas(128)) of it.
        assert!(block.fits(264) && block.fits(320) && block.fits(384));
        assert!(!block.fits(256) && !block.fits(392));
    }

    #[test]
    fn many_pointers_cross_lines() {
        let mut block = ParamBlock::new(0, 40, LaunchHeader::default());
        for i in 0..40 {
            block.set_tensor(i, i as u64 + 1);
        }
        let bytes = block.bytes();
        assert_eq!(bytes.len(), 512);
        assert_eq!(bytes[128 + 39 * 8], 40);
    }
}
