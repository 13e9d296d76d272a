//! Attach to a driver server; send, receive and wait.
