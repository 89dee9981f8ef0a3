//! Views of loans and samples for kernels and array libraries: address and shape.

use rgaps_device::dlpack::ManagedTensor;
use rgaps_device::{DeviceRange, FieldView};

use crate::dlpack::UnmanagedTensor;
use crate::endpoint::publish_error::PublishError;
use crate::endpoint::take_error::TakeError;
use crate::publisher::Loan;
use crate::sample::Sample;
use crate::types::{Meta, Payload, PointCloud};

impl<T: Meta> Loan<T> {
    /// The block's range of device memory. All writes there must be complete before the loan is dropped or published, or be in the stream that it is
    /// published on.
    pub fn device_range(&self) -> Result<DeviceRange, PublishError> {
        self.inner.device_range()
    }
}

impl<T: Payload> Loan<T> {
    /// A view of the block, to pass by value to a kernel that fills it. The rule of `device_range` applies.
    pub fn view(&self) -> Result<T::View, PublishError> {
        let range = self.device_range()?;
        self.meta().view(&range).map_err(|source| self.inner.publisher.view_error(source))
    }

    /// Describes the block for an array library that fills it. The rule of `device_range` applies.
    pub fn describe(&self) -> Result<UnmanagedTensor, PublishError> {
        let range = self.device_range()?;
        self.meta().describe(&range).map_err(|source| self.inner.publisher.view_error(source))
    }
}

impl Loan<PointCloud> {
    /// A view of one field of the points, to pass to a kernel.
    pub fn field_view(&self, name: &str) -> Result<FieldView, PublishError> {
        let range = self.device_range()?;
        self.meta().field_view(name, &range).map_err(|source| self.inner.publisher.view_error(source))
    }

    /// Describes one field of the points for an array library.
    pub fn describe_field(&self, name: &str) -> Result<UnmanagedTensor, PublishError> {
        let range = self.device_range()?;
        self.meta().describe_field(name, &range).map_err(|source| self.inner.publisher.view_error(source))
    }
}

impl<T: Meta> Sample<T> {
    /// The payload's range of device memory. The rule of `device_address` applies.
    pub fn device_range(&self) -> Result<DeviceRange, TakeError> {
        self.inner.device_range()
    }
}

impl<T: Payload> Sample<T> {
    /// A view of the payload, to pass by value to a kernel that reads it. The kernel must not write. The rule of `device_range` applies.
    pub fn view(&self) -> Result<T::View, TakeError> {
        let range = self.device_range()?;
        self.meta().view(&range).map_err(|source| self.inner.view_error(source))
    }

    /// Describes the payload for an array library that reads it. The rule of `device_range` applies.
    pub fn describe(&self) -> Result<UnmanagedTensor, TakeError> {
        let range = self.device_range()?;
        self.meta().describe(&range).map_err(|source| self.inner.view_error(source))
    }

    /// Gives the sample to an array library. The library's call of the deleter drops the sample, on any thread. If this fails, the sample is
    /// dropped at once; call `describe` first to find such an error while you keep the sample.
    pub fn into_dlpack(self) -> Result<ManagedTensor, TakeError> {
        Ok(self.describe()?.manage(self))
    }
}

impl Sample<PointCloud> {
    /// A view of one field of the points, to pass to a kernel.
    pub fn field_view(&self, name: &str) -> Result<FieldView, TakeError> {
        let range = self.device_range()?;
        self.meta().field_view(name, &range).map_err(|source| self.inner.view_error(source))
    }

    /// Describes one field of the points for an array library.
    pub fn describe_field(&self, name: &str) -> Result<UnmanagedTensor, TakeError> {
        let range = self.device_range()?;
        self.meta().describe_field(name, &range).map_err(|source| self.inner.view_error(source))
    }
}
