//! Messages of other hosts that are older than some subscribers of this host.

use crate::words::message::State;
use crate::words::queue::Position;
use crate::writer::port::{LoanedMessage, MessageSpec, Since, WriteError, WriterPort};

impl WriterPort {
    /// Publishes a message again, for subscribers that joined later. `seen` is the latest position that it can have had here, and `ended_ports` how many
    /// ports of the topic had ended when the port that published it did: subscribers that had joined by then do not get it twice.
    pub fn publish_again(
        &mut self,
        loan: LoanedMessage,
        spec: &MessageSpec<'_>,
        seen: Position,
        ended_ports: u32,
    ) -> Result<Position, WriteError> {
        let since = Since { position: seen.0.saturating_add(1), ended_ports };
        self.publish_to(loan, spec, since, State::Published).map(|(position, _)| position)
    }
}
