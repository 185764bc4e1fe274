//! The file store from outside: real HTTP over a folder and over a bucket, metadata on every database engine at hand.

#[cfg(test)]
mod attempt_urls;
#[cfg(test)]
mod bucket;
#[cfg(test)]
mod checkpoint_blocks;
#[cfg(test)]
mod http;
#[cfg(test)]
mod misuse;
#[cfg(test)]
mod support;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod upload_permits;
