//! Starts a manager by hand, for tests that need special arguments or variables.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::child::{Child, Ended};
use crate::runtime_dir::RuntimeDir;

/// Starts `rgapsd`, by a command that is not started yet, in a runtime directory. Returns once it listens.
pub fn start(dir: &RuntimeDir, mut command: Command) -> io::Result<Child> {
    dir.apply(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Child::spawn(&mut command)?;
    let address = SocketAddrUnix::new(dir.path().join("rgapsd.sock"))?;
    loop {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        if connect(&socket, &address).is_ok() {
            return Ok(child);
        }
        if let Ended::Exited(status) = child.wait_within(Duration::from_millis(1))? {
            return Err(io::Error::other(format!("rgapsd ended before it listened: {status}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_that_ends_before_it_listens_is_an_error() {
        let dir = RuntimeDir::new("ends").unwrap();
        let said = start(&dir, Command::new("true")).unwrap_err().to_string();
        assert!(said.contains("ended before it listened"), "{said}");
    }
}
