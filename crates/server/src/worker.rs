//! A process for each user, which makes every system call on an object that the user's applications
//! can reach.
//!
//! An application shares kernel objects with the server: its control connection, its doorbell, its
//! memory files. An application can prolong some system calls on such an object at will. The kernel
//! walks all waiters that the application attached to it, waits for a lock that the application
//! holds, or closes a descriptor that the application sent. The engine and the control thread make
//! no such call. They hand the object to the worker of the application's user, over a
//! private socket that never blocks. A worker that hangs holds up only this user. It is a separate
//! process because a thread that hangs in the kernel would keep the whole server from exiting.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | the messages between the control thread and a worker |
//! | [`link`] | the control thread's view of a worker: pending commands, and whether it hangs |
//! | [`workers`] | all workers, by user |
//! | [`owner`] | the users that a worker works for |
//! | [`pair`] | two users that share memory for writing, and have a worker for it |
//! | [`closer`], [`closes`] | threads that close descriptors, in turn for each user; how many may wait |
//! | [`spawner`] | the process from which the workers are forked |
//! | [`process`] | the worker's own loop |
//! | [`preparation`] | seals and allocates the memory of sessions |
//! | [`held`] | the connections and doorbells that a worker holds |
//! | [`pin`] | keeps the kernel from merging a session's pages |

pub(crate) mod closer;
pub(crate) mod closes;
pub(crate) mod held;
pub(crate) mod link;
pub(crate) mod owner;
pub(crate) mod pair;
#[allow(unsafe_code)]
pub(crate) mod pin;
mod preparation;
pub(crate) mod process;
#[allow(unsafe_code)]
pub(crate) mod spawner;
pub(crate) mod wire;
pub(crate) mod workers;

#[cfg(test)]
mod hole_tests;
#[cfg(test)]
mod tests;
