//! Messages that arrive over the inner topic of a GPU subscription. They are taken and dropped, because messages are delivered from the core's
//! queue. If the core never had a descriptor's message, this is logged, once for each publisher, since its topic seems silent.
//!
//! Not `rgaps_ros_policy::refusals`: nothing is refused here. A publisher is suspect for a time before it is named, whatever the reason, and a
//! subscription names 64 at most and says when it stops, because nothing else counts what it drops.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rgaps::dynamic::Kind;
use rgaps::{MessageHandle, Node};
use rgaps_ros_policy::descriptor::check_handle;

use crate::descriptor::Descriptor;
use crate::inner::calls;
use crate::lock::lock;
use crate::rcutils::{self, Severity};
use crate::support::{self, Raw};
use crate::sys::*;
use crate::taking::Taking;

/// Most descriptors drained before other entities get their turn.
const DRAINED_MAX: usize = 4096;
/// Most publishers remembered.
const SUSPECTS_MAX: usize = 64;
/// Most lines logged by one subscription.
const NAMED_MAX: usize = 64;
/// How long after its first descriptor a publisher's first message may arrive.
const PATIENCE: Duration = Duration::from_secs(5);

/// A publisher from which the core has received no messages on this host.
struct Suspect {
    publisher: u64,
    since: Instant,
    is_named: bool,
}

/// The subscription whose inner topic is drained.
pub(crate) struct Subscribed<'a> {
    pub(crate) inner: Raw<rmw_subscription_t>,
    pub(crate) kind: Kind,
    pub(crate) topic: &'a str,
    pub(crate) node: &'a Node,
    pub(crate) taking: &'a Mutex<Taking>,
}

#[derive(Default)]
pub(crate) struct Replays {
    suspects: Vec<Suspect>,
    /// Lines logged so far.
    named: usize,
}

/// What a descriptor is judged to be.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Its message is known, or may still arrive.
    Innocent,
    /// The core never had its message, and never will; the reason.
    Named(String),
    /// No message of its publisher has arrived so far.
    Suspect,
}

impl Replays {
    /// Takes and judges the messages that have arrived.
    pub(crate) fn drain(&mut self, of: &Subscribed<'_>) {
        let mut descriptor = Descriptor::zeroed();
        for _ in 0..DRAINED_MAX {
            let mut taken = false;
            let message = descriptor.as_mut_ptr();
            // SAFETY: the inner RMW's own subscription, and memory for any message of its type.
            let result = unsafe { calls::rmw_take(of.inner.0, message, &raw mut taken, std::ptr::null_mut()) };
            if result != RMW_RET_OK || !taken {
                return;
            }
            self.look_at(of, &descriptor.handle());
        }
    }

    fn look_at(&mut self, of: &Subscribed<'_>, handle: &MessageHandle) {
        let verdict = {
            let taking = lock(of.taking);
            let hosts = taking.known().iter().map(|known| (known.source_host, known.host_epoch));
            judge(handle, of.kind, (of.node.host(), of.node.host_epoch()), hosts)
        };
        match verdict {
            Verdict::Innocent => {}
            Verdict::Named(why) => self.name(of, handle, &why),
            Verdict::Suspect => {
                let known = self.suspects.iter().find(|suspect| suspect.publisher == handle.publisher);
                match known.map(|suspect| suspect.since.elapsed()) {
                    None => self.remember(handle.publisher, false),
                    Some(since) if since > PATIENCE => {
                        let next = "is it replayed, or do the hosts' managers not reach each other (rgaps topic info)?";
                        self.name(of, handle, &format!("no message of its publisher has reached this host; {next}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }

    fn remember(&mut self, publisher: u64, is_named: bool) {
        self.suspects.truncate(SUSPECTS_MAX - 1);
        self.suspects.insert(0, Suspect { publisher, since: Instant::now(), is_named });
    }

    /// Logs a publisher once, and at most `NAMED_MAX` publishers: forged descriptors may name a new publisher each time.
    fn name(&mut self, of: &Subscribed<'_>, handle: &MessageHandle, why: &str) {
        match self.suspects.iter_mut().find(|suspect| suspect.publisher == handle.publisher) {
            Some(suspect) if suspect.is_named => return,
            Some(suspect) => suspect.is_named = true,
            None => self.remember(handle.publisher, true),
        }
        if self.named == NAMED_MAX {
            return;
        }
        self.named += 1;
        let (topic, name) = (of.topic, support::type_name(of.kind));
        let (sequence, publisher) = (handle.sequence, handle.publisher);
        rcutils::log(
            Severity::Warn,
            format_args!(
                "{topic}: {name} {sequence} of publisher {publisher:#x} is not delivered, nor are later ones like it: {why}"
            ),
        );
        if self.named == NAMED_MAX {
            rcutils::log(
                Severity::Warn,
                format_args!("{topic}: no more publishers of this kind are named, {NAMED_MAX} were"),
            );
        }
    }
}

/// Judges a handle on a host with this identity and epoch, given the known epochs of other hosts.
fn judge(
    handle: &MessageHandle,
    kind: Kind,
    (host, epoch): ([u8; 16], u64),
    mut known: impl Iterator<Item = ([u8; 16], u64)>,
) -> Verdict {
    if let Err(why) = check_handle(kind, handle) {
        return Verdict::Named(why.to_string());
    }
    let now = if handle.source_host == host { Some(epoch) } else { None };
    let now = now.or_else(|| known.find(|(host, _)| *host == handle.source_host).map(|(_, epoch)| epoch));
    match now {
        Some(now) if now == handle.host_epoch => Verdict::Innocent,
        Some(now) => {
            let found = handle.host_epoch;
            let next =
                "a replayed descriptor names no memory: record and play the output of the converter of rgaps_ros";
            let runs = format!("its host started at {found} ns, but the current run started at {now} ns");
            Verdict::Named(format!("it is of an earlier run ({runs}); {next}"))
        }
        None => Verdict::Suspect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ([u8; 16], u64) = ([1; 16], 100);
    const THERE: ([u8; 16], u64) = ([2; 16], 200);

    fn handle(source_host: [u8; 16], host_epoch: u64) -> MessageHandle {
        let (layout_version, kind, sequence) = (MessageHandle::LAYOUT_VERSION, Kind::Image.code(), 1);
        MessageHandle { source_host, host_epoch, layout_version, kind, sequence, ..MessageHandle::default() }
    }

    fn judged(handle: &MessageHandle) -> Verdict {
        judge(handle, Kind::Image, HERE, [THERE].into_iter())
    }

    #[test]
    fn a_descriptor_of_an_earlier_run_is_recognized_by_its_hosts_epoch() {
        assert_eq!(judged(&handle(HERE.0, HERE.1)), Verdict::Innocent);
        assert_eq!(judged(&handle(THERE.0, THERE.1)), Verdict::Innocent);
        for old in [handle(HERE.0, 99), handle(THERE.0, 199)] {
            let Verdict::Named(why) = judged(&old) else { panic!("{old:?}") };
            assert!(why.contains("earlier run") && why.contains("names no memory"), "{why}");
        }
    }

    #[test]
    fn an_unknown_host_is_suspect_and_bytes_that_are_no_handle_are_logged() {
        assert_eq!(judged(&handle([3; 16], 1)), Verdict::Suspect);
        let Verdict::Named(why) = judged(&MessageHandle::default()) else { panic!("innocent") };
        assert!(why.contains("was it filled by RGAPS?"), "{why}");
    }
}
