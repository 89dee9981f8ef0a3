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
    ///
    /// ```
    /// # use rgaps::{Node, types::{Encoding, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("camera")?;
    /// # let publisher = node.publisher::<Image>("camera")?;
    /// let loan = publisher.loan(Image::new(64, 48, Encoding::Rgb8)?)?;
    /// let view = loan.view()?; // the argument of a kernel
    /// assert_eq!((view.width, view.step, view.channels), (64, 192, 3));
    /// assert_eq!(view.pixel(0, 1), Some(loan.device_address()? + 192));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn view(&self) -> Result<T::View, PublishError> {
        let range = self.device_range()?;
        self.meta().view(&range).map_err(|source| self.inner.publisher.view_error(source))
    }

    /// Describes the block for an array library that fills it. The rule of `device_range` applies.
    ///
    /// ```
    /// # use rgaps::{Node, types::{DType, Tensor}};
    /// # let _host = rgaps_testing::example_host();
    /// # let publisher = Node::new("camera")?.publisher::<Tensor>("activations")?;
    /// let loan = publisher.loan(Tensor::new(DType::FLOAT32, &[2, 3])?)?;
    /// let described = loan.describe()?;
    /// assert_eq!((described.shape(), described.is_read_only()), (&[2, 3][..], false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn describe(&self) -> Result<UnmanagedTensor, PublishError> {
        let range = self.device_range()?;
        self.meta().describe(&range).map_err(|source| self.inner.publisher.view_error(source))
    }
}

impl Loan<PointCloud> {
    /// A view of one field of the points, to pass to a kernel.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Datatype, PointCloud}};
    /// # let _host = rgaps_testing::example_host();
    /// # let publisher = Node::new("lidar")?.publisher::<PointCloud>("points")?;
    /// let fields = [("x", Datatype::Float32), ("y", Datatype::Float32), ("z", Datatype::Float32)];
    /// let loan = publisher.loan(PointCloud::packed(1000, &fields)?)?;
    /// let z = loan.field_view("z")?; // a kernel fills z of each point
    /// assert_eq!((z.width, z.point_step, z.data), (1000, 12, loan.device_address()? + 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn field_view(&self, name: &str) -> Result<FieldView, PublishError> {
        let range = self.device_range()?;
        self.meta().field_view(name, &range).map_err(|source| self.inner.publisher.view_error(source))
    }

    /// Describes one field of the points for an array library.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Datatype, PointCloud}};
    /// # let _host = rgaps_testing::example_host();
    /// # let publisher = Node::new("lidar")?.publisher::<PointCloud>("points")?;
    /// let fields = [("x", Datatype::Float32), ("y", Datatype::Float32), ("z", Datatype::Float32)];
    /// let loan = publisher.loan(PointCloud::packed(1000, &fields)?)?;
    /// let z = loan.describe_field("z")?;
    /// assert_eq!((z.shape(), z.strides(), z.byte_offset()), (&[1000][..], &[3][..], 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn describe_field(&self, name: &str) -> Result<UnmanagedTensor, PublishError> {
        let range = self.device_range()?;
        self.meta().describe_field(name, &range).map_err(|source| self.inner.publisher.view_error(source))
    }
}

impl<T: Meta> Sample<T> {
    /// The payload's range of device memory. The rule of `device_address` applies.
    ///
    /// ```
    /// # use rgaps::{Node, dlpack::DLDevice, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("detector")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let range = sample.device_range()?;
    /// assert!(range.bytes == 5 && range.is_read_only);
    /// # assert_eq!(range.device, DLDevice::CPU);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn device_range(&self) -> Result<DeviceRange, TakeError> {
        self.inner.device_range()
    }
}

