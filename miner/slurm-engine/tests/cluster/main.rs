//! The engine against a real Slurm, which each test starts for itself.

#[cfg(test)]
mod faults;
#[cfg(test)]
mod life;
#[cfg(test)]
mod pool;
#[cfg(test)]
mod support;
