//! Publishers and loans.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rgaps::device::Stream;
use rgaps::device::dlpack::DLManagedTensorVersioned;
use rgaps::dynamic::{DynamicLoan, DynamicPublisher, Kind};
use rgaps::{MessageHandle, Node, PublishAllError, PublisherQos};

use crate::handle::{BadHandle, Table, What};
use crate::node::{handle, look_up as look_up_node, rgaps_node_t};
use crate::raw;
use crate::sample::rgaps_message_handle_t;
use crate::status::{Failure, guard, guard_or, rgaps_status_t};
use crate::types::{rgaps_meta_t, rgaps_publisher_qos_t, rgaps_publisher_statistics_t};

/// Publishes messages of one kind on one topic. Usable from any thread.
pub struct rgaps_publisher_t {
    _handle: c_void,
}

/// A loaned block of a publisher's pool, to be filled. Use it from one thread at a time.
pub struct rgaps_loan_t {
    _handle: c_void,
}

#[derive(Clone)]
pub(crate) struct PublisherObject {
    pub(crate) node: Node,
    pub(crate) publisher: DynamicPublisher,
}

/// A loan; `None` once it is published or discarded. The lock only guards against misuse, since a loan belongs to one thread.
#[derive(Clone)]
struct LoanObject {
    node: Node,
    loan: Arc<Mutex<Option<DynamicLoan>>>,
}

pub(crate) static PUBLISHERS: Table<PublisherObject> = Table::new(What::Publisher);
static LOANS: Table<LoanObject> = Table::new(What::Loan);

impl LoanObject {
    fn lock(&self) -> MutexGuard<'_, Option<DynamicLoan>> {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, body: impl FnOnce(&mut DynamicLoan) -> Result<R, Failure>) -> Result<R, Failure> {
        let mut loan = self.lock();
        body(loan.as_mut().ok_or(BadHandle::Released(What::Loan))?)
    }
}

/// ROS 2's default QoS: reliable, volatile, depth 10. A full pool waits a second.
///
/// ```c
/// rgaps_publisher_t *map;
/// rgaps_publisher_qos_t qos = rgaps_publisher_qos_default();
/// qos.durability = RGAPS_TRANSIENT_LOCAL;  // late joiners get the last message
/// qos.history_depth = 1;
/// check(rgaps_publisher_create(node, "map", RGAPS_KIND_IMAGE, &qos, &map));
/// ```
#[unsafe(no_mangle)]
pub extern "C" fn rgaps_publisher_qos_default() -> rgaps_publisher_qos_t {
    rgaps_publisher_qos_t::of(&PublisherQos::default())
}

/// Creates a publisher, and the topic if it does not exist. The topic's type must be of this kind.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// check(rgaps_publisher_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &publisher));
/// rgaps_publisher_destroy(publisher);
/// ```
///
/// @param topic      a ROS name; the leading slash is optional
/// @param kind       an rgaps_kind_t
/// @param qos        NULL takes the default
/// @param publisher  the publisher; destroy it with `rgaps_publisher_destroy`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_create(
    node: *const rgaps_node_t,
    topic: *const c_char,
    kind: u32,
    qos: Option<&rgaps_publisher_qos_t>,
    publisher: Option<&mut MaybeUninit<*mut rgaps_publisher_t>>,
) -> rgaps_status_t {
    guard(|| {
        let node = look_up_node(node)?;
        let out = publisher.ok_or_else(|| Failure::null("publisher"))?;
        let qos = qos.map(rgaps_publisher_qos_t::check).transpose()?.unwrap_or_default();
        let publisher = DynamicPublisher::new(&node, raw::text(topic, "topic")?, Kind::from_code(kind)?, qos)?;
        out.write(handle(&PUBLISHERS, PublisherObject { node, publisher })?);
        Ok(())
    })
}

/// Destroys a publisher. Its messages stay until subscribers release them. Its loans can still be published. NULL is not an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_destroy(publisher: *mut rgaps_publisher_t) {
    let _ = guard(|| {
        if !publisher.is_null() {
            PUBLISHERS.remove(publisher as u64)?;
        }
        Ok(())
    });
}

