//! Measurements, each a ratio between two things in one run.
