//! Starts commands in a pid namespace, like the first process of a container.
//!
//! Unsafe lives here because code between fork and exec may only make system calls
//! (`signal-safety(7)`), and for the calls that have no safe wrapper.

use std::ffi::CStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null;

/// Makes a command start as the first process of a pid namespace that has its own `/proc`. The process that `spawn`
/// returns is the parent of the first process. The parent waits, and ends with the status of the first process, or
/// with 1 if a signal killed that process. If the parent is killed, the kernel ends all processes of the namespace.
///
/// The caller needs the rights that a test has in its network namespace.
pub fn in_pid_namespace(command: &mut Command) {
    // SAFETY: `enter` makes only system calls.
    unsafe { command.pre_exec(enter) };
}

fn enter() -> io::Result<()> {
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::SIGCHLD;
    // SAFETY: the call has no pointer, and works as `fork`: the child has copies of all memory.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, 0, 0, 0) };
    match child {
        ..0 => return Err(io::Error::last_os_error()),
        0 => {}
        child => wait_and_end(child as libc::pid_t),
    }
    // SAFETY: no pointer.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"proc", c"/proc", 0)
}

/// Waits for the first process of the namespace, and ends this process with its status.
fn wait_and_end(child: libc::pid_t) -> ! {
    // Only the child may hold the command's pipes, and the pipe at whose end `spawn` returns.
    // SAFETY: this process uses no descriptor any more, and ends here.
    unsafe { libc::close_range(0, libc::c_uint::MAX, 0) };
    let mut status = 0;
    // SAFETY: the address is that of a number of this function.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {}
    let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1 };
    // SAFETY: ends the process without its handlers, which the caller of `fork` must not run.
    unsafe { libc::_exit(code) }
}

fn mount(kind: &CStr, on: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: all pointers are to texts that end with a zero and live during the call, or null.
    check(unsafe { libc::mount(kind.as_ptr(), on.as_ptr(), kind.as_ptr(), flags, null()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This crate's own tests run without a namespace, so the start may be refused.
    #[test]
    fn a_refusal_is_the_error_of_the_start_or_the_process_is_number_1() {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "echo $$; exit 3"]).stdin(std::process::Stdio::null());
        in_pid_namespace(&mut shell);
        match shell.output() {
            Ok(output) => {
                assert_eq!(output.stdout, b"1\n");
                assert_eq!(output.status.code(), Some(3));
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}"),
        }
    }
}