/// Loans a block of the pool for the bytes that `meta` describes. Fill it in place and publish it without a copy. If the pool is full, the
/// publisher's QoS decides what happens.
///
/// A block that was used before still has its old bytes: fill all of it.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_meta_t meta;
/// rgaps_loan_t *loan;
/// void *pixels;
/// uint64_t bytes;
/// check(rgaps_publisher_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &publisher));
/// check(rgaps_meta_image(&meta, 640, 480, "mono8"));
/// check(rgaps_publisher_loan(publisher, &meta, &loan));
/// check(rgaps_loan_data(loan, &pixels, &bytes));
/// memset(pixels, 128, bytes);  // in place: subscribers read this memory
/// check(rgaps_loan_publish(loan, NULL, NULL));
/// ```
///
/// @param loan  end it with `rgaps_loan_publish` or `rgaps_loan_discard`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_loan(
    publisher: *const rgaps_publisher_t,
    meta: Option<&rgaps_meta_t>,
    loan: Option<&mut MaybeUninit<*mut rgaps_loan_t>>,
) -> rgaps_status_t {
    guard(|| {
        let PublisherObject { node, publisher } = PUBLISHERS.look_up(publisher as u64)?;
        let meta = meta.ok_or_else(|| Failure::null("meta"))?.check()?;
        let out = loan.ok_or_else(|| Failure::null("loan"))?;
        let loan = Arc::new(Mutex::new(Some(publisher.loan(&meta)?)));
        out.write(handle(&LOANS, LoanObject { node, loan })?);
        Ok(())
    })
}

/// Publishes a copy of the caller's device memory: one copy on the device into the pool, after the work that the stream has so far, whatever the
/// number of subscribers. The call does not wait for the device.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_meta_t meta;
/// const float values[4] = {1, 2, 3, 4};  // on a GPU: a device pointer
/// const int64_t shape[] = {2, 2};
/// check(rgaps_publisher_create(node, "activations", RGAPS_KIND_TENSOR, NULL, &publisher));
/// check(rgaps_meta_tensor(&meta, RGAPS_FLOAT, 32, 2, shape));
/// check(rgaps_publisher_push_on(publisher, &meta, values, sizeof values, NULL, NULL));
/// ```
///
/// @param meta     describes `bytes` bytes
/// @param data     a pointer of the node's device; a plain pointer on the host backend. Do not free or change the memory before the stream has made
///                 the copy; on the host backend, before the call returns.
/// @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
///                 backend.
/// @param handle   names the message; may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_push_on(
    publisher: *const rgaps_publisher_t,
    meta: Option<&rgaps_meta_t>,
    data: *const c_void,
    bytes: u64,
    stream: *mut c_void,
    handle: Option<&mut MaybeUninit<rgaps_message_handle_t>>,
) -> rgaps_status_t {
    guard(|| {
        let PublisherObject { node, publisher } = PUBLISHERS.look_up(publisher as u64)?;
        let meta = meta.ok_or_else(|| Failure::null("meta"))?.check()?;
        if data.is_null() && bytes > 0 {
            return Err(Failure::null("data"));
        }
        let pushed = match raw::stream(&node, stream) {
            Some(stream) => publisher.push_on(&meta, &raw::device_part(data, bytes), &stream)?,
            None => publisher.push(&meta, raw::slice(data.cast(), bytes, "data")?)?,
        };
        say(handle, pushed)
    })
}

/// Publishes a copy of host memory, whatever the node's device: one copy into the pool, complete when the call returns.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_meta_t meta;
/// rgaps_message_handle_t handle;
/// check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
/// check(rgaps_meta_bytes(&meta, 5));
/// check(rgaps_publisher_push_host(publisher, &meta, "hello", 5, &handle));
/// assert(handle.sequence == 1 && handle.payload_bytes == 5);
/// ```
///
/// @param meta     describes `bytes` bytes
/// @param handle   names the message; may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_push_host(
    publisher: *const rgaps_publisher_t,
    meta: Option<&rgaps_meta_t>,
    data: *const c_void,
    bytes: u64,
    handle: Option<&mut MaybeUninit<rgaps_message_handle_t>>,
) -> rgaps_status_t {
    guard(|| {
        let publisher = PUBLISHERS.look_up(publisher as u64)?.publisher;
        let meta = meta.ok_or_else(|| Failure::null("meta"))?.check()?;
        say(handle, publisher.push(&meta, raw::slice(data.cast(), bytes, "data")?)?)
    })
}

