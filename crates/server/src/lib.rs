//! The driver server: engine, sessions, policy.
