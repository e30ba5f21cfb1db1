//! The face as its clients see it: the real binary on a real socket, answers compared byte for byte.

mod contract;
mod lifecycle;
mod load;
mod ssh;
mod streams;
