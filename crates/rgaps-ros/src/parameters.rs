//! How a client gives the values of parameters. Their names, defaults and rules are in `rgaps_ros_policy::parameters`.

use rgaps_ros_policy::parameters::{Names, of_publisher, of_subscription};
pub use rgaps_ros_policy::parameters::{Offer, Parameter, ParameterError, Request, Rule, Value};

use crate::{Error, Profile};

/// Declares parameters on a node, read-only if the client supports that, and returns their values.
pub trait Parameters {
    /// The value of a parameter; its default if none is set.
    fn value(&mut self, parameter: &Parameter) -> Result<Value, Error>;
}

/// The default values, for a node without parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Defaults;

impl Parameters for Defaults {
    fn value(&mut self, parameter: &Parameter) -> Result<Value, Error> {
        Ok(parameter.default.clone())
    }
}

/// What a publisher on this fully qualified topic offers in the core.
pub fn offer(topic: &str, profile: &Profile, of: &mut dyn Parameters) -> Result<Offer, Error> {
    let names = Names { topic, id: "" };
    let values = values(of_publisher(names, profile), of)?;
    Ok(rgaps_ros_policy::parameters::offer(names, profile, &values)?)
}

/// What a subscription to this fully qualified topic requests in the core.
pub fn request(topic: &str, profile: &Profile, of: &mut dyn Parameters) -> Result<Request, Error> {
    let names = Names { topic, id: "" };
    let values = values(of_subscription(names), of)?;
    Ok(rgaps_ros_policy::parameters::request(names, profile, &values)?)
}

fn values<const N: usize>(parameters: [Parameter; N], of: &mut dyn Parameters) -> Result<[Value; N], Error> {
    let mut values = parameters.each_ref().map(|parameter| parameter.default.clone());
    for (value, parameter) in values.iter_mut().zip(&parameters) {
        *value = of.value(parameter)?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node on which one parameter has another value.
    struct With(&'static str, Value);

    impl Parameters for With {
        fn value(&mut self, parameter: &Parameter) -> Result<Value, Error> {
            Ok(if parameter.name == self.0 { self.1.clone() } else { parameter.default.clone() })
        }
    }

    #[test]
    fn a_nodes_values_are_applied_and_checked_by_name() {
        let profile = Profile::default();
        let mut pool = With("rgaps./a.publisher.pool_bytes", Value::Integer(5));
        assert_eq!(offer("/a", &profile, &mut pool).unwrap().qos.pool_bytes, Some(5));
        assert_eq!(offer("/b", &profile, &mut pool).unwrap(), offer("/b", &profile, &mut Defaults).unwrap());
        let mut slack = With("rgaps./a.subscription.slack", Value::Text("many".to_owned()));
        let error = request("/a", &profile, &mut slack).unwrap_err().to_string();
        assert!(error.starts_with("parameter rgaps./a.subscription.slack is 'many'"), "{error}");
    }
}
