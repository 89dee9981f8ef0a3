//! `rgaps ready`: waits until a manager serves this host, so that a script knows when to start clients.

use std::time::{Duration, Instant};

use rgaps_command::output::{self, Format};
use rgaps_control::running::Running;
use rgaps_control::runtime_path::RuntimePath;

use crate::CommandError;
use crate::interrupt::Interrupt;

/// How often it checks.
const LOOK: Duration = Duration::from_millis(20);

/// Arguments of `rgaps ready`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Wait at most this many seconds; 0 checks once.
    #[arg(long, default_value_t = 30.0)]
    timeout: f64,
}

/// Runs `rgaps ready`. It starts no manager; a manager that any process started will do.
pub fn run(arguments: &Arguments, format: Format) -> Result<(), CommandError> {
    let interrupt = Interrupt::install()?;
    let deadline = Instant::now() + Duration::from_secs_f64(arguments.timeout.clamp(0.0, 1e6));
    let at = RuntimePath::of_environment();
    let dir = &at.path;
    loop {
        if let Some(running) = Running::find() {
            match format {
                Format::Json => output::json(&serde_json::json!({ "pid": running.pid, "dir": dir })),
                Format::Human => output::line(format_args!("{running} serves {}", dir.display())),
            }
            return Ok(());
        }
        if Instant::now() >= deadline || interrupt.is_set() {
            return Err(CommandError::Other(at.no_manager().to_string()));
        }
        interrupt.sleep_until(Instant::now() + LOOK);
    }
}
