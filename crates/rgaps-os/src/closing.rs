//! Closes file descriptors that other processes sent, on a thread of its own. close(2) can block: that of a lingering socket's last file descriptor
//! waits for the socket's peer, and that of a file waits for its file system's server.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::linger;

static TO_CLOSE: LazyLock<Option<Mutex<Sender<OwnedFd>>>> = LazyLock::new(|| {
    let (sender, receiver) = channel::<OwnedFd>();
    let close = move || {
        receiver.into_iter().for_each(|fd| {
            linger::clear_of(&fd);
            drop(fd);
        });
    };
    let started = std::thread::Builder::new().name("close".to_owned()).spawn(close);
    started.is_ok().then(|| Mutex::new(sender))
});

/// Passes the file descriptors to a thread that only closes. For processes that do not fork.
pub fn elsewhere(fds: impl IntoIterator<Item = OwnedFd>) {
    for fd in fds {
        match &*TO_CLOSE {
            Some(sender) => drop(sender.lock().unwrap_or_else(PoisonError::into_inner).send(fd)),
            None => linger::clear_of(&fd),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn file_descriptors_that_are_passed_on_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let given = [(); 3].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let mut far = [(); 3].map(|()| listener.accept().unwrap().0);
        elsewhere(given.map(OwnedFd::from));
        for far in &mut far {
            far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(far.read(&mut [0]).unwrap(), 0);
        }
    }
}
