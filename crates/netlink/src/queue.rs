//! The kernel's queue of packets to send on an interface (`RTM_NEWQDISC`, `linux/pkt_sched.h`).
#![forbid(unsafe_code)]

use crate::error::Error;
use crate::message::{NLM_F_CREATE, NLM_F_REPLACE, Request};
use crate::socket::Netlink;

const RTM_NEWQDISC: u16 = 36;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
/// The place of an interface's first queue.
const TC_H_ROOT: u32 = u32::MAX;
/// `struct tcmsg`: family, index, handle, parent, information.
const TCMSG_BYTES: usize = 20;

impl Netlink {
    /// Gives an interface a first-in-first-out queue of at most so many bytes (`bfifo`). The kernel
    /// drops each packet that does not fit. Packets that a driver sends past the queue, such as
    /// those of AF_XDP, have no such limit.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn limit_queue(&mut self, name: &str, limit_bytes: u32) -> Result<(), Error> {
        let index = self.index(name)?;
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.carry_out("limit the queue of", name, RTM_NEWQDISC, flags, |request| {
            write_queue(request, index, limit_bytes);
        })
    }
}

fn write_queue(request: &mut Request, index: u32, limit_bytes: u32) {
    let mut part = [0; TCMSG_BYTES];
    part[4..8].copy_from_slice(&index.to_ne_bytes());
    part[12..16].copy_from_slice(&TC_H_ROOT.to_ne_bytes());
    request.fixed(&part);
    request.attribute_text(TCA_KIND, "bfifo");
    request.attribute_u32(TCA_OPTIONS, limit_bytes);
}
