//! The rendezvous store: torch's TCPStore protocol, client and server, and how ranks find each other over it.
//!
//! A worker under `torchrun` is a client of the agent's store; under other launchers rank 0 serves the store itself.
//! The protocol has no description but torch's sources (`torch/csrc/distributed/c10d/TCPStore*.cpp`); [`wire`] states it.

mod client;
mod rendezvous;
mod server;
mod state;
pub mod wire;

use std::time::Duration;

pub use client::Store;
pub use rendezvous::{Notify, Rendezvous, RendezvousOptions};
pub use server::{StoreLimits, StoreServer};

/// What went wrong around the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nobody answers.
    #[error(
        "no store at {host}:{port} after {} s: {why}; is rank 0 (or the launcher's agent) running, and are MASTER_ADDR \
         and MASTER_PORT those of its host?",
        .waited.as_secs()
    )]
    Connect {
        /// As given.
        host: String,
        /// As given.
        port: u16,
        /// How long it was tried.
        waited: Duration,
        /// The last error.
        why: String,
    },
    /// Something answers, but not a store.
    #[error("{host}:{port} is no TCPStore, or one of another protocol version: {why}")]
    Protocol {
        /// As given.
        host: String,
        /// As given.
        port: u16,
        /// What was odd.
        why: String,
    },
    /// The connection broke.
    #[error(
        "the store at {host}:{port} went away during {what}: {why}; its process (rank 0 or the launcher's agent) has \
         probably ended"
    )]
    Lost {
        /// As given.
        host: String,
        /// As given.
        port: u16,
        /// The operation.
        what: &'static str,
        /// The system's words.
        why: String,
    },
    /// Keys did not appear in time.
    #[error("waited {:.1} s for {what}", .waited.as_secs_f64())]
    Timeout {
        /// Keys, or what they stand for.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// The server's port cannot be used.
    #[error("cannot serve the store on port {port}: {why}")]
    Bind {
        /// The port.
        port: u16,
        /// The system's words, and what to do.
        why: String,
    },
    /// A key, value or list beyond the protocol's limits.
    #[error("{what} of {got} beyond the store's limit of {limit}")]
    TooLarge {
        /// Key, value or list.
        what: &'static str,
        /// Its size.
        got: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The ranks contradict each other.
    #[error("{0}")]
    Contradiction(String),
}
