//! The buffers of a connection: chains of the pool's blocks.

use std::collections::VecDeque;

use super::pool::{BLOCK_BYTES, BlockId, Pool};

/// The number of entries that an empty chain keeps room for.
const KEPT: usize = 32;
/// The place of a block that is not needed yet.
const HOLE: BlockId = BlockId::MAX;

/// Bytes in blocks. Only blocks that hold data exist.
#[derive(Debug, Default)]
struct Chain {
    blocks: VecDeque<BlockId>,
    /// The offset of the first byte in the first block.
    head: usize,
}

impl Chain {
    /// Copies `data` to `offset` bytes behind the first byte. Returns the number of bytes copied,
    /// which is lower if the pool is empty.
    fn write(&mut self, pool: &mut Pool, offset: usize, data: &[u8]) -> usize {
        let mut done = 0;
        while done < data.len() {
            let at = self.head + offset + done;
            let (index, start) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            while self.blocks.len() <= index {
                self.blocks.push_back(HOLE);
            }
            if self.blocks[index] == HOLE {
                let Some(block) = pool.take() else { break };
                self.blocks[index] = block;
            }
            let len = (BLOCK_BYTES - start).min(data.len() - done);
            let block = pool.bytes_mut(self.blocks[index]);
            block[start..start + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
        done
    }

    /// Copies the bytes from `offset` on. The caller knows that they were written.
    fn read(&self, pool: &Pool, offset: usize, to: &mut [u8]) {
        let mut done = 0;
        while done < to.len() {
            let at = self.head + offset + done;
            let (index, start) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let len = (BLOCK_BYTES - start).min(to.len() - done);
            let block = pool.bytes(self.blocks[index]);
            to[done..done + len].copy_from_slice(&block[start..start + len]);
            done += len;
        }
    }

    /// Drops the first `count` bytes, and all of them if no byte is left.
    fn advance(&mut self, pool: &mut Pool, count: usize, is_empty: bool) {
        if is_empty {
            return self.clear(pool);
        }
        self.head += count;
        while self.head >= BLOCK_BYTES {
            self.head -= BLOCK_BYTES;
            if let Some(block) = self.blocks.pop_front()
                && block != HOLE
            {
                pool.give(block);
            }
        }
    }

    /// Gives the blocks back that hold nothing of the first `len` bytes.
    fn truncate(&mut self, pool: &mut Pool, len: usize) {
        let blocks = (self.head + len).div_ceil(BLOCK_BYTES);
        for block in self.blocks.drain(blocks.min(self.blocks.len())..) {
            if block != HOLE {
                pool.give(block);
            }
        }
    }

    fn clear(&mut self, pool: &mut Pool) {
        for block in self.blocks.drain(..) {
            if block != HOLE {
                pool.give(block);
            }
        }
        self.head = 0;
        self.blocks.shrink_to(KEPT);
    }
}

/// Written data that the peer has not acknowledged.
#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    chain: Chain,
    len: usize,
}

impl SendBuffer {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends data. Returns the number of bytes appended, which is lower if the pool is empty.
    pub(super) fn write(&mut self, pool: &mut Pool, data: &[u8]) -> usize {
        let done = self.chain.write(pool, self.len, data);
        self.len += done;
        done
    }

    /// Copies the bytes from `offset` on; the buffer has that many.
    pub(super) fn read(&self, pool: &Pool, offset: usize, to: &mut [u8]) {
        self.chain.read(pool, offset, to);
    }

    /// Drops the first bytes, which the peer has acknowledged.
    pub(super) fn advance(&mut self, pool: &mut Pool, count: usize) {
        let count = count.min(self.len);
        self.len -= count;
        self.chain.advance(pool, count, self.len == 0);
    }

    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.len = 0;
        self.chain.clear(pool);
    }
}

/// Received data that the application has not read, and data that arrived ahead of a gap.
#[derive(Debug, Default)]
pub(super) struct ReceiveBuffer {
    chain: Chain,
    /// Bytes without a gap.
    len: usize,
}

