//! Publishers and subscribers of other middleware, which `rgaps bench local --peers` and `rgaps bench e2e --peers` measure beside RGAPS.
//!
//! `protocol` is what the bench says to a process, and what the process answers. Each other file is one middleware.

#![forbid(unsafe_code)]

mod protocol;
#[cfg(feature = "zenoh")]
mod zenoh;
#[cfg(feature = "zeromq")]
mod zeromq;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

/// Command line.
#[derive(Clone, Debug, Parser)]
#[command(about)]
enum Command {
    /// Print the name and version of each middleware that is built in.
    Versions,
    /// Publish when standard input says so.
    Publisher {
        /// The middleware.
        system: System,
        /// Where it publishes.
        address: String,
        /// Bytes of a message.
        #[arg(long)]
        bytes: usize,
        /// Messages that may be under way, where the middleware asks for room in advance.
        #[arg(long, default_value_t = 2)]
        depth: usize,
    },
    /// Report messages on standard output.
    Subscriber {
        /// The middleware.
        system: System,
        /// Where the publisher is.
        address: String,
        /// Read every cache line of a message before reporting it.
        #[arg(long)]
        read: bool,
    },
}

/// A middleware and its transport. All can be named in every build, so that a build without one says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum System {
    /// zenoh with its shared memory.
    ZenohShm,
    /// zenoh over TCP.
    ZenohTcp,
    /// ZeroMQ, over what the address says: ipc or tcp.
    Zeromq,
}

/// Any error, as a text.
type Failed = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    match run(&Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rgaps-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<(), Failed> {
    match command {
        Command::Versions => {
            #[cfg(feature = "zenoh")]
            println!("zenoh {}", zenoh::version());
            #[cfg(feature = "zeromq")]
            println!("ZeroMQ {}", zeromq::version());
            Ok(())
        }
        #[cfg_attr(not(feature = "zenoh"), expect(unused_variables, reason = "only zenoh asks for room in advance"))]
        Command::Publisher { system, address, bytes, depth } => match system {
            #[cfg(feature = "zenoh")]
            System::ZenohShm => protocol::publish(&mut zenoh::ShmPublisher::new(address, *bytes, *depth)?),
            #[cfg(feature = "zenoh")]
            System::ZenohTcp => protocol::publish(&mut zenoh::TcpPublisher::new(address, *bytes)?),
            #[cfg(feature = "zeromq")]
            System::Zeromq => protocol::publish(&mut zeromq::Publisher::new(address, *bytes)?),
            #[cfg(not(all(feature = "zenoh", feature = "zeromq")))]
            other => Err(left_out(*other)),
        },
        Command::Subscriber { system, address, read } => {
            let reporter = protocol::Reporter::new(*read);
            match system {
                #[cfg(feature = "zenoh")]
                System::ZenohShm => zenoh::subscribe(address, true, reporter),
                #[cfg(feature = "zenoh")]
                System::ZenohTcp => zenoh::subscribe(address, false, reporter),
                #[cfg(feature = "zeromq")]
                System::Zeromq => zeromq::subscribe(address, reporter),
                #[cfg(not(all(feature = "zenoh", feature = "zeromq")))]
                other => Err(left_out(*other)),
            }
        }
    }
}

#[cfg(not(all(feature = "zenoh", feature = "zeromq")))]
fn left_out(system: System) -> Failed {
    let value = system.to_possible_value();
    format!("built without {}", value.as_ref().map_or("it", |value| value.get_name())).into()
}
