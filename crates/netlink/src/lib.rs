//! The few rtnetlink messages that Towpath needs.
