//! Loans and samples seen by a kernel or an array library: where they lie, and in which shape.

use rgaps_device::dlpack::{DLDevice, ManagedTensor};
use rgaps_device::{Backend, DeviceRange, FieldView};

use crate::dlpack::Descriptor;
use crate::publish_error::PublishError;
use crate::publisher::Loan;
use crate::sample::Sample;
use crate::subscriber::TakeError;
use crate::types::{Meta, Payload, PointCloud};

/// The device of a backend in DLPack's terms.
fn dl_device(backend: &dyn Backend) -> DLDevice {
    backend.as_cuda().map_or(DLDevice::CPU, |cuda| DLDevice::cuda(cuda.gpu().properties().ordinal))
}

impl<T: Meta> Loan<T> {
    /// Where the block lies. What writes there must be done when the loan is dropped or published, or be in the stream that it is published
    /// on.
    pub fn device_range(&self) -> Result<DeviceRange, PublishError> {
        let bytes = self.meta().payload_bytes();
        // A block without bytes has no address.
        let address = if bytes > 0 { self.device_address()? } else { 0 };
        Ok(DeviceRange { address, bytes, device: dl_device(self.node().backend().as_ref()), is_read_only: false })
    }
}

impl<T: Payload> Loan<T> {
    /// What a kernel that fills the block is told of it: an argument, by value. As for `device_range`.
    pub fn view(&self) -> Result<T::View, PublishError> {
        let range = self.device_range()?;
        self.meta().view(&range).map_err(|source| self.view_error(source))
    }

    /// What an array library that fills the block is told of it. As for `device_range`.
    pub fn describe(&self) -> Result<Descriptor, PublishError> {
        let range = self.device_range()?;
        self.meta().describe(&range).map_err(|source| self.view_error(source))
    }
}

impl Loan<PointCloud> {
    /// What a kernel is told of one field of the points.
    pub fn field_view(&self, name: &str) -> Result<FieldView, PublishError> {
        let range = self.device_range()?;
        self.meta().field_view(name, &range).map_err(|source| self.view_error(source))
    }

    /// What an array library is told of one field of the points.
    pub fn describe_field(&self, name: &str) -> Result<Descriptor, PublishError> {
        let range = self.device_range()?;
        self.meta().describe_field(name, &range).map_err(|source| self.view_error(source))
    }
}

impl<T: Meta> Sample<T> {
    /// Where the payload lies. What reads it must be done when the sample is dropped, or be in the stream that it is released on, or
    /// was taken on if it is dropped.
    pub fn device_range(&self) -> Result<DeviceRange, TakeError> {
        let bytes = self.info().bytes;
        let address = if bytes > 0 { self.device_address()? } else { 0 };
        Ok(DeviceRange { address, bytes, device: dl_device(self.node().backend().as_ref()), is_read_only: true })
    }
}

impl<T: Payload> Sample<T> {
    /// What a kernel that reads the payload is told of it: an argument, by value. As for `device_range`; it must not write.
    pub fn view(&self) -> Result<T::View, TakeError> {
        let range = self.device_range()?;
        self.meta().view(&range).map_err(|source| self.view_error(source))
    }

    /// What an array library that reads the payload is told of it. As for `device_range`.
    pub fn describe(&self) -> Result<Descriptor, TakeError> {
        let range = self.device_range()?;
        self.meta().describe(&range).map_err(|source| self.view_error(source))
    }

    /// Hands the sample to an array library. It is released when the library calls the deleter, as if it were dropped there, on whichever
    /// thread that is. If this fails, it is released at once; `describe` tells beforehand.
    pub fn into_dlpack(self) -> Result<ManagedTensor, TakeError> {
        Ok(self.describe()?.manage(self))
    }
}

impl Sample<PointCloud> {
    /// What a kernel is told of one field of the points.
    pub fn field_view(&self, name: &str) -> Result<FieldView, TakeError> {
        let range = self.device_range()?;
        self.meta().field_view(name, &range).map_err(|source| self.view_error(source))
    }

    /// What an array library is told of one field of the points.
    pub fn describe_field(&self, name: &str) -> Result<Descriptor, TakeError> {
        let range = self.device_range()?;
        self.meta().describe_field(name, &range).map_err(|source| self.view_error(source))
    }
}
