//! A job's data over real sockets: honest servers, hostile ones, the hub's API and S3.

// `cfg(test)` makes clippy let helpers unwrap, too.
#[cfg(test)]
mod downloads;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod hub_server;
#[cfg(test)]
mod huggingface;
#[cfg(test)]
mod registry;
#[cfg(test)]
mod s3;
#[cfg(test)]
mod server;
#[cfg(test)]
mod support;
#[cfg(test)]
mod uploads;
