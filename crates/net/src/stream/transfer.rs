//! Reads and writes: of several buffers under one lock, as if the buffers were one.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use super::{CHUNK, Inner, TcpStream};

impl TcpStream {
    fn receive_parts(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Inner { network, id, waiter, options, .. } = &*self.inner;
        let shared = network.checked()?;
        if parts.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        shared.block_on(waiter, options.reading(), false, |stack, now| {
            let mut done = 0;
            for part in parts.iter_mut().filter(|part| !part.is_empty()) {
                let len = part.len().min(2 * CHUNK - done);
                // A read of no more data would take the reason why the connection ended: the next
                // call returns it.
                if len == 0 || (done > 0 && stack.tcp_queues(*id)?.1 == 0) {
                    break;
                }
                done += stack.tcp_recv(now, *id, &mut part[..len])?;
            }
            Ok(done)
        })
    }

    fn transmit_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Inner { network, id, waiter, options, .. } = &*self.inner;
        let shared = network.checked()?;
        if parts.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        shared.block_on(waiter, options.writing(), true, |stack, _| {
            let mut filled = parts.iter().filter(|part| !part.is_empty());
            let first = filled.next().map_or(&[][..], |part| part);
            let mut wanted = first.len().min(CHUNK);
            let mut done = stack.tcp_send(*id, &first[..wanted])?;
            for part in filled {
                let len = part.len().min(CHUNK - wanted);
                // Without room for a part, the next call waits.
                if len == 0 || done < wanted {
                    break;
                }
                wanted += len;
                done += stack.tcp_send(*id, &part[..len]).unwrap_or(0);
            }
            Ok(done)
        })
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, false)
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive_parts(parts)
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, false)
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive_parts(parts)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.transmit(data)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.transmit_parts(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.network.checked().map(|_| ())
    }
}

impl Write for TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.transmit(data)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.transmit_parts(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.network.checked().map(|_| ())
    }
}
