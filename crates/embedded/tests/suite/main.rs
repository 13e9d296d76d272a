//! A driver for all threads of a program.

mod direct;
mod embedded;
mod forked;
mod protection;
