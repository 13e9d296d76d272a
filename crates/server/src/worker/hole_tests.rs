//! An application that punches holes into its memory while the worker seals it and looks for holes.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use towpath_memory::SharedFile;

use super::preparation::seal;

const TRIALS: u32 = 12_000;

fn spin(times: u32) {
    (0..times).for_each(|_| std::hint::spin_loop());
}

/// A hole comes before the seal, and the worker finds it, or the seal refuses it. A worker that looked first and sealed
/// then would take memory with a hole, and allocate a page that no process can free.
#[test]
fn a_hole_is_found_or_refused_at_any_moment() {
    let ((give, given), (tell, told)) = (channel::<OwnedFd>(), channel());
    let trial = AtomicU32::new(0);
    let (mut before, mut after) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let tell = tell;
            for (number, file) in (1..).zip(given) {
                while trial.load(Ordering::Acquire) != number {
                    std::hint::spin_loop();
                }
                spin(number % 61);
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                tell.send(rustix::fs::fallocate(&file, hole, 4096, 4096)).unwrap();
            }
        });
        for number in 1..=TRIALS {
            let shared = SharedFile::create("worker-test", 8192).unwrap();
            shared.map_writable().unwrap().allocate().unwrap();
            let file: OwnedFd = shared.into();
            give.send(file.try_clone().unwrap()).unwrap();
            trial.store(number, Ordering::Release);
            spin(number / 61 % 61);
            let is_allocated = seal(&file).unwrap();
            let punched = told.recv().unwrap();
            match punched {
                Ok(()) => before += 1,
                Err(errno) => {
                    assert_eq!(errno, Errno::PERM);
                    after += 1;
                }
            }
            assert_eq!(is_allocated, punched.is_err(), "trial {number}");
        }
        drop(give);
    });
    println!("{before} holes before the seal, {after} refused");
}
