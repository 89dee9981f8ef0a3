//! A TCP proxy that damages bytes, like a broken network card or switch: it swaps two 16-bit words, which leaves TCP's checksum unchanged. It can also
//! be slow.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that a slow proxy passes at once.
const SLOW_BYTES: usize = 256;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    /// From the connecting to the listening side.
    Listener,
    /// From the listening to the connecting side.
    Caller,
}

/// An order to swap two words, once.
#[derive(Clone, Copy, Debug)]
pub struct Swap {
    /// Their direction.
    pub toward: Toward,
    /// Bytes that pass undamaged before the first word, counted from the order on, over all connections.
    pub after: u64,
    /// Bytes from the start of the first word to the start of the second: at least 2. If the words are equal, the next ones that differ are swapped.
    pub apart: usize,
}

/// A proxy on its own loopback port.
#[derive(Debug)]
pub struct Proxy {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    swaps: Mutex<Vec<Swap>>,
    /// Bytes a second in each direction; 0 is no limit.
    rate: AtomicU64,
    done: AtomicU64,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Starts a proxy for the server at `to`.
    pub fn new(to: SocketAddr) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let (address, shared) = (listener.local_addr()?, Arc::new(Shared::default()));
        let (incoming, common) = (listener.clone(), shared.clone());
        let accepting = std::thread::spawn(move || {
            let mut pumps = Vec::new();
            while let Ok((near, _)) = incoming.accept() {
                if let Ok(pair) = join(near, to, &common) {
                    pumps.extend(pair);
                }
            }
            lock(&common.streams).iter().for_each(hang_up);
            pumps.into_iter().for_each(|pump: JoinHandle<()>| drop(pump.join()));
        });
        Ok(Self { listener, address, shared, accepting: Some(accepting) })
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Orders a swap. It happens on the connection that carries the bytes.
    pub fn order(&self, swap: Swap) {
        lock(&self.shared.swaps).push(Swap { apart: swap.apart.max(2), ..swap });
    }

    /// Lets so many bytes a second pass in each direction of a connection.
    pub fn slow_down(&self, bytes_a_second: u64) {
        self.shared.rate.store(bytes_a_second, Ordering::Relaxed);
    }

    /// The number of swaps so far.
    pub fn swaps(&self) -> u64 {
        self.shared.done.load(Ordering::Acquire)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Shutting the listener down wakes its accept(2).
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        self.accepting.take().map(JoinHandle::join);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hang_up(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

fn join(near: TcpStream, to: SocketAddr, shared: &Arc<Shared>) -> io::Result<[JoinHandle<()>; 2]> {
    let far = TcpStream::connect(to)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    lock(&shared.streams).extend([near.try_clone()?, far.try_clone()?]);
    let start = |toward, from: &TcpStream, to: &TcpStream| {
        let (from, to, shared) = (from.try_clone()?, to.try_clone()?, shared.clone());
        io::Result::Ok(std::thread::spawn(move || {
            // An end of the connection is passed on, and so is an error.
            let how = if pump(toward, &from, &to, &shared).is_ok() { Shutdown::Write } else { Shutdown::Both };
            let _ = to.shutdown(how);
        }))
    };
    Ok([start(Toward::Listener, &near, &far)?, start(Toward::Caller, &far, &near)?])
}

fn pump(toward: Toward, mut from: &TcpStream, mut to: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let rate = shared.rate.load(Ordering::Relaxed);
        let most = if rate > 0 { SLOW_BYTES } else { bytes.len() };
        let n = from.read(&mut bytes[..most])?;
        if n == 0 {
            return Ok(());
        }
        if rate > 0 {
            std::thread::sleep(Duration::from_secs_f64(n as f64 / rate as f64));
        }
        let mut passed = bytes[..n].to_vec();
        while let Some(swap) = shared.strike(toward, passed.len()) {
            let at = usize::try_from(swap.after).unwrap_or(usize::MAX);
            swap_words(&mut passed, at, swap.apart, from)?;
            shared.done.fetch_add(1, Ordering::AcqRel);
        }
        shared.pass(toward, passed.len());
        to.write_all(&passed)?;
    }
}

impl Shared {
    /// A swap that begins within the next `bytes`.
    fn strike(&self, toward: Toward, bytes: usize) -> Option<Swap> {
        let mut swaps = lock(&self.swaps);
        let index = swaps.iter().position(|swap| swap.toward == toward && swap.after < bytes as u64)?;
        Some(swaps.swap_remove(index))
    }

    fn pass(&self, toward: Toward, bytes: usize) {
        let mut swaps = lock(&self.swaps);
        swaps.iter_mut().filter(|swap| swap.toward == toward).for_each(|swap| {
            swap.after = swap.after.saturating_sub(bytes as u64);
        });
    }
}

/// Swaps the first words from `at` on that differ. Reads more bytes if it needs them.
fn swap_words(bytes: &mut Vec<u8>, at: usize, apart: usize, mut from: &TcpStream) -> io::Result<()> {
    for first in (at..).step_by(2) {
        let second = first + apart;
        if bytes.len() < second + 2 {
            let known = bytes.len();
            bytes.resize(second + 2, 0);
            from.read_exact(&mut bytes[known..])?;
        }
        if bytes[first..first + 2] != bytes[second..second + 2] {
            bytes.swap(first, second);
            bytes.swap(first + 1, second + 1);
            return Ok(());
        }
    }
    Ok(())
}