/// The number of subscribers on this host, plus one for each remote host that subscribes. 0 if the handle is invalid.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
/// if (rgaps_publisher_subscriber_count(publisher) == 0) puts("nobody reads this topic");
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_subscriber_count(publisher: *const rgaps_publisher_t) -> u64 {
    guard_or(|| Ok(PUBLISHERS.look_up(publisher as u64)?.publisher.subscriber_count() as u64)).unwrap_or(0)
}

/// The counters of a publisher and its pool.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_publisher_statistics_t statistics;
/// check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
/// check(rgaps_publisher_statistics(publisher, &statistics));
/// printf("%llu of %llu B in use\n", (unsigned long long)statistics.used_bytes, (unsigned long long)statistics.pool_bytes);
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_statistics(
    publisher: *const rgaps_publisher_t,
    statistics: Option<&mut MaybeUninit<rgaps_publisher_statistics_t>>,
) -> rgaps_status_t {
    guard(|| {
        let publisher = PUBLISHERS.look_up(publisher as u64)?.publisher;
        statistics.ok_or_else(|| Failure::null("statistics"))?.write(publisher.statistics().into());
        Ok(())
    })
}

/// The memory in which the CPU fills a loan: the block itself, or, on a GPU, host memory that publishing copies into the block. Valid until the loan
/// is published or discarded.
///
/// @param bytes  may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_loan_data(
    loan: *const rgaps_loan_t,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    guard(|| {
        let data = data.ok_or_else(|| Failure::null("data"))?;
        LOANS.look_up(loan as u64)?.with(|loan| {
            let block = loan.bytes_mut();
            data.write(block.as_mut_ptr().cast());
            if let Some(bytes) = bytes {
                bytes.write(block.len() as u64);
            }
            Ok(())
        })
    })
}

/// The device memory in which a kernel or a copy fills a loan. Work that writes there must be in the stream that the loan is published on. Valid
/// until the loan is published or discarded. On the host backend the same as `rgaps_loan_data`.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_meta_t meta;
/// rgaps_loan_t *loan;
/// void *pointer;
/// check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
/// check(rgaps_meta_bytes(&meta, 64));
/// check(rgaps_publisher_loan(publisher, &meta, &loan));
/// check(rgaps_loan_device_pointer(loan, &pointer));
/// // here a kernel that fills `pointer` starts on a stream; that stream is the second argument
/// check(rgaps_loan_publish(loan, NULL, NULL));
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_loan_device_pointer(
    loan: *const rgaps_loan_t,
    pointer: Option<&mut MaybeUninit<*mut c_void>>,
) -> rgaps_status_t {
    guard(|| {
        let pointer = pointer.ok_or_else(|| Failure::null("pointer"))?;
        let address = LOANS.look_up(loan as u64)?.with(|loan| Ok(loan.device_address()?))?;
        pointer.write(address as *mut c_void);
        Ok(())
    })
}

/// Replaces a loan's metadata before publishing. The new one must describe the same number of bytes.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_meta_t meta;
/// rgaps_loan_t *loan;
/// check(rgaps_publisher_create(node, "camera/front", RGAPS_KIND_IMAGE, NULL, &publisher));
/// check(rgaps_meta_image(&meta, 640, 480, "mono8"));
/// check(rgaps_publisher_loan(publisher, &meta, &loan));
/// check(rgaps_meta_set_header(&meta, rgaps_now(), "camera_front"));  // the exposure is over
/// check(rgaps_loan_set_meta(loan, &meta));
/// check(rgaps_loan_discard(loan));
/// ```
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_loan_set_meta(loan: *const rgaps_loan_t, meta: Option<&rgaps_meta_t>) -> rgaps_status_t {
    guard(|| {
        let meta = meta.ok_or_else(|| Failure::null("meta"))?.check()?;
        LOANS.look_up(loan as u64)?.with(|loan| Ok(loan.set_meta(&meta)?))
    })
}

