//! Messages of other hosts that are older than some subscribers of this host: who gets them, and for whom they are not lost.
//!
//! ```text
//!                        subscribers that get it                          those for whom it is not lost beyond their depth
//!   publish_history      all that want history                            all
//!   publish_late         all                                              those that joined after the last message before it
//!   publish_again        those that joined later, and want history        the same
//! ```

use crate::words::message::State;
use crate::words::queue::Position;
use crate::writer::port::{LoanedMessage, MessageSpec, Since, WriteError, WriterPort};

impl WriterPort {
    /// Publishes a message that was published on another host before any subscriber of this host was linked to it: for subscribers that want
    /// history. Beyond their depth it is not lost.
    pub fn publish_history(&mut self, loan: LoanedMessage, spec: &MessageSpec<'_>) -> Result<Position, WriteError> {
        let since = Since { is_history: true, history: 0, ..Since::default() };
        self.publish_to(loan, spec, since, State::Published).map(|(position, _)| position)
    }

    /// Publishes a message of another host that may be older than subscribers that joined after `seen`. Beyond their depth it is not lost for them.
    pub fn publish_late(
        &mut self,
        loan: LoanedMessage,
        spec: &MessageSpec<'_>,
        seen: Position,
    ) -> Result<Position, WriteError> {
        let since = Since { history: seen.0.saturating_add(1), ..Since::default() };
        self.publish_to(loan, spec, since, State::Published).map(|(position, _)| position)
    }

    /// Publishes a message again, as history for subscribers that joined later. `seen` is the latest position that it can have had here, and
    /// `ended_ports` how many ports of the topic had ended when the port that published it did: subscribers that had joined by then do not get it
    /// twice.
    pub fn publish_again(
        &mut self,
        loan: LoanedMessage,
        spec: &MessageSpec<'_>,
        seen: Position,
        ended_ports: u32,
    ) -> Result<Position, WriteError> {
        let position = seen.0.saturating_add(1);
        let since = Since { position, ended_ports, is_history: true, history: position };
        self.publish_to(loan, spec, since, State::Published).map(|(position, _)| position)
    }
}
