//! The images: the content of number n, and the check of a received one. tests/ros/samples.py has the same.

use rgaps::types::{Encoding, Image, Meta, MetaError};
use rgaps::{Sample, SubscriberStatistics};

/// Messages that ROS keeps: more than are published at once.
pub const DEPTH: u32 = 100;

/// Image `number`; its user bytes hold the number.
pub fn picture(number: usize) -> Result<Image, MetaError> {
    let mut user = [0; 32];
    user[..4].copy_from_slice(&(number as u32).to_le_bytes());
    Ok(Image::new(320, 240, Encoding::Rgb8)?.in_frame("camera")?.with_user(user))
}

/// Fills in its bytes.
pub fn fill(bytes: &mut [u8], number: usize) {
    bytes.iter_mut().enumerate().for_each(|(place, byte)| *byte = ((place + 13 * number) % 251) as u8);
}

/// The samples received.
#[derive(Debug, Default)]
pub struct Checked {
    /// Number of samples.
    pub samples: usize,
    /// Number of the first; none yet if it may be any.
    first: Option<usize>,
    mismatched: usize,
    in_place: usize,
}

impl Checked {
    /// For a stream that is joined, or seen from its beginning.
    pub fn new(joins: bool) -> Self {
        Self { first: (!joins).then_some(0), ..Self::default() }
    }

    /// Checks a sample, which must be the next one.
    pub fn check(&mut self, sample: &Sample<Image>) {
        let mut wanted = vec![0; sample.bytes().len()];
        let number = u32::from_le_bytes(sample.meta().header().user.as_chunks().0[0]) as usize;
        fill(&mut wanted, number);
        let wanted_number = *self.first.get_or_insert(number) + self.samples;
        let is_right = number == wanted_number && sample.bytes() == wanted && sample.meta().header().stamp.to_ns() > 0;
        self.mismatched += usize::from(!is_right);
        self.in_place += usize::from(sample.is_in_place());
        self.samples += 1;
    }

    /// A line for the tests.
    pub fn line(&self, statistics: &SubscriberStatistics, refused: u64) -> String {
        let (Self { samples, mismatched, in_place, .. }, copied, lost) =
            (self, statistics.copied_bytes, statistics.lost);
        format!(
            "samples {samples} mismatched {mismatched} in_place {in_place} copied_bytes {copied} lost {lost} refused {refused}"
        )
    }
}
