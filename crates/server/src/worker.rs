//! A process for each user, which makes every system call on an object that the user's applications
//! can reach.
//!
//! An application shares kernel objects with the server: its control connection, its doorbell, its
//! memory files. Some system calls on such an object last as long as the application likes: the kernel
//! walks all waiters that the application attached to it, waits for a lock that the application holds,
//! or closes a descriptor that the application sent. The engine and the control thread make none of
//! them. They hand the object to the worker of the application's user, over a private socket that never
//! blocks. A worker that hangs holds up this user alone, and a process of its own because a thread that
//! hangs in the kernel would keep the whole server from exiting.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | what the control thread and a worker say to each other |
//! | [`link`] | a worker as the control thread has it: what is to be sent, and whether it hangs |
//! | [`workers`] | all workers, by user |
//! | [`spawner`] | the process that the workers are made from |
//! | [`process`] | the worker's own loop |
//! | [`held`] | what a worker holds: connections and doorbells |
//! | [`pin`] | keeps the kernel from merging a session's pages |

pub(crate) mod held;
pub(crate) mod link;
#[allow(unsafe_code)]
pub(crate) mod pin;
pub(crate) mod process;
#[allow(unsafe_code)]
pub(crate) mod spawner;
pub(crate) mod wire;
pub(crate) mod workers;

#[cfg(test)]
mod tests;
