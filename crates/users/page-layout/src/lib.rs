//! The parts that the pages of users and of operators share. Pure: HTML text is made of texts.
//!
//! [`headers_and_assets`] has the styles, the script and the policy under which browsers load nothing else.
//! [`document`] is what every page has around it. Every text from a stranger passes through [`text::plain`] where it
//! may have several lines, and through the escaping of `maud` everywhere.

pub mod document;
pub mod headers_and_assets;
pub mod text;
