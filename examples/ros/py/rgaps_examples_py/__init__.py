"""A pipeline of rclpy nodes: tensors, a model between two topics, its scores."""
