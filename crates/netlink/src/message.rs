//! The form of netlink messages: headers, attributes, acknowledgements (`linux/netlink.h`).
//!
//! Every read is bounds-checked, so that no bytes can make a reader panic, loop endlessly or read
//! beyond the received bytes.
#![forbid(unsafe_code)]

use rustix::io::Errno;

/// A message's header: length, kind, flags, sequence, port.
pub(crate) const HEADER_BYTES: usize = 16;

pub(crate) const NLMSG_NOOP: u16 = 1;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
// In an acknowledgement the same bits mean something else.
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// The kind of an attribute, without the flags `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const KIND_MASK: u16 = 0x3fff;

/// The longest text taken from the kernel's acknowledgement, in bytes.
const DETAIL_MAX_BYTES: usize = 256;

/// A request under construction.
pub(crate) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    pub(crate) fn new(kind: u16, flags: u16) -> Request {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        Request { bytes }
    }

    /// Appends a fixed part, such as `struct ifinfomsg`.
    pub(crate) fn fixed(&mut self, part: &[u8]) {
        self.bytes.extend_from_slice(part);
        self.pad();
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |request| request.bytes.extend_from_slice(value));
    }

    pub(crate) fn attribute_u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends a text with its terminating zero.
    pub(crate) fn attribute_text(&mut self, kind: u16, text: &str) {
        self.nested(kind, |request| {
            request.bytes.extend_from_slice(text.as_bytes());
            request.bytes.push(0);
        });
    }

    /// Appends an attribute whose value `fill` writes. Values are names, addresses and numbers, at
    /// most a few hundred bytes in total, so the length always fits into 16 bits.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Request)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        fill(self);
        let len = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// The defect of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// One received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) body: &'a [u8],
}

/// Splits a datagram into messages. Ends at the first malformed one.
pub(crate) struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    pub(crate) fn new(datagram: &'a [u8]) -> Messages<'a> {
        Messages { rest: datagram }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.rest);
        let (Some(len), Some(kind), Some(flags), Some(sequence)) =
            (u32_at(all, 0), u16_at(all, 4), u16_at(all, 6), u32_at(all, 8))
        else {
            return Some(Err(Malformed("a message shorter than its header")));
        };
        let len = len as usize;
        if len < HEADER_BYTES {
            return Some(Err(Malformed("a message that states a length below its header")));
        }
        let Some(body) = all.get(HEADER_BYTES..len) else {
            return Some(Err(Malformed("a message longer than the received bytes")));
        };
        self.rest = all.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(Message { kind, flags, sequence, body }))
    }
}

/// Splits the end of a message into attributes. Ends at the first malformed one.
pub(crate) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Returns the attributes after a fixed part of `skip` bytes.
    pub(crate) fn after(body: &'a [u8], skip: usize) -> Result<Attributes<'a>, Malformed> {
        let rest = body.get(skip..).ok_or(Malformed("a message without its fixed part"))?;
        Ok(Attributes { rest })
    }

    pub(crate) fn of(value: &'a [u8]) -> Attributes<'a> {
        Attributes { rest: value }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.rest);
        let (Some(len), Some(kind)) = (u16_at(all, 0), u16_at(all, 2)) else {
            return Some(Err(Malformed("an attribute shorter than its header")));
        };
        let len = usize::from(len);
        if len < 4 {
            return Some(Err(Malformed("an attribute that states a length below its header")));
        }
        let Some(value) = all.get(4..len) else {
            return Some(Err(Malformed("an attribute longer than its message")));
        };
        self.rest = all.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok((kind & KIND_MASK, value)))
    }
}

/// An `NLMSG_ERROR` message: no error means that the kernel carried the request out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    pub(crate) errno: Option<Errno>,
    pub(crate) detail: Option<String>,
}

impl Acknowledgement {
    pub(crate) fn read(message: &Message<'_>) -> Result<Acknowledgement, Malformed> {
        let code = i32_at(message.body, 0).ok_or(Malformed("an acknowledgement without a code"))?;
        let errno = errno_of(code)?;
        let mut detail = None;
        if message.flags & NLM_F_ACK_TLVS != 0 {
            // The request's header follows the code, and then the rest of the request, unless the
            // socket's options exclude it.
            let echoed = if message.flags & NLM_F_CAPPED != 0 {
                HEADER_BYTES
            } else {
                let len = u32_at(message.body, 4)
                    .ok_or(Malformed("an acknowledgement without the request's header"))?;
                (len as usize).max(HEADER_BYTES).next_multiple_of(4)
            };
            for attribute in Attributes::after(message.body, echoed.saturating_add(4))? {
                let (kind, value) = attribute?;
                if kind == NLMSGERR_ATTR_MSG {
                    detail = Some(text(&value[..value.len().min(DETAIL_MAX_BYTES)]));
                }
            }
        }
        Ok(Acknowledgement { errno, detail })
    }
}

/// Returns the error of an acknowledgement or of a dump's end: zero, or a negated error number.
pub(crate) fn errno_of(code: i32) -> Result<Option<Errno>, Malformed> {
    match code {
        0 => Ok(None),
        -4095..=-1 => Ok(Some(Errno::from_raw_os_error(-code))),
        _ => Err(Malformed("an error number out of range")),
    }
}

/// Converts bytes up to a terminating zero to a text, also if they are no UTF-8.
pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

pub(crate) fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(crate) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}