/// A loan as a DLPack tensor for an array library to fill. Delete it with its deleter. It keeps the memory mapped, not the loan: do not write to it
/// after the loan is published or discarded.
///
/// @param field   a field of a cloud's points; NULL for the whole payload
/// @param tensor  a DLManagedTensorVersioned of dlpack.h
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_loan_dlpack(
    loan: *const rgaps_loan_t,
    field: *const c_char,
    tensor: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> rgaps_status_t {
    guard(|| {
        let out = tensor.ok_or_else(|| Failure::null("tensor"))?;
        let field = raw::optional_text(field, "field")?;
        let tensor = LOANS.look_up(loan as u64)?.with(|loan| {
            let described = match field {
                Some(name) => loan.describe_field(name)?,
                None => loan.describe()?,
            };
            Ok(loan.to_dlpack(&described))
        })?;
        out.write(tensor.into_raw().as_ptr());
        Ok(())
    })
}

/// Publishes a loan without a copy. On a GPU in stream order: the work that the stream has so far fills the block, and the call does not wait for
/// it. The handle is released even if the call fails.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_meta_t meta;
/// rgaps_loan_t *loan;
/// void *data;
/// rgaps_message_handle_t handle;
/// check(rgaps_publisher_create(node, "raw", RGAPS_KIND_BYTES, NULL, &publisher));
/// check(rgaps_meta_bytes(&meta, 5));
/// check(rgaps_publisher_loan(publisher, &meta, &loan));
/// check(rgaps_loan_data(loan, &data, NULL));
/// memcpy(data, "hello", 5);
/// check(rgaps_loan_publish(loan, NULL, &handle));  // `loan` ends here
/// assert(handle.sequence == 1);
/// ```
///
/// @param stream   a CUstream or cudaStream_t of the device's primary context; NULL is CUDA's default stream. Of no meaning on the host
///                 backend.
/// @param handle   names the message; may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_loan_publish(
    loan: *mut rgaps_loan_t,
    stream: *mut c_void,
    handle: Option<&mut MaybeUninit<rgaps_message_handle_t>>,
) -> rgaps_status_t {
    guard(|| {
        let (stream, loan) = end(loan, stream)?;
        let published = match stream {
            Some(stream) => loan.publish_on(&stream)?,
            None => loan.publish()?,
        };
        say(handle, published)
    })
}

/// Publishes several loans of one publisher, in their order, and wakes each sleeping subscriber once for all of them. Subscribers that are awake may
/// take the first messages before the last ones are published. The bytes must be complete: if work of a stream fills a block, synchronise the stream
/// first, or publish that loan with `rgaps_loan_publish`.
///
/// If a loan is of another publisher, or cannot be filled by its device, nothing is published. Only a lost slot or a damaged topic can end the batch
/// in the middle: then the loans before that are published.
///
/// ```c
/// rgaps_publisher_t *publisher;
/// rgaps_meta_t meta;
/// rgaps_loan_t *loans[8];
/// rgaps_message_handle_t handles[8];
/// check(rgaps_publisher_create(node, "imu", RGAPS_KIND_BYTES, NULL, &publisher));
/// check(rgaps_meta_bytes(&meta, 1));
/// for (int i = 0; i < 8; i++) {
///   void *data;
///   check(rgaps_publisher_loan(publisher, &meta, &loans[i]));
///   check(rgaps_loan_data(loans[i], &data, NULL));
///   memset(data, i, 1);
/// }
/// check(rgaps_publisher_publish_all(publisher, loans, 8, handles, NULL));  // the loans end here
/// assert(handles[7].sequence == 8 && loans[7] == NULL);
/// ```
///
/// @param loans      `count` different loans. Whatever the status, each that has ended is set to NULL: it is published, or it is the one that failed
///                   and was given back. The others are unchanged: publish them again, or discard them.
/// @param handles    `count` places for the names of the messages; may be NULL. Whatever the status, those of published messages are written.
/// @param published  how many loans, the first ones, are published, whatever the status; may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_publisher_publish_all(
    publisher: *const rgaps_publisher_t,
    loans: *mut *mut rgaps_loan_t,
    count: u64,
    handles: *mut rgaps_message_handle_t,
    mut published: Option<&mut MaybeUninit<u64>>,
) -> rgaps_status_t {
    if let Some(published) = &mut published {
        published.write(0);
    }
    guard(|| {
        let publisher = PUBLISHERS.look_up(publisher as u64)?.publisher;
        let batch = Taken::all(raw::slice(loans.cast_const(), count, "loans")?)?;
        let handles = raw::places(handles, if handles.is_null() { 0 } else { count }, "handles")?;
        let (named, failure) = batch.publish(&publisher, raw::places(loans, count, "loans")?);
        if let Some(published) = published {
            published.write(named.len() as u64);
        }
        for (place, handle) in handles.iter_mut().zip(named) {
            place.write(handle.into());
        }
        failure.map_or(Ok(()), Err)
    })
}

