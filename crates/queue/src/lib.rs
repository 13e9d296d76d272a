//! Asynchronous queues, doorbells, events and frame allocators in shared memory.
