//! What ROS clients do alike, for rclpy: parameters, QoS, descriptors, refusals and counters (crates/rgaps-ros-policy). Private to the package:
//! its Python part, `rgaps.ros`, declares the parameters, publishes, subscribes and logs.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict};
use rgaps::dynamic::Kind;
use rgaps::{Durability, Exhaustion, History, Reliability};
use rgaps_ros_policy::descriptor::{self, DescriptorError};
use rgaps_ros_policy::parameters::{
    Names, Parameter, ParameterError, Rule, Value, of_publisher, of_subscription, offer, request,
};
use rgaps_ros_policy::payloads::{self, Severity, Taken};
use rgaps_ros_policy::qos::{Profile, RmwProfile};
use rgaps_ros_policy::status::Status;

use crate::handle::{self, MessageHandle};
use crate::publisher::Publisher;
use crate::sample::Sample;
use crate::subscriber::{Subscriber, seconds};
use crate::{errors, meta};

/// The private module `rgaps._rgaps.ros`.
#[pymodule(submodule)]
pub(crate) mod ros {
    #[pymodule_export]
    use super::{
        Payloads, handle_of, is_little_endian, meta_of, pack, parameters, publisher_qos, publisher_status,
        subscriber_qos,
    };
}

/// Reliability, durability and history as numbers of rmw/types.h, and the depth.
type Numbers = (u32, u32, u32, u64);

fn profile_of((reliability, durability, history, depth): Numbers) -> Profile {
    RmwProfile { reliability, durability, history, depth }.into()
}

/// The parameters of a "publisher" or "subscription": name, default, limits of a number, description.
#[pyfunction]
#[allow(clippy::type_complexity)] // a list of tuples for Python
fn parameters(
    py: Python<'_>,
    role: &str,
    topic: &str,
    id: &str,
    profile: Numbers,
) -> PyResult<Vec<(String, Py<PyAny>, Option<(i64, i64)>, &'static str)>> {
    let names = Names { topic, id };
    let all = match role {
        "publisher" => of_publisher(names, &profile_of(profile)).to_vec(),
        _ => of_subscription(names).to_vec(),
    };
    let described = all.into_iter().map(|parameter| {
        let default = match parameter.default {
            Value::Integer(number) => number.into_pyobject(py)?.into_any().unbind(),
            Value::Flag(flag) => flag.into_pyobject(py)?.to_owned().into_any().unbind(),
            Value::Text(text) | Value::Other(text) => text.into_pyobject(py)?.into_any().unbind(),
        };
        let limits = if let Rule::Integer(range) = parameter.rule { Some(range.into_inner()) } else { None };
        Ok((parameter.name, default, limits, parameter.description))
    });
    described.collect()
}

/// The values of parameters, one for each.
fn values<const N: usize>(given: &[Bound<'_, PyAny>]) -> PyResult<[Value; N]> {
    let read = given.iter().map(|value| {
        // A bool is an int in Python.
        Ok(if let Ok(flag) = value.cast::<PyBool>() {
            Value::Flag(flag.is_true())
        } else if let Ok(number) = value.extract() {
            Value::Integer(number)
        } else if let Ok(text) = value.extract() {
            Value::Text(text)
        } else {
            Value::Other(value.repr()?.to_string())
        })
    });
    let read = read.collect::<PyResult<Vec<_>>>()?;
    read.try_into().map_err(|_| PyValueError::new_err(format!("{} values were given for {N} parameters", given.len())))
}

/// A ValueError whose arguments are those of rclpy's InvalidParameterValueException: the name, the value as it was given, and the rule.
fn wrong(error: ParameterError, parameters: &[Parameter], given: &[Bound<'_, PyAny>]) -> PyErr {
    let ParameterError { name, allowed, .. } = error;
    let at = parameters.iter().position(|parameter| parameter.name == name);
    let value = at.and_then(|at| given.get(at)).map(|value| value.clone().unbind());
    PyValueError::new_err((name, value, format!("it must be {allowed}")))
}

fn reliability(reliability: Reliability) -> &'static str {
    if reliability == Reliability::Reliable { "reliable" } else { "best_effort" }
}

fn durability(durability: Durability) -> &'static str {
    if durability == Durability::TransientLocal { "transient_local" } else { "volatile" }
}

/// What a publisher offers in the core: an rgaps.PublisherQos.
#[pyfunction]
fn publisher_qos<'py>(
    py: Python<'py>,
    topic: &str,
    id: &str,
    profile: Numbers,
    values: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (names, profile) = (Names { topic, id }, profile_of(profile));
    let offered = offer(names, &profile, &self::values(&values)?);
    let qos = offered.map_err(|error| wrong(error, &of_publisher(names, &profile), &values))?.qos;
    let fields = PyDict::new(py);
    fields.set_item("reliability", reliability(qos.reliability))?;
    fields.set_item("durability", durability(qos.durability))?;
    fields.set_item("history_depth", qos.history_depth)?;
    fields.set_item("pool_bytes", qos.pool_bytes)?;
    fields.set_item("flow_control", qos.flow_control)?;
    match qos.exhaustion {
        Exhaustion::Wait { timeout_ms } => fields.set_item("timeout", timeout_ms as f64 / 1000.0)?,
        Exhaustion::DropOldest => fields.set_item("exhaustion", "drop_oldest")?,
        Exhaustion::Refuse => fields.set_item("exhaustion", "refuse")?,
    }
    py.import("rgaps._qos")?.getattr("PublisherQos")?.call((), Some(&fields))
}

