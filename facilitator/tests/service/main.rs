//! The facilitator from outside: real HTTP and real websockets in one process, with scripted validators and users.

#[cfg(test)]
mod account_deletion;
#[cfg(test)]
mod accounts;
#[cfg(test)]
mod answer_reports;
#[cfg(test)]
mod capacity;
#[cfg(test)]
mod computehorde;
#[cfg(test)]
mod create;
#[cfg(test)]
mod facilitator;
#[cfg(test)]
mod files;
#[cfg(test)]
mod garbage;
#[cfg(test)]
mod gateways;
#[cfg(test)]
mod list;
#[cfg(test)]
mod live;
#[cfg(test)]
mod login;
#[cfg(test)]
mod miners;
#[cfg(test)]
mod models;
#[cfg(test)]
mod output;
#[cfg(test)]
mod rejections;
#[cfg(test)]
mod reports;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod sdk;
#[cfg(test)]
mod session;
#[cfg(test)]
mod terms;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod user;
#[cfg(test)]
mod validator;
#[cfg(test)]
mod web;
#[cfg(test)]
mod webhooks;
