//! Makes `Debug` of this crate's errors their text. `main() -> Result<(), NodeError>` and `unwrap` print `Debug`, and a user should read there what
//! failed and what to do, not the names of variants.

use std::fmt;

use crate::types::{MetaError, ViewError};
use crate::{NodeError, PublishAllError, PublishError, SessionError, TakeByHandleError, TakeError};

macro_rules! debug_is_the_text {
    ($($error:ty),+) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )+};
}

debug_is_the_text!(TakeByHandleError, NodeError, SessionError, PublishError, TakeError, MetaError, ViewError);

impl<L> fmt::Debug for PublishAllError<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_error_shows_its_text_in_display_and_debug() {
        let text = "rgapsd (process 9) did not answer within 7 ms; is it stopped? its log is /run/rgaps/rgapsd.log";
        let error =
            NodeError::from(SessionError::TimedOut { waited_ms: 7, pid: 9, log: "/run/rgaps/rgapsd.log".into() });
        assert_eq!((format!("{error}"), format!("{error:?}")), (text.to_owned(), text.to_owned()));
        let error = TakeError::Pool { topic: "/topic".to_owned(), slot: 3, source: error };
        assert_eq!(
            format!("{error:?}"),
            format!("/topic: the pool of publisher slot 3 could not be mapped: {text}; take again")
        );
    }
}