/// Gives a loan's block back unpublished. All device writes to it must be complete. NULL is not an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgaps_loan_discard(loan: *mut rgaps_loan_t) -> rgaps_status_t {
    guard(|| {
        if !loan.is_null() {
            drop(end(loan, std::ptr::null_mut())?);
        }
        Ok(())
    })
}

/// Takes a loan from its handle, and its stream from the caller.
fn end(loan: *mut rgaps_loan_t, stream: *mut c_void) -> Result<(Option<Stream>, DynamicLoan), Failure> {
    let object = LOANS.remove(loan as u64)?;
    let taken = object.lock().take();
    Ok((raw::stream(&object.node, stream), taken.ok_or(BadHandle::Released(What::Loan))?))
}

/// Loans that were taken from their handles for a batch.
struct Taken {
    /// With the numbers of their handles.
    objects: Vec<(u64, LoanObject)>,
    loans: Vec<DynamicLoan>,
}

impl Taken {
    /// Takes all of them, or none.
    fn all(handles: &[*mut rgaps_loan_t]) -> Result<Self, Failure> {
        // Not allocated by the caller's count, which may be wrong: the first handle that is none ends the loop.
        let mut taken = Self { objects: Vec::new(), loans: Vec::new() };
        for (place, handle) in handles.iter().enumerate() {
            let found = LOANS.look_up(*handle as u64).and_then(|object| {
                // A loan that is twice in the batch has been taken already.
                let loan = object.lock().take().ok_or(BadHandle::Released(What::Loan))?;
                Ok((object, loan))
            });
            match found {
                Ok((object, loan)) => {
                    taken.objects.push((*handle as u64, object));
                    taken.loans.push(loan);
                }
                Err(error) => {
                    let of_each = taken.objects.iter().zip(taken.loans);
                    of_each.for_each(|((_, object), loan)| *object.lock() = Some(loan));
                    let Failure { status, text } = error.into();
                    return Err(Failure::new(status, format_args!("loan {place} of the batch: {text}")));
                }
            }
        }
        Ok(taken)
    }

    /// Publishes them. Ends the handles of those that are over, and gives the others their loans back.
    fn publish(
        self,
        publisher: &DynamicPublisher,
        handles: &mut [MaybeUninit<*mut rgaps_loan_t>],
    ) -> (Vec<MessageHandle>, Option<Failure>) {
        let count = self.loans.len();
        let (published, failed, rest, failure) = match publisher.publish_all(self.loans) {
            Ok(published) => (published, None, Vec::new(), None),
            Err(error) => {
                let text = error.to_string();
                let PublishAllError { published, index, source, rest } = error;
                // The loan that failed is over unless it was returned, too.
                let is_over = rest.len() < count - published.len();
                let status = Failure::from(*source).status;
                (published, is_over.then_some(index), rest, Some(Failure::new(status, text)))
            }
        };
        let mut rest = rest.into_iter();
        for (place, ((number, object), handle)) in self.objects.iter().zip(handles).enumerate() {
            if place >= published.len() && Some(place) != failed {
                *object.lock() = rest.next();
                continue;
            }
            // Already removed only if another thread misuses the loan.
            let _ = LOANS.remove(*number);
            handle.write(std::ptr::null_mut());
        }
        (published, failure)
    }
}

pub(crate) fn say(to: Option<&mut MaybeUninit<rgaps_message_handle_t>>, handle: MessageHandle) -> Result<(), Failure> {
    if let Some(to) = to {
        to.write(handle.into());
    }
    Ok(())
}
