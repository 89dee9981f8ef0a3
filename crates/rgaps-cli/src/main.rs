//! The `rgaps` command.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rgaps_cli::{CommandError, demo, doctor, hosts, publish, ready, subscribe, topic, two_hosts};
use rgaps_command::output::{self, Format};
use rgaps_control::Config;

/// Publish and subscribe to device buffers: one shared copy on each host.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Print JSON, one document a line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show RGAPS on one machine: two hosts, eleven processes, every sample checked.
    Demo(demo::Arguments),
    #[command(hide = true)]
    DemoPublisher(demo::PublisherArguments),
    #[command(hide = true)]
    DemoSubscriber(demo::SubscriberArguments),
    /// Publish files on a topic.
    Pub(publish::Arguments),
    /// Take messages from a topic.
    Sub(subscribe::Arguments),
    /// Show topics and their traffic.
    #[command(subcommand)]
    Topic(topic::Command),
    /// List the other hosts that this host knows, and their topics.
    Hosts {
        /// Also topics with a token that starts with '_', such as those of `rosidl::Buffer`.
        #[arg(long)]
        include_hidden_topics: bool,
    },
    /// Wait until a manager serves this host, or until none does.
    Ready(ready::Arguments),
    #[command(hide = true)]
    TwoHosts(two_hosts::Arguments),
    /// Check this machine, and say what to do about each problem.
    Doctor,
    /// Measure, each figure beside its physical limit.
    Bench(rgaps_bench::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    output::log();
    // Checked even if a running manager will not read it. The doctor reports errors itself.
    if let Some(error) = Config::load(&BTreeMap::new()).err().filter(|_| !matches!(arguments.command, Command::Doctor))
    {
        return failure(&error);
    }
    let format = Format::from_json_flag(arguments.json);
    let outcome: Result<(), CommandError> = match &arguments.command {
        Command::Demo(arguments) => demo::run(arguments, format),
        Command::DemoPublisher(arguments) => demo::run_publisher(arguments),
        Command::DemoSubscriber(arguments) => demo::run_subscriber(arguments),
        Command::Pub(arguments) => publish::run(arguments, format),
        Command::Sub(arguments) => subscribe::run(arguments, format),
        Command::Topic(command) => topic::run(command, format),
        Command::Hosts { include_hidden_topics } => hosts::run(*include_hidden_topics, format),
        Command::Ready(arguments) => ready::run(arguments, format),
        Command::TwoHosts(arguments) => two_hosts::run(arguments),
        Command::Bench(arguments) => rgaps_bench::run(arguments, format).map_err(CommandError::from),
        Command::Doctor if doctor::run(format) => Ok(()),
        Command::Doctor => {
            Err(CommandError::Other("something that RGAPS needs is missing; see the findings above".to_owned()))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error),
    }
}

fn failure(error: &dyn std::error::Error) -> ExitCode {
    output::complain(format_args!("rgaps: {error}"));
    ExitCode::FAILURE
}
