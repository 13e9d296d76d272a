//! First programs.
