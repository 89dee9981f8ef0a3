//! The budgets that parts of a manager share, from the configuration's `Limits`.

use std::sync::Arc;

use rgaps_control::{Limits, Refusals};

use crate::arrived::Arrived;
use crate::links::Links;

/// Shared by all parts.
#[derive(Clone, Debug)]
pub(crate) struct Budgets {
    pub(crate) limits: Limits,
    /// How often each was met.
    pub(crate) refusals: Arc<Refusals>,
    /// Memory for what arrives.
    pub(crate) arrived: Arc<Arrived>,
    pub(crate) links: Arc<Links>,
}

impl Budgets {
    pub(crate) fn new(limits: &Limits) -> Self {
        let refusals = Arc::<Refusals>::default();
        let arrived = Arc::new(Arrived::new(limits, refusals.clone()));
        let links = Arc::new(Links::new(limits, refusals.clone()));
        Self { limits: limits.clone(), refusals, arrived, links }
    }
}
