//! Development only: contract suites, hosts in network namespaces, crash points
