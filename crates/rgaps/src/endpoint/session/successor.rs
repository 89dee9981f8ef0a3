//! Finds the successor of a manager that died, and hands it all slots of the node.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rgaps_control::local::{Connection, Refusal};
use rgaps_control::spawn::{Autostart, Pauses};

use super::{Session, TICK, lock};
use crate::endpoint::completions::READY_TICK;
use crate::endpoint::hand_back;
use crate::endpoint::hello::{self, Hello, RECONNECT_INTERVAL, SessionError, Welcomed};
use crate::endpoint::members::Member;

/// Pause after a manager of another version has refused this program.
const OTHER_VERSION_PAUSE: Duration = Duration::from_secs(1);

impl Session {
    /// Looks for a successor in a separate thread, so that tasks are woken while a starting manager takes its time to answer.
    pub(super) fn reconnect(&self) {
        let is_over = AtomicBool::new(false);
        let find = || {
            *lock(&self.finder) = Some(std::thread::current().id());
            self.find_successor();
            *lock(&self.finder) = None;
            is_over.store(true, Ordering::Release);
            self.kick();
        };
        std::thread::scope(|scope| {
            let finder = std::thread::Builder::new().name("rgaps-finder".to_owned()).spawn_scoped(scope, find);
            if let Err(error) = &finder {
                tracing::warn!(%error, "no thread could be started; tasks sleep until rgapsd has a successor");
                return find();
            }
            while !is_over.load(Ordering::Acquire) {
                let soon = self.tend(None);
                self.sleep(None, if soon { READY_TICK } else { TICK });
            }
        });
    }

    fn find_successor(&self) {
        let (mut pauses, mut has_warned) = (Pauses::default(), false);
        while !self.stopping.load(Ordering::Acquire) {
            let autostart =
                if self.keeps_slots_only.load(Ordering::Acquire) { Autostart::Never } else { self.autostart };
            let autostart = pauses.autostart(autostart, Instant::now());
            let mut locks = lock(&self.locks);
            let (dir, program, is_over) = (&self.dir, &*self.program, &self.stopping);
            let welcomed = Hello { dir, program, locks: &mut locks, is_over }.say(autostart);
            drop(locks);
            match welcomed.and_then(|welcomed| self.hand_back(welcomed)) {
                Ok(connection) => {
                    *lock(&self.connection) = Arc::new(connection);
                    self.epoch.fetch_add(1, Ordering::AcqRel);
                    *lock(&self.other_version) = None;
                    self.is_silent.store(false, Ordering::Release);
                    self.is_away.store(false, Ordering::Release);
                    tracing::info!("rgapsd has a successor, which took back this node's publishers and subscribers");
                    // Sends detach requests of the meantime now.
                    return self.kick();
                }
                Err(error) => {
                    tracing::debug!(%error, "no successor of rgapsd yet");
                    let is_lack = error.is_lack();
                    if is_lack && !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(%error, "rgapsd has a successor, which cannot take back this node's slots; trying again");
                    }
                    if let SessionError::Spawn(error) = &error {
                        pauses.note(error, Instant::now());
                    }
                    if let SessionError::Refused(refusal @ (Refusal::Protocol { .. } | Refusal::Layout { .. })) = error
                    {
                        if lock(&self.other_version).replace(refusal.clone()).is_none() {
                            tracing::warn!(%refusal, "the next rgapsd does not serve this program");
                        }
                        std::thread::sleep(OTHER_VERSION_PAUSE);
                    }
                }
            }
            std::thread::sleep(RECONNECT_INTERVAL);
        }
    }

    /// Hands all slots of this node back. Returns an error if this manager died too, or is stopped.
    fn hand_back(&self, welcomed: Welcomed) -> Result<Connection, SessionError> {
        let Welcomed { connection, .. } = welcomed;
        let notice = |notice| self.notice(notice);
        let mut ask = |body, fds: &[BorrowedFd<'_>]| {
            Ok(hello::ask((&connection, &self.dir), body, fds, &self.stopping, notice)?.0)
        };
        hand_back::hand_back(self.to_hand_back(), &mut ask)?;
        Ok(connection)
    }

    /// All members to hand back, ordered by topic. From now on, whatever was joining the dead manager must start again (S1).
    pub(super) fn to_hand_back(&self) -> Vec<Member> {
        let mut members = lock(&self.members);
        members.handed_back = self.epoch() + 1;
        let mut to_hand_back = members.all.clone();
        drop(members);
        to_hand_back.sort_by_key(|member| member.attachment.topic);
        to_hand_back
    }
}
