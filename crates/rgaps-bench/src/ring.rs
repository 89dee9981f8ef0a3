//! A ring with both ends in this process, over any transport, as measured by `bench link` and `bench scan`.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use rgaps_link::rdma::{Candidate, Domain, RdmaOptions, ReceiverEnd, RingEnd, SenderEnd};
use rgaps_link::record::{MessageHead, Record};
use rgaps_link::tcp::{LinkToken, RingSetup, TcpOptions, TcpRingListener, TcpSender};
use rgaps_link::{LinkReceiver, LinkSender, MessageId, MessageName, RingGeometry, RingMemory, RingOptions};
use rgaps_os::SharedBytes;

use crate::BenchError;
use crate::link::{BENCH, PATIENCE, TICK, any_port, failed, system};

/// Records posted at once, as in the manager.
const BATCH_MAX: usize = 16;

/// A ring: the sender here, its consumer in its own thread.
pub(super) struct Ring {
    sender: Box<dyn LinkSender>,
    landed: Receiver<Instant>,
    credits: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    next_id: u64,
}

impl Ring {
    /// A ring over tcp and loopback.
    pub(super) fn tcp(options: RingOptions) -> Result<Self, BenchError> {
        let geometry = RingGeometry::new(options).map_err(failed)?;
        let memory = RingMemory::create("rgaps-bench-ring", options.ring_bytes).map_err(failed)?;
        let setup = RingSetup { geometry, memory, options: TcpOptions::default() };
        let token = LinkToken([7; 16]);
        let listener = TcpRingListener::bind(any_port(), PATIENCE).map_err(failed)?;
        let address = listener.address();
        let accepting = thread("bench-accept", move || listener.accept_ring(token, &setup, PATIENCE))?;
        let sender = TcpSender::connect(address, token, geometry, TcpOptions::default()).map_err(failed)?;
        let accepted = accepting.join().map_err(|_| BenchError::failed(BENCH, "accepting panicked"))?;
        Self::new(Box::new(sender), Box::new(accepted.map_err(failed)?))
    }

    /// A ring over verbs, between two ports of this machine.
    pub(super) fn rdma(ports: &(Candidate, Candidate), options: RingOptions) -> Result<Self, BenchError> {
        let (here, there) = ports;
        let geometry = RingGeometry::new(options).map_err(failed)?;
        let memory = RingMemory::create("rgaps-bench-ring", options.ring_bytes).map_err(failed)?;
        let sender = SenderEnd::new(&Domain::open(&here.device).map_err(failed)?, here).map_err(failed)?;
        let domain = Domain::open(&there.device).map_err(failed)?;
        let peer = (&sender.address(), sender.credit());
        let end = ReceiverEnd::new(&domain, there, &memory, geometry, peer, RdmaOptions::default()).map_err(failed)?;
        end.connect().map_err(failed)?;
        let listener = TcpListener::bind(any_port()).map_err(system("a listener"))?;
        let address = listener.local_addr().map_err(system("a listener"))?;
        let near = TcpStream::connect_timeout(&address, PATIENCE).map_err(system("connecting"))?;
        let (far, _) = listener.accept().map_err(system("accepting"))?;
        // The consumer here takes all messages from the ring.
        let ring = RingEnd { address: end.address(), memory: end.ring(), grants_from_bytes: None };
        let sender = sender.connect(&ring, geometry, near, RdmaOptions::default()).map_err(failed)?;
        Self::new(Box::new(sender), Box::new(end.start(far)))
    }

    fn new(sender: Box<dyn LinkSender>, arrivals: Box<dyn LinkReceiver>) -> Result<Self, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, landed) = channel();
        let credits = Arc::new(AtomicU64::new(0));
        let consumer = {
            let (stop, credits) = (stop.clone(), credits.clone());
            thread("bench-arrivals", move || consume(arrivals, &told, &credits, &stop))?
        };
        Ok(Self { sender, landed, credits, stop, threads: vec![consumer], next_id: 1 })
    }

    /// Registers memory from which messages will be sent.
    pub(super) fn register(&mut self, memory: &RingMemory) -> Result<(), BenchError> {
        self.sender.register(&memory.shared_mapping().clone().into()).map_err(failed)
    }

    /// Credits that the consumer has sent so far.
    pub(super) fn credits(&self) -> u64 {
        self.credits.load(Ordering::Acquire)
    }

    /// Payload copies that the links report.
    pub(super) fn copies(&self) -> u64 {
        self.sender.counters().payload_copies
    }

    /// Sends one message; seconds until the consumer has all of it.
    pub(super) fn transfer(&mut self, data: SharedBytes<'_>) -> Result<f64, BenchError> {
        let chunk = self.sender.geometry().chunk_bytes() as usize;
        let head = MessageHead { id: MessageId(self.next_id), name: MessageName::default(), total: data.len() as u64 };
        self.next_id += 1;
        let start = Instant::now();
        let mut records: Vec<Record<'_>> = Vec::with_capacity(BATCH_MAX);
        let mut sent = 0;
        while sent < data.len() {
            records.clear();
            for at in (sent..data.len()).step_by(chunk).take(BATCH_MAX) {
                let part = data.part(at, chunk.min(data.len() - at)).map_err(failed)?;
                records.push(if at == 0 { head.first(&[], part) } else { head.part(at as u64, part) });
            }
            self.sender.progress().map_err(failed)?;
            let posted = self.sender.post(&records).map_err(failed)?;
            if posted == 0 {
                let next = data.len().min(sent + chunk) - sent;
                self.sender.wait_for_room(next as u32, PATIENCE).map_err(failed)?;
            }
            sent = data.len().min(sent + posted * chunk);
        }
        let landed = self.landed.recv_timeout(PATIENCE).map_err(failed)?;
        while self.sender.next_acknowledged().is_some() {}
        Ok(landed.duration_since(start).as_secs_f64())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.sender.close();
        join(&mut self.threads);
    }
}

/// Releases records as they arrive, and reports when a message is complete.
fn consume(mut arrivals: Box<dyn LinkReceiver>, told: &Sender<Instant>, credits: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        match arrivals.next(TICK) {
            Ok(None) => {}
            Ok(Some(arrival)) => {
                let is_last = arrival.header().ends_message();
                let released = arrivals.release(arrival);
                credits.store(arrivals.counters().credits_sent, Ordering::Release);
                if released.is_err() || (is_last && told.send(Instant::now()).is_err()) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

pub(super) fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, BenchError> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(system("a thread"))
}

pub(super) fn join(threads: &mut Vec<JoinHandle<()>>) {
    for thread in threads.drain(..) {
        let _ = thread.join();
    }
}
