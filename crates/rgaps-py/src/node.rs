//! Nodes.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rgaps::device::Choice;
use rgaps::dynamic::{DynamicPublisher, DynamicSubscriber};
use rgaps::{Durability, Exhaustion, History, PublisherQos, Reliability, SubscriberQos};

use crate::errors;
use crate::info::TopicSummary;
use crate::meta::kind_of;
use crate::node_cell::NodeCell;
use crate::publisher::{Publisher, PublisherCell};
use crate::subscriber::{Subscriber, SubscriberCell};

/// A connection to the host's manager. It makes publishers and subscribers.
///
/// The first node on a host starts its manager, `rgapsd`, unless `autostart` is false. `domain` is the ROS domain id, `runtime_dir` selects the
/// manager, and `device` is "auto", "host", "cuda" or "cuda:N"; the defaults work on one machine. Pass `ros_node` if the node serves a ROS 2
/// node: if it then starts the manager and the network is not configured, the manager connects to other hosts, as with the RMW. Usable from
/// any thread, and in `with`. After a fork, the child must make its own node. Warnings, such as a QoS that does not match, go to standard error;
/// RGAPS_LOG names another level than "warn": "off", "error", "info", "debug" or "trace".
///
/// >>> with rgaps.Node("camera") as node:
/// ...     publisher = node.publisher("camera/front", rgaps.Image)
/// ...     [topic.name for topic in node.topics()]
/// ['/camera/front']
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Node {
    cell: Arc<NodeCell>,
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (name = None, *, domain = None, runtime_dir = None, device = "auto", autostart = true, ros_node = false))]
    fn new(
        py: Python<'_>,
        name: Option<String>,
        domain: Option<u32>,
        runtime_dir: Option<std::path::PathBuf>,
        device: &str,
        autostart: bool,
        ros_node: bool,
    ) -> PyResult<Self> {
        let device: Choice = device.parse().map_err(|error| errors::of_device(&error))?;
        let mut builder = rgaps::Node::builder().device(device);
        builder = match name {
            Some(name) => builder.name(name),
            None => builder.name(program_name(py)),
        };
        if let Some(domain) = domain {
            builder = builder.domain(domain);
        }
        if let Some(path) = runtime_dir {
            builder = builder.runtime_dir(path);
        }
        if !autostart {
            builder = builder.no_autostart();
        }
        if ros_node {
            builder = builder.ros_node();
        }
        // False if an earlier node has started it.
        let _ = rgaps::log::to_standard_error();
        let node = py.detach(|| builder.build()).map_err(|error| errors::of_node(&error))?;
        Ok(Self { cell: Arc::new(NodeCell::new(node)?) })
    }

    /// Makes a publisher of `type`, one of the metadata classes. `qos` is a PublisherQos; keywords replace fields of it.
    ///
    /// >>> publisher = node.publisher("map", rgaps.Image, durability="transient_local", history_depth=1)
    /// >>> publisher.topic, publisher.type
    /// ('/map', <class 'rgaps.Image'>)
    #[pyo3(signature = (topic, r#type, qos = None, **fields))]
    fn publisher(
        &self,
        py: Python<'_>,
        topic: &str,
        r#type: &Bound<'_, PyAny>,
        qos: Option<&Bound<'_, PyAny>>,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Publisher> {
        let (node, kind) = (self.cell.node()?, kind_of(r#type)?);
        let qos = publisher_qos(&merged(py, "PublisherQos", qos, fields)?)?;
        let made =
            py.detach(|| DynamicPublisher::new(&node, topic, kind, qos)).map_err(|error| errors::of_node(&error))?;
        let cell = Arc::new(PublisherCell::new(made, self.cell.clone()));
        self.cell.adopt(Arc::<PublisherCell>::downgrade(&cell));
        Ok(Publisher::new(cell))
    }

    /// Makes a subscriber of `type`, one of the metadata classes. It gets every message published after this call returns. `qos` is a
    /// SubscriberQos; keywords replace fields of it.
    ///
    /// >>> newest = rgaps.SubscriberQos(depth=1)
    /// >>> subscriber = node.subscriber("camera/front", rgaps.Image, newest)
    /// >>> subscriber.take() is None
    /// True
    #[pyo3(signature = (topic, r#type, qos = None, **fields))]
    fn subscriber(
        &self,
        py: Python<'_>,
        topic: &str,
        r#type: &Bound<'_, PyAny>,
        qos: Option<&Bound<'_, PyAny>>,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Subscriber> {
        let (node, kind) = (self.cell.node()?, kind_of(r#type)?);
        let qos = subscriber_qos(&merged(py, "SubscriberQos", qos, fields)?)?;
        let made =
            py.detach(|| DynamicSubscriber::new(&node, topic, kind, qos)).map_err(|error| errors::of_node(&error))?;
        let cell = Arc::new(SubscriberCell::new(made, self.cell.clone()));
        self.cell.adopt(Arc::<SubscriberCell>::downgrade(&cell));
        Ok(Subscriber::new(cell))
    }

    /// The topics that this host knows.
    ///
    /// >>> subscriber = node.subscriber("camera/front", rgaps.Image)
    /// >>> [(topic.name, topic.type_name, topic.subscribers) for topic in node.topics()]
    /// [('/camera/front', 'rgaps/Image', 1)]
    fn topics(&self, py: Python<'_>) -> PyResult<Vec<TopicSummary>> {
        let node = self.cell.node()?;
        let topics = py.detach(|| node.topics()).map_err(|error| errors::of_node(&error))?;
        Ok(topics.into_iter().map(Into::into).collect())
    }

    /// The device of the host's pools: "host" or "cuda:N".
    #[getter]
    fn device(&self) -> String {
        match self.cell.backend().as_cuda() {
            Some(cuda) => format!("cuda:{}", cuda.gpu().properties().ordinal),
            None => "host".to_owned(),
        }
    }

    /// Closes the node, its publishers and its subscribers. Samples that were taken stay valid.
    ///
    /// >>> subscriber = node.subscriber("raw", rgaps.Bytes)
    /// >>> node.close()
    /// >>> subscriber.closed
    /// True
    fn close(&self, py: Python<'_>) {
        self.cell.close(py);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.cell.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.cell.node().is_ok() { "" } else { ", closed" };
        format!("<rgaps.Node on {}{state}>", self.device())
    }
}

/// The script's name, not the interpreter's.
fn program_name(py: Python<'_>) -> String {
    let script = || -> PyResult<String> { py.import("sys")?.getattr("argv")?.get_item(0)?.extract() };
    let script = script().unwrap_or_default();
    let name = std::path::Path::new(&script).file_name().map(|name| name.to_string_lossy().into_owned());
    name.filter(|name| !name.is_empty() && name != "-c").unwrap_or_else(|| "python".to_owned())
}

/// The QoS with the keywords' fields replaced.
fn merged<'py>(
    py: Python<'py>,
    class: &str,
    qos: Option<&Bound<'py, PyAny>>,
    fields: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("rgaps._qos")?.call_method("merged", (class, qos), fields)
}

fn publisher_qos(qos: &Bound<'_, PyAny>) -> PyResult<PublisherQos> {
    let exhaustion = match qos.getattr("exhaustion")?.extract::<String>()?.as_str() {
        "drop_oldest" => Exhaustion::DropOldest,
        "refuse" => Exhaustion::Refuse,
        // _qos.py has rejected every other word.
        _ => Exhaustion::Wait { timeout_ms: (qos.getattr("timeout")?.extract::<f64>()? * 1000.0) as u64 },
    };
    Ok(PublisherQos {
        reliability: reliability(qos)?,
        durability: durability(qos)?,
        history_depth: qos.getattr("history_depth")?.extract()?,
        exhaustion,
        pool_bytes: qos.getattr("pool_bytes")?.extract()?,
        flow_control: qos.getattr("flow_control")?.extract()?,
    })
}

fn subscriber_qos(qos: &Bound<'_, PyAny>) -> PyResult<SubscriberQos> {
    let history = match qos.getattr("depth")?.extract::<Option<u32>>()? {
        Some(depth) => History::KeepLast(depth),
        None => History::KeepAll,
    };
    Ok(SubscriberQos { reliability: reliability(qos)?, durability: durability(qos)?, history })
}

fn reliability(qos: &Bound<'_, PyAny>) -> PyResult<Reliability> {
    let name: String = qos.getattr("reliability")?.extract()?;
    Ok(if name == "best_effort" { Reliability::BestEffort } else { Reliability::Reliable })
}

fn durability(qos: &Bound<'_, PyAny>) -> PyResult<Durability> {
    let name: String = qos.getattr("durability")?.extract()?;
    Ok(if name == "transient_local" { Durability::TransientLocal } else { Durability::Volatile })
}
