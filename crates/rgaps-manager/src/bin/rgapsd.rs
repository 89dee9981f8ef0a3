//! `rgapsd`: the host manager. Clients start it on demand. Start it by hand for another configuration, or from a service manager.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rgaps_control::range::Unset;
use rgaps_control::spawn::StartOutcome;
use rgaps_manager::daemon::{self, Options};
use rgaps_manager::log;

/// The RGAPS host manager: one per host, started by the first client that needs it.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Runtime directory (default: $RGAPS_RUNTIME_DIR, else $XDG_RUNTIME_DIR/rgaps if that is this user's, else /tmp/rgaps-UID).
    #[arg(long)]
    runtime_dir: Option<PathBuf>,
    /// A configuration key and its value; may be repeated: --set ring_bytes=16777216.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    settings: Vec<(String, String)>,
    /// The address of another host's manager; may be repeated: --peer tcp/10.0.0.2:7447.
    #[arg(long)]
    peer: Vec<String>,
    /// Memory of messages: auto, host, cuda, cuda:N or cuda:GPU-<uuid>.
    #[arg(long)]
    device: Option<String>,
    /// If no setting decides about the network, open it to the subnet, like ROS 2 nodes. ROS 2 nodes pass this flag.
    #[arg(long)]
    ros: bool,
    /// Detach into a new session, and report on standard output whether the manager listens. Clients pass this flag.
    #[arg(long)]
    on_demand: bool,
    /// Passed by --on-demand to the detached process.
    #[arg(long, hide = true)]
    detached: bool,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.detached {
        daemon::leave_starter();
    }
    log::start();
    let is_awaited = arguments.on_demand || arguments.detached;
    let outcome = if arguments.on_demand {
        let mut again: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--on-demand").collect();
        again.push("--detached".to_owned());
        daemon::detach(&again)
    } else {
        let mut flags: BTreeMap<String, String> = arguments.settings.into_iter().collect();
        if !arguments.peer.is_empty() {
            flags.insert("peers".to_owned(), arguments.peer.join(","));
        }
        flags.extend(arguments.device.map(|device| ("device".to_owned(), device)));
        let listens = || {
            if is_awaited {
                StartOutcome::Listens.say();
            }
        };
        let unset = if arguments.ros { Unset::Subnet } else { Unset::Local };
        daemon::run(&Options { runtime_dir: arguments.runtime_dir, flags, unset }, listens)
    };
    log::flush();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::complain(&format!("rgapsd: {error}"));
            if is_awaited {
                error.outcome().say();
            }
            ExitCode::FAILURE
        }
    }
}
