//! `rgaps ready`: waits until a manager serves this host, so that a script knows when to start clients; or until none does.

use std::time::{Duration, Instant};

use rgaps_command::output::{self, Format};
use rgaps_control::running::Running;
use rgaps_control::runtime_path::RuntimePath;
use rgaps_os::{PidFd, poll};

use crate::CommandError;
use crate::interrupt::Interrupt;
use crate::parsers::seconds;

/// How often it checks.
const LOOK: Duration = Duration::from_millis(20);
/// How often it checks whether a manager whose process it cannot watch still serves. Not often: each check is a connection, and those that a stopped
/// manager has not taken count.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Arguments of `rgaps ready`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Wait at most this many seconds; 0 checks once.
    #[arg(long, default_value = "30", value_parser = seconds)]
    timeout: Duration,

    /// Wait until no manager serves this host.
    #[arg(long)]
    gone: bool,
}

/// Runs `rgaps ready`. It starts no manager; a manager that any process started will do.
pub fn run(arguments: &Arguments, format: Format) -> Result<(), CommandError> {
    let interrupt = Interrupt::install()?;
    let deadline = Instant::now() + arguments.timeout;
    let at = RuntimePath::of_environment();
    let dir = &at.path;
    loop {
        let socket = Running::socket();
        let found = Running::find();
        if found.is_none() == arguments.gone {
            match (found, format) {
                (None, _) => {}
                (Some(running), Format::Json) => output::json(&serde_json::json!({ "pid": running.pid, "dir": dir })),
                (Some(running), Format::Human) => output::line(format_args!("{running} serves {}", dir.display())),
            }
            return Ok(());
        }
        if arguments.gone && interrupt.is_set() {
            return Ok(()); // Nobody waits for it any more.
        }
        if Instant::now() >= deadline || interrupt.is_set() {
            return Err(CommandError::Other(match found {
                Some(running) => format!("{running} still serves {}", dir.display()),
                None => at.no_manager().to_string(),
            }));
        }
        match found.and_then(|running| PidFd::open(running.pid).ok()) {
            Some(process) => wait_for_end(&process, socket, deadline, &interrupt)?,
            None => {
                interrupt.sleep_until(deadline.min(Instant::now() + if arguments.gone { LOOK_AGAIN } else { LOOK }))
            }
        }
    }
}

/// Waits until the process has ended or the socket is another one, until `deadline` or an interrupt at most.
fn wait_for_end(
    process: &PidFd,
    socket: Option<(u64, u64)>,
    deadline: Instant,
    interrupt: &Interrupt,
) -> std::io::Result<()> {
    while !interrupt.is_set() && Running::socket() == socket {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || poll::readable(process, left.min(interrupt.patience()))? {
            return Ok(());
        }
    }
    Ok(())
}