impl ReceiveBuffer {
    /// Returns the number of bytes that the application can read.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Copies data to `offset` bytes behind the readable bytes. Returns the number of bytes copied,
    /// which is lower if the pool is empty.
    pub(super) fn place(&mut self, pool: &mut Pool, offset: usize, data: &[u8]) -> usize {
        self.chain.write(pool, self.len + offset, data)
    }

    /// Drops the data ahead of a gap.
    pub(super) fn drop_ahead(&mut self, pool: &mut Pool) {
        self.chain.truncate(pool, self.len);
    }

    /// Makes the next `count` bytes readable, all of which were placed.
    pub(super) fn extend(&mut self, count: usize) {
        self.len += count;
    }

    /// Copies readable bytes and returns their number. `keep`: leaves them in the buffer;
    /// `has_more`: data ahead of a gap is in the buffer.
    pub(super) fn read(
        &mut self,
        pool: &mut Pool,
        to: &mut [u8],
        keep: bool,
        has_more: bool,
    ) -> usize {
        let len = to.len().min(self.len);
        self.chain.read(pool, 0, &mut to[..len]);
        if !keep {
            self.discard(pool, len, has_more);
        }
        len
    }

    /// Drops the first `count` readable bytes.
    pub(super) fn discard(&mut self, pool: &mut Pool, count: usize, has_more: bool) {
        self.len -= count;
        self.chain.advance(pool, count, self.len == 0 && !has_more);
    }

    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.len = 0;
        self.chain.clear(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_ahead_of_a_gap_keeps_its_place() {
        let mut pool = Pool::new(1 << 20);
        let mut buffer = ReceiveBuffer::default();
        let data: Vec<u8> = (0..20_000u32).map(|n| ((n * 7) >> 2) as u8).collect();
        assert_eq!(buffer.place(&mut pool, 0, &data[..100]), 100);
        buffer.extend(100);
        assert_eq!(buffer.place(&mut pool, 15_000, &data[15_100..]), 4900);
        assert_eq!(pool.sizes().0, 3 * BLOCK_BYTES, "no block for the gap");
        let mut got = vec![0; 30_000];
        assert_eq!(buffer.read(&mut pool, &mut got, false, true), 100);
        assert_eq!(buffer.place(&mut pool, 0, &data[100..15_100]), 15_000);
        buffer.extend(19_900);
        assert_eq!(buffer.read(&mut pool, &mut got[100..], true, false), 19_900);
        assert!(got[..20_000] == data);
        assert_eq!(buffer.read(&mut pool, &mut got, false, false), 19_900);
        assert_eq!((buffer.len(), pool.sizes().0), (0, 0));
    }

    #[test]
    fn data_ahead_of_a_gap_can_be_dropped() {
        let mut pool = Pool::new(1 << 20);
        let mut buffer = ReceiveBuffer::default();
        buffer.place(&mut pool, 0, &[1; 5000]);
        buffer.extend(5000);
        buffer.place(&mut pool, 9000, &[2; 9000]);
        buffer.drop_ahead(&mut pool);
        assert_eq!(pool.sizes().0, 2 * BLOCK_BYTES);
        buffer.place(&mut pool, 0, &[3; 5000]);
        buffer.extend(5000);
        let mut got = vec![0; 10_000];
        assert_eq!(buffer.read(&mut pool, &mut got, false, false), 10_000);
        assert!(got[..5000] == [1; 5000] && got[5000..] == [3; 5000]);
        assert_eq!(pool.sizes().0, 0);
    }

    #[test]
    fn an_empty_pool_takes_a_part() {
        let mut pool = Pool::new(2 * BLOCK_BYTES);
        let mut buffer = SendBuffer::default();
        let data = [5; 10_000];
        assert_eq!(buffer.write(&mut pool, &data), 2 * BLOCK_BYTES);
        buffer.advance(&mut pool, 5000);
        assert_eq!(buffer.write(&mut pool, &data), BLOCK_BYTES);
        assert_eq!(buffer.len(), 3 * BLOCK_BYTES - 5000);
        let mut got = vec![0; buffer.len() - 7];
        buffer.read(&pool, 7, &mut got);
        assert!(got.iter().all(|&byte| byte == 5));
        buffer.clear(&mut pool);
        assert_eq!((buffer.len(), pool.sizes().0), (0, 0));
    }
}
