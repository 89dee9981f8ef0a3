//! ZeroMQ: one PUB socket and SUB sockets, by libzmq. No high-water mark, so that no message is dropped.

use zmq::{Context, Message, Socket};

use crate::Failed;
use crate::protocol::{self, Reporter};

pub(crate) fn version() -> String {
    let (major, minor, patch) = zmq::version();
    format!("{major}.{minor}.{patch}")
}

/// A publisher.
pub(crate) struct Publisher {
    socket: Socket,
    bytes: usize,
}

impl Publisher {
    pub(crate) fn new(address: &str, bytes: usize) -> Result<Self, Failed> {
        let socket = Context::new().socket(zmq::PUB)?;
        socket.set_sndhwm(0)?;
        socket.set_linger(0)?;
        socket.bind(address)?;
        Ok(Self { socket, bytes })
    }
}

impl protocol::Publisher for Publisher {
    type Message = Message;

    fn loan(&mut self, fill: impl FnOnce(&mut [u8])) -> Result<Message, Failed> {
        let mut message = Message::with_size(self.bytes);
        fill(&mut message);
        Ok(message)
    }

    fn publish(&mut self, message: Message) -> Result<(), Failed> {
        Ok(self.socket.send(message, 0)?)
    }
}

/// Reports messages until standard input ends.
pub(crate) fn subscribe(address: &str, reporter: Reporter) -> Result<(), Failed> {
    let socket = Context::new().socket(zmq::SUB)?;
    socket.set_rcvhwm(0)?;
    socket.set_linger(0)?;
    socket.connect(address)?;
    socket.set_subscribe(b"")?;
    std::thread::spawn(|| {
        protocol::wait_for_the_end();
        std::process::exit(0);
    });
    reporter.ready();
    let mut message = Message::new();
    loop {
        socket.recv(&mut message, 0)?;
        reporter.got(std::iter::once(&*message));
    }
}
