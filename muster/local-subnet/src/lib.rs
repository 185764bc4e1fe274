//! A subnet on one machine, as `muster up` runs it: what it needs beside the roles themselves.
//!
//! [`subnet_folder`] is its folder with the file that names every address, [`ports`] claims the addresses, [`programs`]
//! finds or builds the local chain and the programs of the images, and [`supervise`] keeps the processes running.

mod cargo_build;
pub mod ports;
pub mod programs;
pub mod subnet_folder;
pub mod supervise;