/// What a subscription requests in the core: an rgaps.SubscriberQos, and the seconds that a take by handle waits.
#[pyfunction]
fn subscriber_qos<'py>(
    py: Python<'py>,
    topic: &str,
    id: &str,
    profile: Numbers,
    values: Vec<Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyAny>, f64)> {
    let names = Names { topic, id };
    let asked = request(names, &profile_of(profile), &self::values(&values)?);
    let asked = asked.map_err(|error| wrong(error, &of_subscription(names), &values))?;
    let fields = PyDict::new(py);
    fields.set_item("reliability", reliability(asked.qos.reliability))?;
    fields.set_item("durability", durability(asked.qos.durability))?;
    fields.set_item("depth", if let History::KeepLast(depth) = asked.qos.history { Some(depth) } else { None })?;
    let qos = py.import("rgaps._qos")?.getattr("SubscriberQos")?.call((), Some(&fields))?;
    Ok((qos, asked.payload_timeout.as_secs_f64()))
}

/// The serialized descriptor of a message.
#[pyfunction]
fn pack<'py>(py: Python<'py>, handle: &Bound<'py, PyAny>, meta: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let (handle, meta) = (handle::of_python(handle)?, meta::of_python(meta)?);
    Ok(PyBytes::new(py, &descriptor::serialize(&handle, &meta)))
}

/// Whether a serialized message has the byte order that the other functions read. The middleware can translate another one.
#[pyfunction]
fn is_little_endian(serialized: &[u8]) -> bool {
    descriptor::is_little_endian(serialized)
}

/// The handle in a serialized descriptor, unchecked.
#[pyfunction]
fn handle_of(serialized: &[u8], kind: &Bound<'_, PyAny>) -> PyResult<MessageHandle> {
    let read = descriptor::deserialize_unchecked(meta::kind_of(kind)?, serialized).map_err(malformed)?;
    Ok(read.0.into())
}

/// The metadata in a serialized descriptor.
#[pyfunction]
fn meta_of(py: Python<'_>, serialized: &[u8], kind: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let read = descriptor::deserialize_unchecked(meta::kind_of(kind)?, serialized).map_err(malformed)?;
    meta::to_python(py, read.1.map_err(|error| errors::of_meta(&error))?)
}

fn malformed(error: DescriptorError) -> PyErr {
    errors::metadata(&error.to_string())
}

/// A status for /diagnostics: name, counters, message, and whether it is a warning.
type PythonStatus = (String, Vec<(&'static str, u64)>, String, bool);

fn to_python(Status { name, counters, message, is_warning }: Status) -> PythonStatus {
    (name, counters, message, is_warning)
}

/// The status of a publisher; `before` has the values of its last one.
#[pyfunction]
fn publisher_status(
    py: Python<'_>,
    publisher: &Bound<'_, Publisher>,
    node: &str,
    before: Vec<u64>,
) -> PyResult<PythonStatus> {
    let object = publisher.get();
    let publisher = object.core()?;
    object.release_copied();
    let now = py.detach(|| (publisher.statistics(), publisher.subscriber_count() as u64));
    Ok(to_python(Status::of_publisher(node, publisher.topic(), &now.0, now.1, &before)))
}

/// Takes the samples of descriptors by a subscriber; counts and logs those that are refused. `log(is_warning, text)` must not refer to this object.
#[pyclass(frozen, module = "rgaps")]
pub(crate) struct Payloads {
    subscriber: Py<Subscriber>,
    kind: Kind,
    payloads: payloads::Payloads,
    log: Py<PyAny>,
}

#[pymethods]
impl Payloads {
    #[new]
    fn new(subscriber: &Bound<'_, Subscriber>, timeout: f64, log: Py<PyAny>) -> PyResult<Self> {
        let core = subscriber.get().core()?;
        let timeout = seconds(Some(timeout))?.unwrap_or(Duration::MAX);
        let payloads = payloads::Payloads::new(core.topic(), timeout);
        Ok(Self { subscriber: subscriber.clone().unbind(), kind: core.kind(), payloads, log })
    }

    /// The sample that a serialized descriptor names; None if there is none, after a refusal was counted and logged.
    fn take(&self, py: Python<'_>, serialized: &[u8]) -> PyResult<Option<Sample>> {
        let subscriber = self.subscriber.get();
        let named = descriptor::deserialize(self.kind, serialized).map(|(handle, _)| handle);
        let (mut raised, mut line) = (None, None);
        let take = |handle: &rgaps::MessageHandle, timeout| match subscriber.take_named(py, handle, timeout, None) {
            Ok(taken) => taken.map_err(Some),
            Err(error) => {
                raised = Some(error);
                Err(None)
            }
        };
        let log = |severity, text: &str| line = Some((severity == Severity::Warning, text.to_owned()));
        let taken = self.payloads.take(named, take, log);
        if let Some((is_warning, text)) = line {
            self.log.call1(py, (is_warning, rgaps::text::plain_lines(&text).into_owned()))?;
        }
        match (taken, raised) {
            (Taken::Sample(message), _) => Ok(Some(subscriber.sample(message, None))),
            // A signal's exception. Its handler may have closed the subscriber too.
            (_, Some(error)) if !errors::is_closed(py, &error) => Err(error),
            _ => Ok(None),
        }
    }

    /// Descriptors whose sample could not be taken.
    #[getter]
    fn refused(&self) -> u64 {
        self.payloads.counts().refused
    }

    /// Descriptors of messages published before the subscriber was made.
    #[getter]
    fn early(&self) -> u64 {
        self.payloads.counts().early
    }

    /// The status of the subscription; `before` has the values of its last one.
    fn status(&self, py: Python<'_>, node: &str, before: Vec<u64>) -> PyResult<PythonStatus> {
        let core = self.subscriber.get().core()?;
        let now = py.detach(|| core.statistics());
        Ok(to_python(Status::of_subscription(node, core.topic(), &now, self.payloads.counts(), &before)))
    }
}
