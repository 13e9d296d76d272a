//! The options of a TCP header: segment size (RFC 9293, 3.2), window scale and timestamps
//! (RFC 7323), selective acknowledgements (RFC 2018).

use super::sequence::Seq;

const END: u8 = 0;
const NOTHING: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The bytes that the timestamps option takes in each segment, with its padding.
pub(super) const TIMESTAMP_BYTES: usize = 12;
/// The largest shift of a window (RFC 7323, 2.3).
pub(super) const MAX_SHIFT: u8 = 14;
/// The most blocks that fit into a header.
const MAX_BLOCKS: usize = 4;

/// Received data: the first sequence number, and the one after the last.
pub(super) type Block = (Seq, Seq);

/// Blocks of a selective acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks {
    blocks: [Block; MAX_BLOCKS],
    count: u8,
}

impl Blocks {
    pub(super) fn push(&mut self, block: Block) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = block;
            self.count += 1;
        }
    }

    pub(super) fn as_slice(&self) -> &[Block] {
        &self.blocks[..usize::from(self.count)]
    }
}

/// The options of a received segment. An option with an invalid length ends the list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(super) mss: Option<u16>,
    /// At most [`MAX_SHIFT`].
    pub(super) window_shift: Option<u8>,
    pub(super) sack_permitted: bool,
    /// The sender's clock, and the echo of ours.
    pub(super) timestamps: Option<(u32, u32)>,
    pub(super) sack: Blocks,
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl Options {
    pub(super) fn parse(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        // The usual content of a segment after the handshake (RFC 7323, appendix A).
        if let [NOTHING, NOTHING, TIMESTAMPS, 10, stamps @ ..] = bytes
            && stamps.len() == 8
        {
            options.timestamps = Some((be32(stamps), be32(&stamps[4..])));
            return options;
        }
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NOTHING => bytes = rest,
                kind => {
                    let Some(&len) = rest.first() else { break };
                    let len = usize::from(len);
                    if len < 2 || len > bytes.len() {
                        break;
                    }
                    options.add(kind, &bytes[2..len]);
                    bytes = &bytes[len..];
                }
            }
        }
        options
    }

    /// Takes an option over, unless its length is not that of its kind.
    fn add(&mut self, kind: u8, value: &[u8]) {
        match (kind, value.len()) {
            (MSS, 2) => self.mss = Some(u16::from_be_bytes([value[0], value[1]])),
            (WINDOW_SCALE, 1) => self.window_shift = Some(value[0].min(MAX_SHIFT)),
            (SACK_PERMITTED, 0) => self.sack_permitted = true,
            (TIMESTAMPS, 8) => self.timestamps = Some((be32(value), be32(&value[4..]))),
            (SACK, 8 | 16 | 24 | 32) => {
                for block in value.chunks_exact(8) {
                    self.sack.push((Seq(be32(block)), Seq(be32(&block[4..]))));
                }
            }
            _ => {}
        }
    }
}

/// The options of a segment to send.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    bytes: Bytes,
    len: u8,
}

/// The largest room for options in a header.
#[derive(Clone, Copy, Debug)]
struct Bytes([u8; 40]);

impl Default for Bytes {
    fn default() -> Self {
        Bytes([0; 40])
    }
}

impl Written {
    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes.0[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    pub(super) fn mss(&mut self, bytes: u16) {
        let [high, low] = bytes.to_be_bytes();
        self.push(&[MSS, 4, high, low]);
    }

    pub(super) fn sack_permitted(&mut self) {
        self.push(&[NOTHING, NOTHING, SACK_PERMITTED, 2]);
    }

    pub(super) fn window_scale(&mut self, shift: u8) {
        self.push(&[NOTHING, WINDOW_SCALE, 3, shift]);
    }

    pub(super) fn timestamps(&mut self, clock: u32, echo: u32) {
        self.push(&[NOTHING, NOTHING, TIMESTAMPS, 10]);
        self.push(&clock.to_be_bytes());
        self.push(&echo.to_be_bytes());
    }

    /// Adds as many blocks as there is room for.
    pub(super) fn sack(&mut self, blocks: &[Block]) {
        let room = (self.bytes.0.len() - usize::from(self.len)).saturating_sub(4) / 8;
        let blocks = &blocks[..blocks.len().min(room)];
        if blocks.is_empty() {
            return;
        }
        self.push(&[NOTHING, NOTHING, SACK, 2 + 8 * blocks.len() as u8]);
        for (start, end) in blocks {
            self.push(&start.0.to_be_bytes());
            self.push(&end.0.to_be_bytes());
        }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes.0[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_options_read_back() {
        let mut written = Written::default();
        written.mss(1460);
        written.sack_permitted();
        written.timestamps(7, 8);
        written.window_scale(9);
        let options = Options::parse(written.as_slice());
        assert_eq!((options.mss, options.window_shift), (Some(1460), Some(9)));
        assert_eq!((options.sack_permitted, options.timestamps), (true, Some((7, 8))));
        let blocks = [1, 2, 3, 4, 5].map(|n| (Seq(n * 10), Seq(n * 10 + 5)));
        for (stamped, fit) in [(false, 4), (true, 3)] {
            let mut written = Written::default();
            if stamped {
                written.timestamps(1, 2);
            }
            written.sack(&blocks);
            let options = Options::parse(written.as_slice());
            assert_eq!(options.sack.as_slice(), &blocks[..fit]);
            assert_eq!(options.timestamps.is_some(), stamped);
        }
    }

    #[test]
    fn options_that_lie_end_the_list() {
        for (bytes, mss) in [
            (&[2, 4, 5, 180][..], Some(1460)),
            (&[2, 0, 5, 180], None),
            (&[2, 1, 5, 180], None),
            (&[2, 40, 5, 180], None),
            (&[2], None),
            (&[9, 2, 2, 4, 5, 180], Some(1460)),
            (&[9, 0, 2, 4, 5, 180], None),
            (&[0, 2, 4, 5, 180], None),
            (&[2, 3, 5, 2, 4, 5, 180], Some(1460)),
        ] {
            assert_eq!(Options::parse(bytes).mss, mss, "{bytes:?}");
        }
        assert_eq!(Options::parse(&[3, 3, 200]).window_shift, Some(MAX_SHIFT));
        assert_eq!(Options::parse(&[5, 9, 0, 0, 0, 1, 0, 0, 0]).sack.as_slice(), &[]);
    }
}
