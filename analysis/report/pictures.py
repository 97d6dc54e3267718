"""Drawings of the first screen as SVG."""
