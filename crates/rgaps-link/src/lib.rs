//! Host-to-host links of RGAPS: ring, flow control and the tcp transport
