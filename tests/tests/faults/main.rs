//! Faults on real processes: whatever can be killed, cut, lost, slow or hostile, by theme. One program holds them all,
//! because each further one is linked with every role.

mod database_failover;
mod engine_output;
mod hostile;
mod matrix;
mod outlive;
mod partition;
mod persistent;
mod queue;
mod replicas;
mod slow_images;
mod standby;