impl<T: Payload> Sample<T> {
    /// A view of the payload, to pass by value to a kernel that reads it. The kernel must not write. The rule of `device_range` applies.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Encoding, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("detector")?;
    /// # let (publisher, subscriber) = (node.publisher::<Image>("camera")?, node.subscriber::<Image>("camera")?);
    /// # publisher.push(&Image::new(2, 2, Encoding::Mono8)?, &[1, 2, 3, 4])?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let view = sample.view()?; // the argument of a kernel
    /// assert_eq!((view.width, view.height, view.data), (2, 2, sample.device_address()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn view(&self) -> Result<T::View, TakeError> {
        let range = self.device_range()?;
        self.meta().view(&range).map_err(|source| self.inner.view_error(source))
    }

    /// Describes the payload for an array library that reads it. The rule of `device_range` applies.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Encoding, Image}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("detector")?;
    /// # let (publisher, subscriber) = (node.publisher::<Image>("camera")?, node.subscriber::<Image>("camera")?);
    /// # publisher.push(&Image::new(2, 2, Encoding::Rgb8)?, &[7; 12])?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let described = sample.describe()?; // rows, columns, channels
    /// assert_eq!((described.shape(), described.strides()), (&[2, 2, 3][..], &[6, 3, 1][..]));
    /// assert!(described.is_read_only());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn describe(&self) -> Result<UnmanagedTensor, TakeError> {
        let range = self.device_range()?;
        self.meta().describe(&range).map_err(|source| self.inner.view_error(source))
    }

    /// Gives the sample to an array library. The library's call of the deleter drops the sample, on any thread. If this fails, the sample is
    /// dropped at once; call `describe` first to find such an error while you keep the sample.
    ///
    /// ```
    /// # use rgaps::{Node, types::Bytes};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("detector")?;
    /// # let (publisher, subscriber) = (node.publisher::<Bytes>("raw")?, node.subscriber::<Bytes>("raw")?);
    /// # publisher.push(&Bytes::new(5), b"hello")?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let tensor = sample.into_dlpack()?; // `into_raw` gives it to the library
    /// assert_eq!(tensor.as_raw().dl_tensor.ndim, 1);
    /// assert_eq!(subscriber.statistics().held, 1);
    /// drop(tensor); // as the library's call of the deleter does
    /// assert_eq!(subscriber.statistics().held, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_dlpack(self) -> Result<ManagedTensor, TakeError> {
        Ok(self.describe()?.manage(self))
    }
}

impl Sample<PointCloud> {
    /// A view of one field of the points, to pass to a kernel.
    ///
    /// ```
    /// # use rgaps::{Node, types::{Datatype, PointCloud}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("detector")?;
    /// # let (publisher, subscriber) = (node.publisher::<PointCloud>("points")?, node.subscriber::<PointCloud>("points")?);
    /// # publisher.push(&PointCloud::packed(2, &[("x", Datatype::Float32), ("y", Datatype::Float32)])?, &[0; 16])?;
    /// let sample = subscriber.take()?.ok_or("no message")?;
    /// let y = sample.field_view("y")?;
    /// assert_eq!((y.width, y.point_step, y.data), (2, 8, sample.device_address()? + 4));
    /// assert!(sample.field_view("intensity").is_err(), "this cloud has none");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn field_view(&self, name: &str) -> Result<FieldView, TakeError> {
        let range = self.device_range()?;
        self.meta().field_view(name, &range).map_err(|source| self.inner.view_error(source))
    }

    /// Describes one field of the points for an array library.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use rgaps::{Node, types::{Datatype, PointCloud}};
    /// # let _host = rgaps_testing::example_host();
    /// # let node = Node::new("detector")?;
    /// # let (publisher, subscriber) = (node.publisher::<PointCloud>("points")?, node.subscriber::<PointCloud>("points")?);
    /// # publisher.push(&PointCloud::packed(2, &[("x", Datatype::Float32), ("y", Datatype::Float32)])?, &[0; 16])?;
    /// let sample = Arc::new(subscriber.take()?.ok_or("no message")?);
    /// let x = sample.describe_field("x")?.manage(sample.clone());
    /// let y = sample.describe_field("y")?.manage(sample.clone());
    /// drop((sample, x)); // `y` still holds the message
    /// # assert_eq!((subscriber.statistics().held, y.as_raw().dl_tensor.ndim), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn describe_field(&self, name: &str) -> Result<UnmanagedTensor, TakeError> {
        let range = self.device_range()?;
        self.meta().describe_field(name, &range).map_err(|source| self.inner.view_error(source))
    }
}
