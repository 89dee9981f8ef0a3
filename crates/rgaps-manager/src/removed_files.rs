//! What the manager does about files of its runtime directory that another program has removed, and about clients that have locked new ones.

use std::collections::BTreeSet;

use rgaps_control::TopicId;
use rgaps_control::local::Refusal;

use crate::clients::ClientId;
use crate::log;
use crate::manager::Manager;
use crate::refusals::exhausted;
use crate::runtime_files::{Checked, Files};

impl Manager {
    /// Restores files that another program has removed. False if this manager must exit: another one has the directory, or this one has no clients.
    #[must_use]
    pub(crate) fn check_runtime_files(&mut self) -> bool {
        let is_needed = !self.clients.by_id.is_empty() || !self.adoption.is_over();
        let (dir, unnoted, has_epoch) = (&self.host.dir, &self.unnoted, self.runtime_files.has_epoch);
        let files =
            Files { dir, has_epoch, unnoted, clients: &self.clients, topics: &self.topics, adoption: &self.adoption };
        let missing = match self.runtime_files.check(&self.host.dir, is_needed, &files) {
            Ok(Checked::Own { was_recreated: false, missing }) if missing.is_empty() => return true,
            Ok(Checked::Own { missing, .. }) => missing,
            Ok(Checked::Taken) => {
                tracing::error!(dir = %self.host.dir.path().display(), "files of this rgapsd were removed, and another rgapsd serves there; exiting");
                return false;
            }
            Ok(Checked::Unneeded) => {
                tracing::info!("files of this rgapsd were removed, and it has no clients; exiting");
                return false;
            }
            Err(error) => {
                tracing::warn!(%error, "files of this rgapsd were removed and cannot be created yet; it tries again");
                return true;
            }
        };
        log::come_back();
        tracing::warn!(
            dir = %self.host.dir.path().display(),
            "files of this rgapsd were removed; it creates them again, and clients connect again (cleaners of /tmp leave XDG_RUNTIME_DIR alone)"
        );
        self.runtime_files.has_epoch = self.host.dir.epoch(self.host.epoch).1.is_none();
        if let Err(error) = self.host.dir.note_config(&self.config) {
            tracing::warn!(%error, "config.toml cannot be written: clients do not see this rgapsd's configuration");
        }
        for id in missing.clients {
            // The client connects again and locks a new file; it keeps its slots. A dead client is not cut off: its slots wait for its streams.
            if let Some(client) = self.clients.by_id.get_mut(&id).filter(|client| !client.has_ended) {
                client.disconnect();
            }
        }
        for id in missing.topics {
            if let Some(topic) = self.topics.get_mut(&id) {
                topic.noted = None;
            }
            self.note(id);
        }
        true
    }

    /// A client that held other locks before now holds the lock that it was given. Slots of its earlier connections, and slots that it has still to
    /// hand back, are recorded under the new lock, in the notes for a successor too. After that the client may give up its other locks. If a note
    /// cannot be written, the client is refused and keeps all its locks.
    pub(crate) fn record_new_lock(&mut self, id: ClientId) -> Result<(), Refusal> {
        let Some(client) = self.clients.by_id.get_mut(&id) else { return Ok(()) };
        let (Some(now), before) = (client.noted(), client.held_before.clone()) else { return Ok(()) };
        let mut topics = BTreeSet::new();
        for lock in &before {
            topics.extend(self.clients.move_to_lock(*lock, now));
            topics.extend(self.adoption.move_to_lock(*lock, now));
        }
        topics.into_iter().for_each(|id| self.note(id));
        // A note may also be missing since an earlier attempt.
        let is_its =
            |topic: &TopicId| self.adoption.awaits_client_in(now.lock, *topic) || self.clients.has_in(now.lock, *topic);
        let unnoted = self.unnoted.iter().find(|(topic, _)| is_its(topic)).map(|(_, why)| why.clone());
        let Some(client) = self.clients.by_id.get_mut(&id) else { return Ok(()) };
        if let Some(why) = unnoted.filter(|_| !before.is_empty()) {
            client.is_locked = false;
            return Err(exhausted(&format!("the note that names this client's new lock cannot be written: {why}")));
        }
        client.held_before.clear();
        self.remove_earlier_connections(id, now.lock);
        before.into_iter().for_each(|lock| self.forget_lock_unless_used(lock));
        Ok(())
    }
}
