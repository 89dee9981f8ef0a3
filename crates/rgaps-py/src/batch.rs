//! `Publisher.publish_all`: several loans, published with one wake-up.
//!
//! Invariant   BA1 each loan ends as published or discarded, or is open again when the call returns, whatever fails.

use pyo3::prelude::*;
use rgaps::PublishAllError;
use rgaps::dynamic::{DynamicLoan, DynamicPublisher};

use crate::handle::MessageHandle;
use crate::loan::Loan;
use crate::raw::Buffer;
use crate::{errors, raw};

/// Loans that were taken out of their objects.
struct Taken<'py> {
    objects: Vec<Bound<'py, Loan>>,
    loans: Vec<DynamicLoan>,
}

pub(crate) fn publish_all(
    py: Python<'_>,
    publisher: &DynamicPublisher,
    objects: Vec<Bound<'_, Loan>>,
) -> PyResult<Vec<MessageHandle>> {
    let mut taken = Taken { objects: Vec::new(), loans: Vec::new() };
    let staged = match taken.prepare(objects) {
        Ok(staged) => staged,
        Err(error) => {
            taken.put_back();
            return Err(error);
        }
    };
    let Taken { objects, mut loans } = taken;
    let outcome = py.detach(move || {
        for (loan, staged) in loans.iter_mut().zip(&staged) {
            let Some(staged) = staged else { continue };
            let block = loan.bytes_mut();
            raw::with_bytes(staged.address(), block.len() as u64, |bytes| block.copy_from_slice(bytes));
        }
        publisher.publish_all(loans)
    });
    let (published, failed) = match outcome {
        Ok(published) => (published, None),
        Err(error) => {
            let made = errors::of_publish_all(&error);
            let PublishAllError { published, index, rest, .. } = error;
            // The loan that failed is over unless it was returned, too.
            let over = (published.len() + rest.len() < objects.len()).then_some(index);
            let open = (published.len()..objects.len()).filter(|place| Some(*place) != over);
            open.zip(rest).for_each(|(place, loan)| objects[place].get().cell().put_back(loan));
            (published, Some(made))
        }
    };
    let noted = objects.iter().zip(published).map(|(object, handle)| object.get().note(handle.into())).collect();
    failed.map_or(Ok(noted), Err)
}

impl<'py> Taken<'py> {
    /// Takes the loans, then makes their arrays read-only, and returns the CPU memory that is to be copied into each block.
    fn prepare(&mut self, objects: Vec<Bound<'py, Loan>>) -> PyResult<Vec<Option<Buffer>>> {
        for (index, object) in objects.into_iter().enumerate() {
            if object.get().cell().has_streams() {
                let text = format!(
                    "loan {index} of the batch was given to a stream, and a batch is not in stream order: publish it with loan.publish()"
                );
                return Err(errors::of_loan_in_batch(errors::device(&text), index));
            }
            // Unlocked before an exception is made.
            let loan = object.get().cell().lock().take();
            let Some(loan) = loan else {
                let text = format!("loan {index} of the batch is published or discarded, or is in the batch twice");
                return Err(errors::of_loan_in_batch(errors::released(&text), index));
            };
            self.loans.push(loan);
            self.objects.push(object);
        }
        let cells = || self.objects.iter().map(|object| (object.get().cell(), object.py()));
        cells().try_for_each(|(cell, py)| cell.close_arrays(py))?;
        cells().map(|(cell, py)| cell.staged(py)).collect()
    }

    /// Opens the loans again. Their arrays stay read-only; new arrays can be written.
    fn put_back(self) {
        self.objects.iter().zip(self.loans).for_each(|(object, loan)| object.get().cell().put_back(loan));
    }
}
