//! The `rgaps` command, as a library that its binary and tests call.
//!
//! `publish` and `subscribe` move files through a topic, `topic` shows topics, `demo` runs two hosts, `doctor` checks the machine.
//! `ready` and `two_hosts` are for launch files. `edges` and `scene` make payloads, `interrupt` handles Ctrl-C, `parsers` reads arguments. The benches are the crate
//! rgaps-bench; output and the choice of a device are rgaps-command.

#![forbid(unsafe_code)]

pub mod demo;
pub mod doctor;
pub mod edges;
pub mod hosts;
pub mod interrupt;
mod parsers;
pub mod publish;
pub mod ready;
pub mod scene;
pub mod subscribe;
pub mod topic;
pub mod two_hosts;

/// A command failed. The text says what failed and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A node, publisher or subscriber could not be made.
    #[error(transparent)]
    Node(#[from] rgaps::NodeError),
    /// A message could not be published.
    #[error(transparent)]
    Publish(#[from] rgaps::PublishError),
    /// A message could not be taken.
    #[error(transparent)]
    Take(#[from] rgaps::TakeError),
    /// An input could not be read.
    #[error(transparent)]
    Load(#[from] rgaps_media::LoadError),
    /// An output could not be written.
    #[error(transparent)]
    Save(#[from] rgaps_media::SaveError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] rgaps_command::device::DeviceError),
    /// A bench could not run, or missed a bound.
    #[error(transparent)]
    Bench(#[from] rgaps_bench::BenchError),
    /// The kernel refused a call.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Any other failure.
    #[error("{0}")]
    Other(String),
}

/// Creates a folder for output, and those above it.
fn create_folder(path: &std::path::Path) -> Result<(), CommandError> {
    let failed = |error| CommandError::Other(format!("the folder {} cannot be created: {error}", path.display()));
    std::fs::create_dir_all(path).map_err(failed)
}
