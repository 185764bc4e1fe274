//! The web page: sign-in, pages, forms, and what strangers and other accounts get.

mod browser;
mod html;
mod misuse;
mod pages;
mod session_end;
mod sign_in;
