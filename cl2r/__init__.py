"""cl2r: studies of compatible lifelong learning representations."""

__version__ = "0.1.0"
