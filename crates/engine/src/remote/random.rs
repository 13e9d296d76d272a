//! Random numbers.

/// Random numbers of the kernel, many for each system call.
#[derive(Debug, Default)]
pub(super) struct Random {
    numbers: Vec<u32>,
}

impl Random {
    pub(super) fn next_u64(&mut self) -> u64 {
        u64::from(self.next()) << 32 | u64::from(self.next())
    }

    pub(super) fn next(&mut self) -> u32 {
        loop {
            if let Some(number) = self.numbers.pop() {
                return number;
            }
            let mut bytes = [0; 4096];
            // The kernel gives up to 256 bytes whole, and more unless a signal interrupts it; there is
            // no other failure once it has random numbers, which the server's start waited for.
            let filled =
                rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
            let filled = filled.unwrap_or(0);
            let all = bytes[..filled].chunks_exact(4);
            self.numbers
                .extend(all.filter_map(|one| Some(u32::from_ne_bytes(one.try_into().ok()?))));
        }
    }
}
