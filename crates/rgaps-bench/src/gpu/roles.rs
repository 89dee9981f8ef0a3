//! The processes of the GPU benches: `rgaps bench gpu-role`, started only by other benches.
//!
//! Each reports on the bench's page when it has done its part of a message and checked it. A process that fails prints why to standard error, and
//! marks its slot on the page as failed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rgaps::device::{Backend, Choice};
use rgaps::types::Bytes;
use rgaps::{History, Node, Sample, Subscriber, SubscriberQos};
use rgaps_link::RingMemory;
use rgaps_os::{SharedBytes, clock};
use rgaps_shm::notify::Wake;

use super::bell::{waiting, waking};
use super::content::Content;
use super::copies::{Block, Staging, bare_to_host, pinned};
use crate::BenchError;
use crate::page::{BenchWatch, MARK, Page, open, path};

const BENCH: &str = "gpu-role";
/// How often it checks whether to exit.
const TICK: Duration = Duration::from_millis(500);
/// Offset of a message's length in a payload's first page.
const LENGTH: u64 = 0;
/// Offset of the message in a payload.
const DATA: u64 = 4096;

/// Command line of a process.
#[derive(Clone, Debug, clap::Args)]
pub struct RoleArgs {
    /// Path of the shared page.
    #[arg(long)]
    page: String,
    /// The number of this process.
    #[arg(long)]
    slot: u64,
    /// Length of the longest message.
    #[arg(long)]
    bytes_max: u64,
    #[command(subcommand)]
    role: Role,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Role {
    /// Takes messages and stages them, like the publish manager: path 1.
    Stager {
        #[command(flatten)]
        topic: Topic,
        /// Bytes of a chunk.
        #[arg(long)]
        chunk_bytes: u64,
    },
    /// Takes messages in place.
    Subscriber {
        #[command(flatten)]
        topic: Topic,
    },
    /// The baseline's subscriber: copies each payload to its own device memory.
    Copier {
        #[command(flatten)]
        payload: PayloadArgs,
        /// The device.
        #[arg(long)]
        device: Choice,
    },
    /// The baseline's manager: reads each whole message from standard input before it sends it on.
    Relay {
        /// Send it to standard output.
        #[arg(long)]
        forward: bool,
    },
    /// The baseline's other manager: reads each message from standard input into the memory from which its subscribers copy.
    Lander {
        #[command(flatten)]
        payload: PayloadArgs,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct Topic {
    /// The manager's directory.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// The topic.
    #[arg(long)]
    topic: String,
}

#[derive(Clone, Debug, clap::Args)]
struct PayloadArgs {
    /// Path of the payload.
    #[arg(long)]
    payload: String,
    /// Name of the iceoryx2 service.
    #[arg(long)]
    service: String,
}

/// Runs a role until the bench ends.
pub fn run(args: &RoleArgs) -> Result<(), BenchError> {
    let worker = Worker { page: Page::open(BENCH, &args.page)?, slot: args.slot, bytes_max: args.bytes_max };
    let outcome = match &args.role {
        Role::Stager { topic, chunk_bytes } => worker.stage(topic, *chunk_bytes),
        Role::Subscriber { topic } => worker.subscribe(topic),
        Role::Copier { payload, device } => worker.copy(payload, *device),
        Role::Relay { forward } => worker.relay(*forward),
        Role::Lander { payload } => worker.land(payload),
    };
    if let Err(error) = outcome {
        // Print before marking the page: the bench ends this process as soon as it sees the mark.
        eprintln!("rgaps: {error}");
        worker.page.failed(worker.slot);
    }
    Ok(())
}

struct Worker {
    page: Page,
    slot: u64,
    bytes_max: u64,
}

impl Worker {
    fn stage(&self, topic: &Topic, chunk_bytes: u64) -> Result<(), BenchError> {
        let (node, subscriber) = topic.join()?;
        let backend = node.device().clone();
        let staging = Staging::new(&backend, chunk_bytes).map_err(failed)?;
        let whole = pinned(backend.as_ref(), self.bytes_max).map_err(failed)?;
        let stream = backend.stream().map_err(failed)?;
        self.take_all(&subscriber, |frame, content| {
            let part = frame.part().map_err(failed)?;
            let bare = || {
                let bare = bare_to_host(backend.as_ref(), &stream, part, &whole, content.bytes).map_err(failed)?;
                let found = whole.mapping().shared(0, content.bytes).map_err(failed)?;
                content.check(found, 0).map_err(failed)?;
                Ok::<_, BenchError>(bare)
            };
            let staged = || staging.run(part, content).map_err(failed);
            // In turns, so that neither is always the one that finds the message in a cache.
            let (staged, bare) = match content.sequence % 2 {
                0 => (staged()?, bare()?),
                _ => {
                    let bare = bare()?;
                    (staged()?, bare)
                }
            };
            Ok([ns(staged), ns(bare), 0, 0])
        })
    }

    fn subscribe(&self, topic: &Topic) -> Result<(), BenchError> {
        let (node, subscriber) = topic.join()?;
        let backend = node.device().clone();
        let stream = backend.stream().map_err(failed)?;
        self.take_all(&subscriber, |frame, content| {
            let part = frame.part().map_err(failed)?;
            content.check_on_device(backend.as_ref(), &stream, part).map_err(failed)?;
            let ((device, inode), offset) = frame.mapped_from();
            Ok([device, inode, offset, 0])
        })
    }

    /// Takes messages until the bench ends. After releasing a message, reports when it was taken and the result of `look`.
    fn take_all(
        &self,
        subscriber: &Subscriber<Bytes>,
        mut look: impl FnMut(&Sample<Bytes>, Content) -> Result<[u64; 4], BenchError>,
    ) -> Result<(), BenchError> {
        self.page.ready(self.slot);
        let mut watch = BenchWatch::new();
        while watch.should_run(&self.page) {
            let Some(frame) = subscriber.wait(TICK).map_err(failed)? else { continue };
            let taken = clock::monotonic_ns();
            let content = Content { sequence: frame.info().sequence, bytes: frame.info().bytes };
            let told = look(&frame, content)?;
            drop(frame);
            self.page.prove(self.slot, told);
            self.page.woke(self.slot, content.sequence, taken);
            watch.renew();
        }
        Ok(())
    }

    fn copy(&self, args: &PayloadArgs, device: Choice) -> Result<(), BenchError> {
        let chosen = rgaps::device::open(device).map_err(failed)?;
        let Some(cuda) = chosen.backend.as_cuda() else { return Err(failed("the device is no GPU")) };
        let block = Block::new(cuda, self.bytes_max).map_err(failed)?;
        let stream = cuda.stream().map_err(failed)?;
        let payload = Payload::open(&args.payload, self.bytes_max)?;
        let mut bell = waiting(&self.page, &args.service)?;
        let mut last = 0;
        self.page.ready(self.slot);
        let mut watch = BenchWatch::new();
        while watch.should_run(&self.page) {
            bell.arm().map_err(failed)?;
            let sequence = self.page.round().load(Ordering::SeqCst);
            if sequence == last || sequence == MARK {
                bell.wait(TICK).map_err(failed)?;
                continue;
            }
            let received = clock::monotonic_ns();
            let content = Content { sequence, bytes: payload.length()? };
            cuda.copy_from_pageable(payload.message(content.bytes)?, block.part()).map_err(failed)?;
            let done = clock::monotonic_ns();
            content.check_on_device(cuda, &stream, block.part()).map_err(failed)?;
            self.page.prove(self.slot, [received, done - received, 0, 0]);
            self.page.woke(self.slot, sequence, done);
            last = sequence;
            watch.renew();
        }
        Ok(())
    }

    fn relay(&self, forward: bool) -> Result<(), BenchError> {
        let mut input = File::from(inherited(std::io::stdin().as_fd())?);
        let mut output = File::from(inherited(std::io::stdout().as_fd())?);
        let mut message = vec![1; self.bytes_max as usize];
        self.page.ready(self.slot);
        while let Some(content) = read_head(&mut input, self.bytes_max)? {
            let message = &mut message[..content.bytes as usize];
            input.read_exact(message).map_err(failed)?;
            let received = clock::monotonic_ns();
            if forward {
                write_message(&mut output, content, message).map_err(failed)?;
            }
            content.check(&message[..], 0).map_err(failed)?;
            self.page.woke(self.slot, content.sequence, received);
        }
        Ok(())
    }

    fn land(&self, args: &PayloadArgs) -> Result<(), BenchError> {
        let mut input = File::from(inherited(std::io::stdin().as_fd())?);
        let payload = Payload::open(&args.payload, self.bytes_max)?;
        let mut bell = waking(&self.page, &args.service)?;
        self.page.ready(self.slot);
        while let Some(content) = read_head(&mut input, self.bytes_max)? {
            payload.fill(&input, content.bytes)?;
            payload.announce(&self.page, content, bell.as_mut())?;
            self.page.woke(self.slot, content.sequence, clock::monotonic_ns());
        }
        Ok(())
    }
}

impl Topic {
    fn join(&self) -> Result<(Node, Subscriber<Bytes>), BenchError> {
        let node = Node::builder().name("rgaps bench").runtime_dir(&self.runtime_dir).no_autostart().build();
        let node = node.map_err(failed)?;
        let qos = SubscriberQos { history: History::KeepAll, ..SubscriberQos::default() };
        let subscriber = node.subscriber_with(&self.topic, qos).map_err(failed)?;
        Ok((node, subscriber))
    }
}

/// Host shared memory from which the baseline's subscribers copy: iceoryx2's loaned samples, without their bookkeeping.
pub(super) struct Payload(Arc<RingMemory>);

impl Payload {
    /// Made with every page present.
    pub(super) fn new(bytes_max: u64) -> Result<Self, BenchError> {
        Ok(Self(super::super::link::source(DATA + bytes_max)?))
    }

    fn open(path: &str, bytes_max: u64) -> Result<Self, BenchError> {
        Ok(Self(RingMemory::from_fd(open(BENCH, path)?, DATA + bytes_max).map_err(failed)?))
    }

    /// The path by which other processes open it.
    pub(super) fn path(&self) -> String {
        path(&self.0.fd())
    }

    /// Writes a message's marks.
    pub(super) fn write(&self, content: Content) -> Result<(), BenchError> {
        content.write(self.0.mapping(), DATA).map_err(failed)
    }

    /// Notifies the subscribers of a written message.
    pub(super) fn announce(&self, page: &Page, content: Content, bell: &mut dyn Wake) -> Result<(), BenchError> {
        self.0.mapping().atomic_u64(LENGTH).map_err(failed)?.store(content.bytes, Ordering::Release);
        page.round().store(content.sequence, Ordering::SeqCst);
        bell.wake().map_err(failed)
    }

    fn length(&self) -> Result<u64, BenchError> {
        Ok(self.0.mapping().atomic_u64(LENGTH).map_err(failed)?.load(Ordering::Acquire))
    }

    fn message(&self, bytes: u64) -> Result<SharedBytes<'_>, BenchError> {
        self.0.mapping().shared(DATA, bytes).map_err(failed)
    }

    fn fill(&self, from: &File, bytes: u64) -> Result<(), BenchError> {
        let mut filled = 0;
        while filled < bytes {
            match self.0.mapping().read_from(from, DATA + filled, bytes - filled, &mut []) {
                Ok(0) => return Err(failed("the sender closed the socket in the middle of a message")),
                Ok(n) => filled += n as u64,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// Writes a message's number and length, then the message.
pub(super) fn write_message(to: &mut impl Write, content: Content, message: &[u8]) -> std::io::Result<()> {
    to.write_all(&[content.sequence.to_le_bytes(), content.bytes.to_le_bytes()].concat())?;
    to.write_all(message)
}

/// The number and length of the next message; `None` at the end.
fn read_head(from: &mut impl Read, bytes_max: u64) -> Result<Option<Content>, BenchError> {
    let mut head = [0; 16];
    match from.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let [sequence, bytes] = [0, 8].map(|at| head[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
    if bytes > bytes_max {
        return Err(failed(format!("a message of {bytes} B is larger than the {bytes_max} B announced")));
    }
    Ok(Some(Content { sequence, bytes }))
}

fn inherited(fd: BorrowedFd<'_>) -> Result<std::os::fd::OwnedFd, BenchError> {
    fd.try_clone_to_owned().map_err(failed)
}

fn ns(us: f64) -> u64 {
    (us * 1e3) as u64
}

fn failed(cause: impl std::fmt::Display) -> BenchError {
    BenchError::failed(BENCH, cause)
}
